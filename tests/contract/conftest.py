"""The server under test.

By default the embedded engine serves the tiny model in a process of its own, once a session. With
EAGLED_SGLANG_VENV (see `make test-sglang`) real SGLang serves it on the CPU. With
EAGLED_CONTRACT_URL the suite runs against a server that is already up (a real SGLang), whose model
folder EAGLED_CONTRACT_MODEL names and whose key, if any, EAGLED_CONTRACT_KEY holds. Start it with
a context length of at most a few thousand tokens, float32, and at least four running requests.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.contract.server import ContractServer, Peer, running_engine, running_sglang


@pytest.fixture(scope="package")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ContractServer]:
    """The server that the whole suite talks to."""
    url = os.environ.get("EAGLED_CONTRACT_URL")
    if url:
        model = Path(os.environ["EAGLED_CONTRACT_MODEL"])
        yield ContractServer(
            url.rstrip("/"), model, os.environ.get("EAGLED_CONTRACT_KEY"), embedded=False
        )
        return
    model = request.getfixturevalue("tiny_model")
    log = tmp_path_factory.mktemp("engine") / "stderr.log"
    venv = os.environ.get("EAGLED_SGLANG_VENV")
    if venv:
        with running_sglang(Path(venv), model, log) as found:
            yield ContractServer(found, model, "contract-key", embedded=False)
        return
    flags = ("--slots", "4", "--max-queued", "8", "--api-key", "contract-key")
    with running_engine(model, log, *flags) as engine:
        yield ContractServer(engine.url, model, "contract-key", embedded=True)


@pytest.fixture
async def peer(server: ContractServer) -> AsyncIterator[Peer]:
    """A client with the server's key; everything left running is aborted afterwards."""
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    timeout = aiohttp.ClientTimeout(total=120)
    fresh = aiohttp.TCPConnector(force_close=True, limit=0)  # SGLang closes idle ones after 5 s
    async with aiohttp.ClientSession(
        server.url, headers=headers, timeout=timeout, connector=fresh
    ) as session:
        peer = Peer(session, server)
        await peer.learn()
        yield peer
        await peer.post("/abort_request", {"abort_all": True})
        await peer.until_idle()
