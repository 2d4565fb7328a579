"""The generator and what the store says to it: full disk, failure, turns, paused datasets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagled.errors import DiskError, StoreError
from eagled.paths import StatePaths
from eagled.server.client import SglangClient
from eagled.store.tools import check_database
from eagled.tokens import pack_ids
from eagled.types import Answer, Fence, Finish, SampleState, TextVerdict
from eagled.workers.generation import settle
from tests.faults import fault_file
from tests.servers.kit import (
    DEADLINE_S,
    VOCAB,
    add_prompts,
    crashed_copy,
    make_config,
    make_generator,
    open_store,
    running,
    states,
    stored_ids,
    until,
)
from tests.servers.process import ServerProcess

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A test server of its own."""
    with ServerProcess() as process:
        yield process


async def test_an_answer_waits_for_a_full_disk(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk refuses, the reply is kept; it is stored when there is room, sent once."""
    monkeypatch.setattr(settle, "DISK_RETRY_S", 0.02)
    async with running(tmp_path, make_config(server.url)) as rig:
        real, refused = rig.store.complete, asyncio.Event()

        async def complete(fence: Fence, answer: Answer) -> bool:
            if not refused.is_set():
                refused.set()
                raise DiskError("full")
            return await real(fence, answer)

        monkeypatch.setattr(rig.store, "complete", complete)
        await rig.add([PROMPT])
        states = await rig.settled(1)

    assert states == {SampleState.GENERATED: 1}
    assert refused.is_set()
    assert len(server.seen()["sent"]) == 1


async def test_a_store_that_fails_stops_the_generator(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that no retry mends comes out of `failed`; nothing more is claimed."""
    async with running(tmp_path, make_config(server.url)) as rig:

        async def claim(_lane: str, _n: int) -> list[object]:
            raise StoreError("gone")

        monkeypatch.setattr(rig.store, "claim", claim)
        await rig.add([PROMPT])
        with pytest.raises(StoreError, match="gone"):
            await asyncio.wait_for(rig.generator.failed(), DEADLINE_S)

    assert server.seen()["sent"] == []


async def test_a_next_turn_is_sent_when_it_is_woken(server: ServerProcess, tmp_path: Path) -> None:
    """A later turn that the text worker makes ready is generated after `wake`."""
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT], later_turns=1)
        await rig.settled(1)
        (job,) = await rig.store.text_jobs(5)
        prompt = pack_ids([*PROMPT, 20, 21])
        verdict = TextVerdict(job.sample_id, job.attempt, None, next_prompt=prompt)
        await rig.store.settle_text([verdict], lane_of=lambda _: "short")
        rig.generator.wake()
        states = await rig.settled(2)

    assert states == {SampleState.GENERATED: 2}
    assert [s["n_prompt"] for s in server.seen()["sent"]] == [12, 14]


async def test_a_paused_dataset_waits_and_resumes(server: ServerProcess, tmp_path: Path) -> None:
    """Only the other dataset is generated until the pause is taken back."""
    server.steps({"do": "answer", "delay_s": 0.02})
    async with running(tmp_path, make_config(server.url)) as rig:
        rig.generator.pause("short")
        await rig.add([[*PROMPT, i] for i in range(5)], dataset="a")
        await rig.add([[*PROMPT, i] for i in range(5)], dataset="b")
        await rig.store.set_dataset("a", paused=True, uid=0)
        rig.generator.resume("short")
        await rig.settled(5)
        await until(lambda: rig.generator.idle)
        paused = await rig.states()
        await rig.store.set_dataset("a", paused=False, uid=0)
        rig.generator.wake()
        states = await rig.settled(10)

    assert paused == {SampleState.GENERATED: 5, SampleState.QUEUED: 5}
    assert states == {SampleState.GENERATED: 10}


async def test_limits_and_pauses_of_the_store_are_taken_over(
    server: ServerProcess, tmp_path: Path
) -> None:
    """What an operator set in an earlier life holds from the start, and `refresh` reads it anew."""
    server.steps({"do": "never"})
    config = make_config(server.url, lanes={"short": {"limit": 9, "concurrency": "auto"}})
    store = await open_store(tmp_path, config)
    await store.set_lane("short", limit=3, uid=0)
    await store.close()
    async with running(tmp_path, config, stop_s=0.1) as rig:
        await rig.add([[*PROMPT, i] for i in range(9)])
        await until(lambda: rig.generator.in_flight("short") == 3)
        await rig.store.set_lane("short", limit=5, uid=0)
        await rig.generator.refresh()
        await until(lambda: rig.generator.in_flight("short") == 5)


async def test_metrics_tell_what_was_done(server: ServerProcess, tmp_path: Path) -> None:
    """Completions, rates and latencies of a lane; state, hash and version of a server."""
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[*PROMPT, i] for i in range(10)])
        await rig.settled(10)
        await until(lambda: rig.generator.idle)
        metrics = rig.generator.metrics()

    lane, (about,) = metrics.lanes["short"], metrics.servers
    assert (lane.in_flight, lane.completions, lane.limit) == (0, 10, 8)
    assert lane.out_tok_per_s > 0
    assert lane.in_tok_per_s > lane.out_tok_per_s
    assert lane.p50_s is not None
    assert (about.state, about.version, len(about.fingerprint)) == ("up", "0.5.23", 12)


async def test_waiting_costs_no_claims(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing queued or nothing free the generator asks the store for nothing."""
    server.steps({"do": "never"})
    config = make_config(server.url)
    store = await open_store(tmp_path, config)
    asked = []
    real = store.claim

    async def claim(lane: str, n: int) -> list[object]:
        asked.append(n)
        return list(await real(lane, n))

    monkeypatch.setattr(store, "claim", claim)
    async with SglangClient(config.servers[0], config.generation, vocab_size=VOCAB) as client:
        generator = make_generator(store, [client], config)
        await generator.start()
        await until(lambda: len(asked) == 1)
        await until(lambda: server.seen()["count"].get("/server_info", 0) >= 4)
        await generator.stop(0.1)
    await store.close()

    assert asked == [8]


@pytest.mark.fault("F56")
async def test_a_torn_tail_is_cut_off_and_done_again(tmp_path: Path) -> None:
    """Two rows whole, the third cut in the middle: two are done, one is asked again, none glued.

    What is appended here is the store's log: the torn line stands behind its last whole record.
    """
    raw = fault_file("resume/torn_tail.jsonl").read_bytes()
    *whole, torn = raw.splitlines()
    rows = [json.loads(line) for line in whole]
    config = make_config()
    store = await open_store(tmp_path / "one", config)
    await add_prompts(store, config, [[*PROMPT, i] for i in range(3)])
    claims = await store.claim("short", 3)
    for row, claim in zip(rows, claims, strict=False):
        answer = Answer(pack_ids(row["output_ids"]), Finish.STOP, "s", 0.1)
        assert await store.complete(claim.fence, answer)
    crashed = crashed_copy(tmp_path / "one", tmp_path / "two")
    await store.close()
    with (crashed / "q.db-wal").open("ab") as log:
        log.write(torn)
    store = await open_store(crashed, config)
    found = await states(store)
    (again,) = await store.claim("short", 5)
    third = Answer(pack_ids([6]), Finish.STOP, "s", 0.1)
    assert await store.complete(again.fence, third)
    answers = await stored_ids(store)
    await store.close()

    assert found == {SampleState.GENERATED: 2, SampleState.QUEUED: 1}
    assert again.fence.sample_id == claims[2].fence.sample_id
    assert answers == [[1, 2, 3], [4, 5], [6]]
    assert check_database(StatePaths(crashed)).problems == ()
