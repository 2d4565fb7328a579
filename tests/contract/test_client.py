"""eagled's own client against the server under test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from eagled.config import GenerationConfig, ServerConfig
from eagled.errors import AuthError, ContentError, RequestAbortedError
from eagled.server.client import SglangClient
from eagled.server.model_folder import read_model_facts
from eagled.server.protocol import EndCause, GenerateRequest
from eagled.types import OutputReason
from tests.contract.server import ContractServer, Peer

_GREEDY = b'"temperature":0,"ignore_eos":true'
_PROMPT = (20, 33, 47, 60)


def _client(server: ContractServer, folder: Path, key: str | None) -> SglangClient:
    key_file = None
    if key is not None:
        key_file = folder / "key"
        key_file.touch(mode=0o600)
        key_file.write_text(key)
    return SglangClient(
        ServerConfig(url=server.url, api_key_file=key_file),
        GenerationConfig(),
        vocab_size=read_model_facts(server.model).vocab_size,
    )


@pytest.fixture
async def client(server: ContractServer, tmp_path: Path) -> AsyncIterator[SglangClient]:
    """The client, with the server's key."""
    async with _client(server, tmp_path, server.key) as client:
        yield client


def _request(rid: str, max_new: int, ids: tuple[int, ...] = _PROMPT) -> GenerateRequest:
    return GenerateRequest(rid, np.array(ids, dtype=np.uint32), max_new, _GREEDY, seed=3)


async def test_a_reply_is_accepted_and_equals_the_raw_one(client: SglangClient, peer: Peer) -> None:
    """The client's checks pass on a real reply, and its ids are the server's."""
    reply = await client.generate(_request("contract-client", 9))
    raw = await peer.generate(list(_PROMPT), max_new_tokens=9)

    assert (raw.ids, EndCause.LIMIT) == (reply.output.tolist(), reply.cause)


async def test_an_abort_is_no_answer(client: SglangClient, peer: Peer) -> None:
    """A request aborted by rid raises, it never counts as an answer."""
    task = asyncio.create_task(client.generate(_request("contract-client-abort", peer.endless)))
    await peer.until(running=1)

    await client.abort("contract-client-abort")

    with pytest.raises(RequestAbortedError):
        await task


async def test_lengths_are_refused_as_too_long(client: SglangClient, peer: Peer) -> None:
    """The server's refusal of lengths is understood, also when the client did not foresee it."""
    with pytest.raises(ContentError) as caught:
        await client.generate(_request("contract-client-long", peer.context - 1))

    assert OutputReason.TOO_LONG_FOR_SERVER == caught.value.reason


async def test_infos_agree_with_the_server(client: SglangClient, peer: Peer) -> None:
    """Limits, model and load are read from the server's pages."""
    info, model, load = (
        await client.server_info(),
        await client.model_info(),
        await client.loads(),
    )

    assert (peer.context, peer.info["max_req_input_len"]) == (info.context, info.max_input)
    assert str(peer.server.model) == model.model_path
    assert load is not None
    assert (0, peer.info["max_total_num_tokens"]) == (load.running, load.total_tokens)
    assert await client.health()
    assert await client.ready()


async def test_a_wrong_key_is_an_auth_error(server: ContractServer, tmp_path: Path) -> None:
    """A key that the server does not take stops the client."""
    if server.key is None:
        pytest.skip("the server wants no key")
    async with _client(server, tmp_path, "wrong") as client:
        with pytest.raises(AuthError):
            await client.generate(_request("contract-client-key", 4))
