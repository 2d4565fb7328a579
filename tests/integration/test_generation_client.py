"""The client's control calls and its key, against a server in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.config import ServerConfig
from eagled.credentials import read_key
from eagled.errors import AuthError, ReplyBrokenError, RetryableError
from eagled.server.client import SglangClient
from eagled.server.protocol import Load, ModelInfo, ServerInfo, ServerLimits
from eagled.server.wire import NoConnectionError
from tests.servers.kit import VOCAB, make_config
from tests.servers.process import ServerProcess
from tests.unit.generation.test_reply import request_of


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A test server of its own."""
    with ServerProcess() as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[SglangClient]:
    """An open client of it."""
    config = make_config(server.url)
    async with SglangClient(config.servers[0], config.generation, vocab_size=VOCAB) as opened:
        yield opened


async def test_server_info_is_typed(server: ServerProcess, client: SglangClient) -> None:
    """What is needed comes out; the key that is in the same body does not."""
    info = {
        "version": "0.5.23",
        "context_length": 4096,
        "max_req_input_len": 4090,
        "max_running_requests": 32,
        "max_total_num_tokens": 9999,
        "speculative_algorithm": "EAGLE3",
        "api_key": "secret",
    }
    server.set(info=info)

    found = await client.server_info()

    assert found == ServerInfo("0.5.23", 4096, 4090, 32, 9999, "EAGLE3")
    assert found.limits == ServerLimits(4096, 4090)
    assert "secret" not in repr(found)


async def test_an_open_context_is_asked_of_the_model_list(
    server: ServerProcess, client: SglangClient
) -> None:
    """A null context_length is filled in from /v1/models."""
    server.set(
        info={"version": "x", "context_length": None},
        bodies={"/v1/models": {"data": [{"id": "toy", "max_model_len": 8192}]}},
    )

    assert (await client.server_info()).context == 8192


async def test_model_info_falls_back_to_the_path(
    server: ServerProcess, client: SglangClient
) -> None:
    """Names that an older server does not give are the model's path."""
    server.set(model={"model_path": "/m"})

    assert await client.model_info() == ModelInfo("/m", "/m", "/m")


async def test_loads_are_summed_over_ranks(server: ServerProcess, client: SglangClient) -> None:
    """Counts add up, usage is the fullest rank's; a server without the address gives None."""
    rank: dict[str, float] = {"num_running_reqs": 2, "num_waiting_reqs": 1}
    rank |= {"num_used_tokens": 10, "max_total_num_tokens": 100, "gen_throughput": 5.5}
    missing = await client.loads()
    ranks = [rank | {"token_usage": 0.1}, rank | {"token_usage": 0.4}]
    server.set(bodies={"/v1/loads": {"loads": ranks}})

    assert missing is None
    assert await client.loads() == Load(4, 2, 20, 200, 0.4, 11.0)


@pytest.mark.parametrize("body", [{"loads": 3}, {"loads": [3, None]}, {"loads": [{}]}])
async def test_odd_loads_do_not_crash(
    server: ServerProcess, client: SglangClient, body: dict[str, Any]
) -> None:
    """Whatever shape comes back, the result is a load of zeros."""
    server.set(bodies={"/v1/loads": body})

    assert await client.loads() == Load(0, 0, 0, 0, 0.0, 0.0)


async def test_a_body_that_is_no_object_is_broken(
    server: ServerProcess, client: SglangClient
) -> None:
    """A list where an object belongs is a broken reply, not a crash."""
    server.set(bodies={"/server_info": [1]})

    with pytest.raises(ReplyBrokenError):
        await client.server_info()


async def test_ready_and_health_follow_their_status(
    server: ServerProcess, client: SglangClient
) -> None:
    """Each is True exactly when its address says 200."""
    server.set(health={"status": 503, "delay_s": 0})

    assert await client.ready()
    assert not await client.health()
    server.set(health={"status": 200, "delay_s": 0})
    assert await client.health()


async def test_a_dead_server_is_told_from_a_bad_one(
    server: ServerProcess, client: SglangClient
) -> None:
    """Nothing listening is NoConnectionError for requests and control calls alike."""
    server.kill()

    assert not await client.reachable()
    with pytest.raises(NoConnectionError):
        await client.generate(request_of([1]))
    with pytest.raises(NoConnectionError):
        await client.server_info()
    with pytest.raises(RetryableError):
        await client.abort("r")


async def test_the_key_goes_with_every_request(server: ServerProcess, tmp_path: Path) -> None:
    """The key of the file is the bearer token; it is read once, when the client opens."""
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("s3cret\n")
    config = make_config(server.url)
    settings = ServerConfig(url=server.url, api_key_file=key)
    async with SglangClient(settings, config.generation, vocab_size=VOCAB) as client:
        await client.generate(request_of([1, 2]))

    assert server.seen()["sent"][-1]["key"] == "Bearer s3cret"


@pytest.mark.parametrize(("content", "mode"), [("x", 0o644), ("", 0o600), ("a\nb", 0o600)])
def test_a_bad_key_file_is_refused(tmp_path: Path, content: str, mode: int) -> None:
    """Readable by others, empty, or more than one line: no key is taken."""
    key = tmp_path / "key"
    key.write_text(content)
    key.chmod(mode)

    with pytest.raises(AuthError):
        read_key(key)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    """The message names the setting and the file."""
    with pytest.raises(AuthError, match=r"api_key_file.*absent"):
        read_key(tmp_path / "absent")


@pytest.mark.parametrize("turns", range(1, 5))
async def test_a_client_that_is_cancelled_while_it_closes_is_closed(turns: int) -> None:
    """At whatever point of leaving the cancellation comes, no session stays open."""
    config = make_config("http://127.0.0.1:9")
    client = SglangClient(config.servers[0], config.generation, vocab_size=VOCAB)
    await client.__aenter__()
    session = client._session
    leaving = asyncio.create_task(client.__aexit__(None, None, None))
    for _ in range(turns):
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    await asyncio.sleep(0)

    assert session is not None
    assert session.closed
