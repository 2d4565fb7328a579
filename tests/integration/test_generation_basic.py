"""The generator against a server that behaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagled.types import EventKind, SampleState
from tests.servers.kit import crashed_copy, make_config, running, stored_ids, until
from tests.servers.misbehaving import IDS
from tests.servers.process import ServerProcess

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A test server of its own."""
    with ServerProcess() as process:
        yield process


async def test_every_queued_sample_is_sent_once_and_stored(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Fifty samples make fifty requests with their exact ids and fifty stored answers."""
    prompts = [[*PROMPT, i] for i in range(50)]
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add(prompts)
        states = await rig.settled(50)
        answers = await stored_ids(rig.store)

    sent = server.seen()["sent"]
    assert states == {SampleState.GENERATED: 50}
    assert answers == [IDS] * 50
    assert len({s["rid"] for s in sent}) == len(sent) == 50
    assert {s["n_prompt"] for s in sent} == {13}
    assert sent[0]["sampling"]["skip_special_tokens"] is False
    assert sent[0]["sampling"]["no_stop_trim"] is True
    assert sent[0]["sampling"]["max_new_tokens"] == 100


async def test_a_lane_keeps_its_width_and_never_more(server: ServerProcess, tmp_path: Path) -> None:
    """With 8 at once and 40 samples the server sees 8 in flight, never 9."""
    server.steps({"do": "answer", "delay_s": 0.05})
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[*PROMPT, i] for i in range(40)])
        await rig.settled(40)

    assert server.seen()["peak"]["/generate"] == 8


async def test_pause_lets_running_ones_finish_and_resume_goes_on(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A paused lane claims nothing more; resumed, it does the rest."""
    server.steps({"do": "answer", "delay_s": 0.2})
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[*PROMPT, i] for i in range(24)])
        await until(lambda: rig.generator.in_flight("short") == 8)
        rig.generator.pause("short")
        await until(lambda: rig.generator.idle)
        paused = await rig.states()
        rig.generator.resume("short")
        states = await rig.settled(24)

    assert paused == {SampleState.GENERATED: 8, SampleState.QUEUED: 16}
    assert states == {SampleState.GENERATED: 24}


async def test_a_raised_limit_takes_effect_at_once(server: ServerProcess, tmp_path: Path) -> None:
    """Raising a limit from 2 to 6 is seen at the server without a restart."""
    server.steps({"do": "never"})
    config = make_config(server.url, lanes={"short": {"limit": 2, "concurrency": "auto"}})
    async with running(tmp_path, config, stop_s=0.1) as rig:
        await rig.add([[*PROMPT, i] for i in range(20)])
        await until(lambda: rig.generator.in_flight("short") == 2)
        rig.generator.set_limit("short", 6)
        await until(lambda: rig.generator.in_flight("short") == 6)


async def test_drain_ends_with_nothing_in_flight(server: ServerProcess, tmp_path: Path) -> None:
    """A drained generator finishes what runs and claims nothing, until it is taken back."""
    server.steps({"do": "answer", "delay_s": 0.1})
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[*PROMPT, i] for i in range(20)])
        await until(lambda: rig.generator.in_flight("short") == 8)
        rig.generator.drain()
        await until(lambda: rig.generator.idle)
        drained = await rig.states()
        rig.generator.undrain()
        states = await rig.settled(20)

    assert drained[SampleState.QUEUED] == 12
    assert states == {SampleState.GENERATED: 20}


async def test_stop_gives_back_what_runs_uncharged(server: ServerProcess, tmp_path: Path) -> None:
    """What cannot finish within the stop time is aborted at the server and queued, uncharged."""
    server.steps({"do": "never"})
    async with running(tmp_path, make_config(server.url), stop_s=0.1) as rig:
        await rig.add([[*PROMPT, i] for i in range(12)])
        await until(lambda: len(server.seen()["sent"]) == 8)
        left = await rig.generator.stop(0.1)
        states = await rig.states()
        aborted = server.seen()["aborted"]
        rows = await rig.store.samples(limit=20)

    assert left == 8
    assert states == {SampleState.QUEUED: 12}
    assert sorted(aborted) == sorted(s["rid"] for s in server.seen()["sent"])
    assert {row.failures for row in rows} == {0}


async def test_left_overs_of_an_earlier_life_are_aborted(
    server: ServerProcess, tmp_path: Path
) -> None:
    """After a crash of the daemon the rids that were in flight are aborted at the start."""
    server.steps({"do": "never"})
    config = make_config(server.url)
    async with running(tmp_path / "one", config, stop_s=0.1) as rig:
        await rig.add([PROMPT])
        await until(lambda: len(server.seen()["sent"]) == 1)
        rid = server.seen()["sent"][0]["rid"]
        crashed = crashed_copy(tmp_path / "one", tmp_path / "two")
    async with running(crashed, config, stop_s=0.1):
        await until(lambda: rid in server.seen()["aborted"])


async def test_server_comes_up_later(tmp_path: Path) -> None:
    """Work that waits for a server that is not there yet begins when it comes, uncharged."""
    process = ServerProcess()
    with process:
        url = process.url
        process.kill()
        async with running(tmp_path, make_config(url)) as rig:
            await rig.add([PROMPT])
            await until(lambda: rig.server_state() == "down")
            process.start()
            states = await rig.settled(1)
            events = await rig.store.events(0, 50)

    kinds = [e.kind for e in events if e.subject == url]
    assert states == {SampleState.GENERATED: 1}
    assert kinds == [EventKind.SERVER_DOWN, EventKind.SERVER_UP]
