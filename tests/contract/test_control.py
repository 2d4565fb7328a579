"""Aborts, disconnects, health, and what the server says about itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.server import Peer

PROMPT = [20, 33, 47, 60]


async def test_an_aborted_request_returns_what_it_has(peer: Peer) -> None:
    """Abort by rid: the call ends with 200, some ids and finish reason abort."""
    task = asyncio.create_task(
        peer.generate(PROMPT, rid="contract-abort", max_new_tokens=peer.endless)
    )
    await peer.until(running=1)

    answer = await peer.post("/abort_request", {"rid": "contract-abort"})
    reply = await task

    assert (200, 200, "abort") == (answer.status, reply.status, reply.finish["type"])
    assert len(reply.ids) < peer.endless
    assert len(reply.ids) == reply.body["meta_info"]["completion_tokens"]


async def test_an_unknown_rid_aborts_nobody(peer: Peer) -> None:
    """Aborting a rid that is not live says 200 and touches nothing."""
    task = asyncio.create_task(peer.generate(PROMPT, rid="contract-kept", max_new_tokens=100))

    answer = await peer.post("/abort_request", {"rid": "contract-nobody"})

    assert (200, 100) == (answer.status, len((await task).ids))


async def test_abort_all(peer: Peer) -> None:
    """Every running and waiting request ends as aborted."""
    tasks = [
        asyncio.create_task(
            peer.generate(PROMPT, rid=f"contract-all{n}", max_new_tokens=peer.endless)
        )
        for n in range(3)
    ]
    await peer.until(running=3)

    await peer.post("/abort_request", {"abort_all": True})

    assert ["abort"] * 3 == [(await task).finish["type"] for task in tasks]


async def test_a_client_that_goes_away_frees_its_slot(peer: Peer) -> None:
    """Closing the connection ends the request: long before it would have ended by itself."""
    task = asyncio.create_task(peer.generate(PROMPT, max_new_tokens=peer.endless))
    await peer.until(running=1)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(5.0):
        await peer.until_idle()


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready"])
async def test_health(peer: Peer, path: str) -> None:
    """A server that works says 200."""
    assert 200 == (await peer.get(path)).status


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_server_info(peer: Peer, path: str) -> None:
    """The keys that eagled reads are there, with the right meaning."""
    info = (await peer.get(path)).body

    assert str(peer.server.model) == info["model_path"]
    assert info["max_req_input_len"] == min(peer.context, info["max_total_num_tokens"]) - 6
    assert info["version"]
    assert 0 < info["max_running_requests"]
    assert info["speculative_algorithm"] is None
    assert 1 == len(info["internal_states"])


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_model_info(peer: Peer, path: str) -> None:
    """The model names itself and its tokenizer."""
    info = (await peer.get(path)).body

    assert [str(peer.server.model)] * 2 == [info["model_path"], info["tokenizer_path"]]
    assert info["served_model_name"]


async def test_loads_show_what_runs(peer: Peer) -> None:
    """Running requests and used tokens rise while something runs, and fall to zero."""
    tasks = [
        asyncio.create_task(
            peer.generate(PROMPT, rid=f"contract-l{n}", max_new_tokens=peer.endless)
        )
        for n in range(2)
    ]
    await peer.until(running=2)
    busy = await peer.load()
    await peer.post("/abort_request", {"abort_all": True})
    await asyncio.gather(*tasks)
    await peer.until_idle()

    assert {
        "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens",
        "max_running_requests", "token_usage", "gen_throughput", "cache_hit_rate",
    } <= set(busy)  # fmt: skip
    assert peer.info["max_total_num_tokens"] == busy["max_total_num_tokens"]
    assert 0 <= busy["token_usage"] <= 1
