"""Servers that refuse, die, hang, lie about their health, or turn into other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.server.client import SglangClient
from eagled.server.wire import ConnectionLostError
from eagled.store.records import SampleFilter
from eagled.types import EventKind, OutputReason, SampleState
from eagled.workers import generate
from tests.servers.kit import (
    VOCAB,
    make_config,
    running,
    sample_of,
    stored_ids,
    until,
)
from tests.servers.misbehaving import IDS, MODEL
from tests.servers.process import ServerProcess
from tests.unit.generation.test_reply import request_of

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
GOOD = {"do": "answer"}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for due retries often."""
    monkeypatch.setattr(generate, "RETRY_TICK_S", 0.02)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A test server of its own: these tests kill it, or leave it hanging."""
    with ServerProcess() as process:
        yield process


def prompts(n: int) -> list[list[int]]:
    """Return `n` different prompts of 13 tokens."""
    return [[*PROMPT, i % VOCAB] for i in range(n)]


@pytest.mark.fault("F40")
async def test_two_hundred_are_in_flight_at_once(server: ServerProcess, tmp_path: Path) -> None:
    """300 requests of 2 s at 200 wide: the server sees 200 at once, and none fails by waiting.

    The last hundred are done after 4 s: a time limit that counted their waiting would end them.
    """
    lanes = {"short": {"limit": 200, "concurrency": 200}}
    config = make_config(server.url, lanes=lanes, request_timeout_s=3.9)
    server.steps({"do": "answer", "delay_s": 2.0})
    async with running(tmp_path, config) as rig:
        await rig.add(prompts(300))
        states = await rig.settled(300)
        rows = await rig.store.samples(SampleFilter(), limit=400)

    assert states == {SampleState.GENERATED: 300}
    assert server.seen()["peak"]["/generate"] == 200
    assert {row.attempt for row in rows} == {1}


@pytest.mark.fault("F40")
def test_the_time_limit_is_well_above_five_minutes() -> None:
    """By default a reply may take an hour."""
    assert make_config().generation.request_timeout_s == 3600


@pytest.mark.fault("F41")
async def test_a_dead_kept_alive_connection_costs_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Connections that end unsaid after each reply: 500 of 500 stored, none charged."""
    server.steps({"do": "answer", "close": True})
    lanes = {"short": {"limit": 20, "concurrency": 20}}
    async with running(tmp_path, make_config(server.url, lanes=lanes)) as rig:
        await rig.add(prompts(500))
        states = await rig.settled(500)
        rows = await rig.store.samples(SampleFilter(), limit=600)
        faults = rig.generator.metrics().servers[0].faults

    assert states == {SampleState.GENERATED: 500}
    assert {(row.attempt, row.failures) for row in rows} == {(1, 0)}
    assert faults == 0


@pytest.mark.fault("F41")
async def test_the_request_that_met_a_dead_connection_is_sent_again_at_once(
    server: ServerProcess,
) -> None:
    """A reused connection that ends before any byte of reply: one fresh sending, same rid."""
    server.steps(GOOD, {"do": "vanish"}, GOOD)
    config = make_config(server.url)
    async with SglangClient(config.servers[0], config.generation, vocab_size=VOCAB) as client:
        await client.generate(request_of([1, 2], rid="a"))
        second = await client.generate(request_of([1, 2], rid="b"))
        resends = client.stale_resends

    assert second.output.tolist() == IDS
    assert resends == 1
    assert [s["rid"] for s in server.seen()["sent"]] == ["a", "b", "b"]


async def test_a_new_connection_that_ends_unanswered_is_a_fault(server: ServerProcess) -> None:
    """A server that drops a fresh connection had the request: no free second sending."""
    server.steps({"do": "vanish"}, GOOD)
    config = make_config(server.url)
    async with SglangClient(config.servers[0], config.generation, vocab_size=VOCAB) as client:
        with pytest.raises(ConnectionLostError):
            await client.generate(request_of([1, 2]))
        resends = client.stale_resends

    assert resends == 0


@pytest.mark.fault("F46")
@pytest.mark.parametrize("loads", ["missing", "flat"])
async def test_a_hung_server_is_found_by_lack_of_progress(
    server: ServerProcess, tmp_path: Path, loads: str
) -> None:
    """Health says 200 and nothing moves: state stuck within the limit, all work given back."""
    server.set(loads=loads, generate=[{"do": "never"}])
    config = make_config(server.url, hang_s=0.8, probe_interval_s=5)
    async with running(tmp_path, config, stop_s=0.1) as rig:
        await rig.add(prompts(12))
        await until(lambda: rig.server_state() == "stuck")

        async def all_queued() -> bool:
            return await rig.states() == {SampleState.QUEUED: 12}

        await until(all_queued)
        rows = await rig.store.samples(SampleFilter(), limit=20)
        stuck = await rig.happened(EventKind.SERVER_STUCK)

    assert {(row.failures, row.state) for row in rows} == {(0, SampleState.QUEUED)}
    assert ["server stuck" in text for text in stuck] == [True]
    assert len(server.seen()["aborted"]) == 8


