"""What is left behind at a server: ghosts, aborts, hangs that only counters show, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.store.records import SampleFilter
from eagled.types import EventKind, OutputReason, SampleState
from eagled.workers import generate
from eagled.workers.generation import ghosts
from tests.servers.kit import Rig, make_config, running, sample_of, stored_ids, until
from tests.servers.misbehaving import IDS, INFO, MODEL
from tests.servers.process import ServerProcess

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
GOOD = {"do": "answer"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for due retries and ghosts often."""
    monkeypatch.setattr(generate, "RETRY_TICK_S", 0.02)
    monkeypatch.setattr(ghosts, "GRACE_S", 0.05)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A test server of its own."""
    with ServerProcess() as process:
        yield process


def prompts(n: int) -> list[list[int]]:
    """Return `n` different prompts of 13 tokens."""
    return [[*PROMPT, i] for i in range(n)]


async def kinds(rig: Rig) -> list[EventKind]:
    """Return the kinds of all events so far."""
    return [event.kind for event in await rig.store.events(0, 100)]


async def test_a_ghost_is_aborted_by_its_rid(server: ServerProcess, tmp_path: Path) -> None:
    """A request that lost its connection and runs on is ended there, and asked again."""
    server.set(loads="flat", generate=[{"do": "ghost"}, GOOD])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        await until(lambda: server.seen()["count"].get("ghosts ended") == 1)
        answers = await stored_ids(rig.store)

    seen = server.seen()
    assert answers == [IDS]
    assert seen["aborted"] == [seen["sent"][0]["rid"]]
    assert [s["rid"] != seen["aborted"][0] for s in seen["sent"][1:]] == [True]


async def test_ghosts_that_outlive_an_abort_are_found_by_the_servers_count(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Deaf to the first abort, the server still counts one request too many: aborted again."""
    server.set(loads="flat", deaf_aborts=1, generate=[{"do": "ghost"}, GOOD])
    async with running(tmp_path, make_config(server.url, probe_interval_s=0.1)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        await until(lambda: server.seen()["count"].get("ghosts ended") == 1)
        await until(lambda: not len(rig.generator._monitors[_only(rig)]._ghosts))
        found = await rig.happened(EventKind.SERVER_GHOSTS)

    assert len(found) == 1
    assert len(server.seen()["aborted"]) >= 2
    assert len(set(server.seen()["aborted"])) == 1


def _only(rig: Rig) -> Any:
    (endpoint,) = rig.generator._router.endpoints
    return endpoint


async def test_others_requests_are_left_alone(server: ServerProcess, tmp_path: Path) -> None:
    """A server that somebody else uses too gets no abort of ours."""
    busy = {"loads": [{"num_running_reqs": 50, "num_waiting_reqs": 9, "num_used_tokens": 7}]}
    server.set(bodies={"/v1/loads": busy}, generate=[{"do": "answer", "delay_s": 0.05}])
    async with running(tmp_path, make_config(server.url, probe_interval_s=0.05)) as rig:
        await rig.add(prompts(20))
        await rig.settled(20)
        found = await kinds(rig)

    assert server.seen()["aborted"] == []
    assert EventKind.SERVER_GHOSTS not in found


async def test_an_abort_ends_one_request_where_rids_are_prefixes(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The server ends everything that begins with the given rid: of twelve, one ends."""
    server.set(prefix_abort=True, generate=[{"do": "never"}])
    lanes = {"short": {"limit": 12, "concurrency": 12}}
    async with running(tmp_path, make_config(server.url, lanes=lanes), stop_s=0.1) as rig:
        await rig.add(prompts(12))
        await until(lambda: len(server.seen()["sent"]) == 12)
        rids = [s["rid"] for s in server.seen()["sent"]]
        await rig.clients[0].abort(rids[0])
        await until(lambda: server.seen()["now"]["/generate"] < 12)

        async def one_waits() -> bool:
            return (await rig.states()).get(SampleState.GENERATING) == 11

        await until(one_waits)
        left = server.seen()["now"]["/generate"]

    assert {len(rid) for rid in rids} == {63}
    assert left == 11


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("model_path", {"model": MODEL | {"model_path": "/models/other"}}),
        ("tokenizer_path", {"model": MODEL | {"tokenizer_path": "/models/other"}}),
        ("served_name", {"model": MODEL | {"served_model_name": "other"}}),
        ("context", {"info": INFO | {"context_length": 4096, "max_req_input_len": 4090}}),
    ],
)
async def test_a_server_that_comes_back_as_another_is_refused(
    server: ServerProcess, tmp_path: Path, what: str, change: dict[str, Any]
) -> None:
    """Restarted with another model, tokenizer or context in the middle: nothing is mixed."""
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        server.set(generate=[{"do": "answer", "delay_s": 30}])
        await rig.add(prompts(4), dataset="e")
        await until(lambda: len(server.seen()["sent"]) == 5)
        server.kill()
        server.start(**change)
        await until(lambda: rig.server_state() == "refused")

        async def back() -> bool:
            return (await rig.states()).get(SampleState.QUEUED) == 4

        await until(back)
        server.set(info=INFO, model=MODEL, generate=[GOOD])
        states = await rig.settled(5)
        refused = await rig.happened(EventKind.SERVER_REFUSED)

    assert [what in text for text in refused] == [True]
    assert states == {SampleState.GENERATED: 5}


async def test_a_row_that_always_fails_is_charged_and_its_server_is_not(
    server: ServerProcess, tmp_path: Path
) -> None:
    """One prompt's 500, again and again while others are answered: the sample fails, soon."""
    boom = {"do": "status", "status": 500, "body": {"error": {"message": "boom"}}}
    server.set(poison={"id": 99, "step": boom}, generate=[{"do": "answer", "delay_s": 0.1}])
    config = make_config(server.url, retry_base_s=0.01, retry_max_s=0.02, breaker_failures=3)
    async with running(tmp_path, config) as rig:
        await rig.add([[*PROMPT, 99], *prompts(90)])
        states = await rig.settled(91)
        sample = await sample_of(rig.store, SampleState.FAILED)
        found = await kinds(rig)

    tries = [s for s in server.seen()["sent"] if s["last"] == 99]
    assert states == {SampleState.GENERATED: 90, SampleState.FAILED: 1}
    assert sample.row.reason == OutputReason.TOO_MANY_FAILURES
    assert sample.row.failures == 3
    assert 5 <= len(tries) == sample.row.attempt < 8  # a try before others were answered is free
    assert EventKind.SERVER_DOWN not in found


async def test_tokens_counted_in_the_metrics_are_progress(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Tokens held stand still, tokens made do not: long replies are waited for."""
    server.set(loads="flat", metrics="moving", generate=[{"do": "answer", "delay_s": 2.5}])
    async with running(tmp_path, make_config(server.url, hang_s=1.5)) as rig:
        await rig.add(prompts(8))
        states = await rig.settled(8)
        found = await kinds(rig)

    assert states == {SampleState.GENERATED: 8}
    assert EventKind.SERVER_STUCK not in found


async def test_a_counter_that_stands_still_is_no_progress(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Neither tokens held nor tokens made move: stuck, although /health says 200."""
    still = "sglang:realtime_tokens_total 40\nsglang:num_running_reqs 8\n"
    server.set(loads="flat", metrics=still, generate=[{"do": "never"}])
    async with running(tmp_path, make_config(server.url, hang_s=0.4), stop_s=0.1) as rig:
        await rig.add(prompts(8))
        await until(lambda: rig.server_state() == "stuck")


async def test_a_stuck_server_that_lets_nothing_go_is_started_anew(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Aborts that the server's count does not confirm within the hang limit lead to a restart."""
    server.set(loads="flat", deaf_aborts=10_000, generate=[{"do": "never"}])
    asked: list[tuple[str, str]] = []

    def restart(url: str, reason: str) -> bool:
        asked.append((url, reason))
        return True

    async with running(tmp_path, make_config(server.url, hang_s=0.4), stop_s=0.1) as rig:
        rig.generator.restart_server = restart
        await rig.add(prompts(8))
        await until(lambda: bool(asked))

        async def all_queued() -> bool:
            return await rig.states() == {SampleState.QUEUED: 8}

        await until(all_queued)

    assert [url for url, _ in asked[:1]] == [server.url]
    assert "aborted" in asked[0][1]


@pytest.mark.parametrize(("status", "n"), [(413, 1), (422, 1)])
async def test_statuses_that_refuse_for_good(
    server: ServerProcess, tmp_path: Path, status: int, n: int
) -> None:
    """A request that is too large or makes no sense is never sent again."""
    server.set(generate=[{"do": "status", "status": status, "body": {"error": "no"}}])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        rows = await rig.store.samples(SampleFilter(state=SampleState.REJECTED))

    assert len(rows) == 1
    assert len(server.seen()["sent"]) == n