@pytest.mark.fault("F46")
async def test_a_stuck_server_that_recovers_is_used_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    """After the hang is over one trial request opens the way for the rest."""
    server.set(loads="flat", generate=[{"do": "never"}])
    async with running(tmp_path, make_config(server.url, hang_s=0.6)) as rig:
        await rig.add(prompts(12))
        await until(lambda: rig.server_state() == "stuck")
        server.steps(GOOD)
        states = await rig.settled(12)
        assert rig.server_state() == "up"

    assert states == {SampleState.GENERATED: 12}


@pytest.mark.fault("F46")
async def test_a_frozen_server_is_found_and_used_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A process that stands still with open sockets: stuck in time, work back, later done."""
    server.set(loads="moving", generate=[{"do": "answer", "delay_s": 0.3}])
    async with running(tmp_path, make_config(server.url, hang_s=0.8)) as rig:
        await rig.add(prompts(30))
        await rig.settled(8)
        server.freeze()
        await until(lambda: rig.server_state() == "stuck")
        await until(lambda: rig.generator.in_flight("short") == 0)
        server.thaw()
        states = await rig.settled(30)

    assert states == {SampleState.GENERATED: 30}


async def test_slow_but_moving_is_not_stuck(server: ServerProcess, tmp_path: Path) -> None:
    """Replies that take longer than the hang limit are waited for while tokens move."""
    server.set(loads="moving", generate=[{"do": "answer", "delay_s": 2.5}])
    async with running(tmp_path, make_config(server.url, hang_s=1.5)) as rig:
        await rig.add(prompts(8))
        states = await rig.settled(8)
        events = await rig.store.events(0, 20)

    assert states == {SampleState.GENERATED: 8}
    assert EventKind.SERVER_STUCK not in {e.kind for e in events}


@pytest.mark.fault("F47")
async def test_failing_health_does_not_stop_a_server_that_answers(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Health 503 and slow all along, replies arriving: nothing opens, at most one probe runs."""
    health = {"status": 503, "delay_s": 1.0}
    server.set(health=health, generate=[{"do": "answer", "delay_s": 0.05}])
    config = make_config(server.url, probe_interval_s=0.05)
    async with running(tmp_path, config) as rig:
        await rig.add(prompts(100))
        states = await rig.settled(100)
        probes = [asyncio.create_task(rig.clients[0].health()) for _ in range(5)]
        healthy = await asyncio.gather(*probes)
        events = await rig.store.events(0, 20)

    seen = server.seen()
    assert states == {SampleState.GENERATED: 100}
    assert healthy == [False] * 5
    assert seen["peak"]["/health"] == 1
    assert EventKind.SERVER_DOWN not in {e.kind for e in events}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"error": {"message": "boom"}}),
        (502, {"object": "error", "message": "bad gateway", "code": 502}),
        (503, {"object": "error", "message": "The request queue is full.", "code": 503}),
        (429, {"error": "slow down"}),
        (408, ""),
    ],
)
async def test_server_statuses_are_retried_and_charge_nobody(
    server: ServerProcess, tmp_path: Path, status: int, body: Any
) -> None:
    """Each such status leads to another try; the sample's failures stay 0."""
    server.steps({"do": "status", "status": status, "body": body}, GOOD)
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    assert (sample.row.attempt, sample.row.failures) == (2, 0)


async def test_retry_after_is_kept(server: ServerProcess, tmp_path: Path) -> None:
    """A server that asks for one second of pause gets it."""
    headers = {"Retry-After": "1"}
    server.steps({"do": "status", "status": 503, "headers": headers}, GOOD)
    loop = asyncio.get_running_loop()
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await until(lambda: len(server.seen()["sent"]) == 1)
        began = loop.time()
        await rig.settled(1)

    assert loop.time() - began >= 0.9


@pytest.mark.parametrize("body", [{"error": {"message": "bad"}}, {"object": "error"}])
async def test_a_refused_request_is_final(
    server: ServerProcess, tmp_path: Path, body: dict[str, Any]
) -> None:
    """A 400 of either shape ends the sample with its reason after one sending."""
    server.steps({"do": "status", "status": 400, "body": body})
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.REJECTED)

    assert sample.row.reason == OutputReason.REFUSED_BY_SERVER
    assert len(server.seen()["sent"]) == 1


async def test_ids_outside_the_vocabulary_are_never_sent(
    server: ServerProcess, tmp_path: Path
) -> None:
    """One id too high would kill the server: rejected here, the server sees nothing."""
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[1, 2, VOCAB, 3]])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.REJECTED)

    assert sample.row.reason == OutputReason.ID_OUT_OF_VOCABULARY
    assert server.seen()["sent"] == []


@pytest.mark.parametrize(
    "step",
    [
        {"do": "reset"},
        {"do": "half"},
        {"do": "garbage"},
        {"do": "answer", "ids": []},
        {"do": "answer", "ids": [1, VOCAB]},
        {"do": "answer", "meta": {"finish_reason": {"type": "stop", "matched": "NaN happened"}}},
        {"do": "answer", "meta": {"finish_reason": None}},
    ],
)
async def test_broken_replies_lead_to_another_try(
    server: ServerProcess, tmp_path: Path, step: dict[str, Any]
) -> None:
    """Reset, half, garbage, no ids, wrong ids, NaN, no end: not stored; the next answer is."""
    server.steps(step, GOOD)
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        answers = await stored_ids(rig.store)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    assert answers == [IDS]
    assert sample.row.attempt == 2
    assert len(sample.failures_log) == 1


async def test_a_slow_reply_is_waited_for(server: ServerProcess, tmp_path: Path) -> None:
    """A reply that dribbles in is one good reply."""
    server.steps({"do": "slow"})
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        answers = await stored_ids(rig.store)

    assert answers == [IDS]


@pytest.mark.parametrize(
    "step",
    [
        {"do": "answer", "ids": []},
        {"do": "status", "status": 500, "body": {"error": "boom"}},
        {"do": "reset"},
    ],
)
async def test_one_bad_sample_cannot_keep_a_run_from_its_end(
    server: ServerProcess, tmp_path: Path, step: dict[str, Any]
) -> None:
    """A sample that only ever gets faults is given up in the end; all others are done."""
    server.set(poison={"id": 99, "step": step})
    config = make_config(server.url, probe_interval_s=0.02, retry_max_s=0.05)
    async with running(tmp_path, config) as rig:
        await rig.add([[*PROMPT, 99], *prompts(30)])
        states = await rig.settled(31)
        sample = await sample_of(rig.store, SampleState.FAILED)

    assert states == {SampleState.GENERATED: 30, SampleState.FAILED: 1}
    assert sample.row.reason == OutputReason.TOO_MANY_FAILURES
    assert sample.row.failures == 3


async def test_a_sample_that_hangs_servers_is_given_up(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A sample over which the server hangs each time ends as failed, and harms no other."""
    server.set(loads="flat", poison={"id": 99, "step": {"do": "never"}})
    config = make_config(server.url, hang_s=0.1, probe_interval_s=0.02, retry_max_s=0.05)
    async with running(tmp_path, config) as rig:
        await rig.add([[*PROMPT, 99], *prompts(10)])
        states = await rig.settled(11)
        sample = await sample_of(rig.store, SampleState.FAILED)

    assert states == {SampleState.GENERATED: 10, SampleState.FAILED: 1}
    assert sample.row.reason == OutputReason.TOO_MANY_FAILURES


@pytest.mark.parametrize("kept_alive", [False, True])
async def test_a_server_that_dies_charges_nobody(
    server: ServerProcess, tmp_path: Path, *, kept_alive: bool
) -> None:
    """Eight in flight at a crash: all given back, crashes 1, failures 0; done after the restart.

    Also right after sending on connections that were used before: a dead server is no stale
    connection.
    """
    async with running(tmp_path, make_config(server.url)) as rig:
        if kept_alive:
            await rig.add(prompts(8), dataset="before")
            await rig.settled(8)
        server.steps({"do": "answer", "delay_s": 30})
        await rig.add(prompts(8))
        n = 16 if kept_alive else 8
        await until(lambda: len(server.seen()["sent"]) == n)
        server.kill()
        await until(lambda: rig.server_state() == "down")

        async def all_queued() -> bool:
            return (await rig.states()).get(SampleState.QUEUED) == 8

        await until(all_queued)
        server.start()
        await rig.settled(n)
        rows = await rig.store.samples(SampleFilter(dataset="d"), limit=20)
        details = [await rig.store.sample(row.uid) for row in rows]

    assert {row.state for row in rows} == {SampleState.GENERATED}
    assert {(d.row.failures, d.crashes) for d in details if d} == {(0, 1)}


async def test_a_sample_that_kills_servers_is_quarantined(
    server: ServerProcess, tmp_path: Path
) -> None:
    """In flight at three crashes: failed as quarantined, and no fourth server dies."""
    killer = {"id": 99, "step": {"do": "die"}}
    server.set(poison=killer)
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[*PROMPT, 99]])
        for _ in range(2):
            await until(server.ended)
            await until(lambda: rig.server_state() == "down")
            server.kill()
            server.start(poison=killer)
        await until(server.ended)
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.FAILED)

    assert sample.row.reason == OutputReason.QUARANTINED
    assert sample.crashes == 3


async def test_faults_in_a_row_close_a_server_and_a_trial_reopens_it(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Five faults in a row stop the sending; once the server answers, everything is done."""
    server.steps({"do": "status", "status": 500, "body": {"error": {"message": "boom"}}})
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add(prompts(20))
        await until(lambda: rig.server_state() in ("down", "trial"))
        sent = len(server.seen()["sent"])
        server.steps(GOOD)
        states = await rig.settled(20)
        rows = await rig.store.samples(SampleFilter(), limit=30)

    assert sent <= 5 + 8
    assert states == {SampleState.GENERATED: 20}
    assert {row.failures for row in rows} == {0}


async def test_another_model_is_refused_and_nothing_is_mixed(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A server that comes back with another model gets nothing; the event names both."""
    config = make_config(server.url)
    async with running(tmp_path, config) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
    server.set(model=MODEL | {"model_path": "/models/other"})
    before = len(server.seen()["sent"])
    async with running(tmp_path, config) as rig:
        await rig.add(prompts(3), dataset="e")
        refused = await rig.happened(EventKind.SERVER_REFUSED)
        states = await rig.states()
        server.set(model=MODEL)
        later = await rig.settled(4)

    assert states == {SampleState.GENERATED: 1, SampleState.QUEUED: 3}
    assert ["/models/toy" in text and "/models/other" in text for text in refused] == [True]
    assert later == {SampleState.GENERATED: 4}
    assert len(server.seen()["sent"]) - before == 3


async def test_a_server_swapped_under_open_work_stores_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A restart as another model between two requests is noticed before an answer is stored."""
    config = make_config(server.url, probe_interval_s=30, hang_s=200)
    async with running(tmp_path, config) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        server.kill()
        server.start()
        server.set(model=MODEL | {"served_model_name": "other"})
        await rig.add(prompts(3), dataset="e")
        await until(lambda: rig.server_state() == "refused")

        async def all_back() -> bool:
            return (await rig.states()).get(SampleState.QUEUED) == 3

        await until(all_back)
        states = await rig.states()

    assert states == {SampleState.GENERATED: 1, SampleState.QUEUED: 3}


async def test_a_wrong_key_stops_the_server_not_the_samples(
    server: ServerProcess, tmp_path: Path
) -> None:
    """401 closes the endpoint, says why, and charges nobody."""
    server.steps({"do": "status", "status": 401, "body": {"error": "Unauthorized"}})
    async with running(tmp_path, make_config(server.url, probe_interval_s=5)) as rig:
        await rig.add([PROMPT])
        await until(lambda: rig.server_state() == "refused")

        async def queued() -> bool:
            return await rig.states() == {SampleState.QUEUED: 1}

        await until(queued)
        refused = await rig.happened(EventKind.SERVER_REFUSED)

    assert ["api_key_file" in text for text in refused] == [True]


async def test_an_overdue_request_is_aborted_and_tried_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    """After the time limit its rid is aborted, the abort confirmed, and the sample retried."""
    server.steps({"do": "never"}, GOOD)
    config = make_config(server.url, request_timeout_s=0.4)
    async with running(tmp_path, config) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    seen = server.seen()
    assert [row.kind for row in sample.failures_log] == ["ServerTimeoutError"]
    assert seen["aborted"] == [seen["sent"][0]["rid"]]
    assert sample.row.attempt == 2


async def test_two_servers_share_and_a_conversation_stays(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Forty samples on two servers go to both; each server takes about half."""
    with ServerProcess() as other:
        for each in (server, other):
            each.steps({"do": "answer", "delay_s": 0.05})
        async with running(tmp_path, make_config(server.url, other.url)) as rig:
            await until(lambda: rig.server_state(0) == rig.server_state(1) == "up")
            await rig.add(prompts(40))
            states = await rig.settled(40)
        shares = [len(each.seen()["sent"]) for each in (server, other)]

    assert states == {SampleState.GENERATED: 40}
    assert sum(shares) == 40
    assert min(shares) >= 12


async def test_when_one_of_two_servers_dies_the_other_does_the_rest(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Work of the dead server moves to the living one."""
    with ServerProcess() as other:
        for each in (server, other):
            each.steps({"do": "answer", "delay_s": 0.1})
        async with running(tmp_path, make_config(server.url, other.url)) as rig:
            await rig.add(prompts(40))
            await until(lambda: len(other.seen()["sent"]) > 0)
            other.kill()
            states = await rig.settled(40)

    assert states == {SampleState.GENERATED: 40}
