"""What the daemon brings in and puts right: prepared folders, shard files, corpus members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eagled.clock import FakeClock
from eagled.config import Config
from eagled.daemon_enqueue import Enqueued, enqueue_folder
from eagled.daemon_merge import CorpusQueue
from eagled.daemon_shards import reconcile_shards, shard_totals
from eagled.daemon_thread import Readers
from eagled.errors import ArtifactError
from eagled.lanes import ordered_lanes
from eagled.paths import StatePaths
from eagled.store import LaneRow, StateLock, Store, StoreReader
from eagled.tokens import pack_ids
from eagled.types import (
    Answer,
    EventKind,
    ExtractJob,
    Finish,
    SampleState,
    ShardMember,
    ShardRecord,
    TextVerdict,
)
from eagled.workers.merge import merge_run
from eagled.workers.prepare import prepare_dataset
from tests.faults import fault_file, fault_row
from tests.prep_kit import any_lane, toy_config, toy_renderer, write_jsonl
from tests.servers.kit import add_prompts, states
from tests.unit.shards.helpers import sample, write_shard

CONFIG = Config.model_validate({"target": {"model": "m"}, "generation": {"min_reply": 1}})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store with the default lanes."""
    paths = StatePaths(tmp_path / "state")
    rows = [LaneRow(n, i, c.context, c.limit) for i, (n, c) in enumerate(ordered_lanes(CONFIG))]
    with StateLock(paths.lock):
        async with await Store.open(paths, clock=FakeClock(), create=True) as store:
            await store.sync_lanes(rows)
            yield store


def _prepared(folder: Path, n: int, name: str = "d") -> Path:
    folder.mkdir(exist_ok=True)
    rows = [{"messages": [{"role": "user", "content": f"Question {name} {i}"}]} for i in range(n)]
    source = write_jsonl(folder / f"{name}.jsonl", *rows)
    config = toy_config(folder / "state", source, dataset={"name": name})
    return prepare_dataset(config, config.datasets[0], renderer=toy_renderer()).folder


async def test_a_prepared_folder_comes_in_once(store: Store, tmp_path: Path) -> None:
    """The second time the folder is known from its manifest; an event names the numbers."""
    folder = _prepared(tmp_path, 450)
    first = await enqueue_folder(store, CONFIG, folder, any_lane)
    second = await enqueue_folder(store, CONFIG, folder, any_lane)
    events = [e for e in await store.events(0, 100) if e.kind is EventKind.ENQUEUED]

    assert (Enqueued("d", 450, 0, 0, 0), Enqueued("d", 0, 450, 0, 0)) == (first, second)
    assert {SampleState.QUEUED: 450} == await states(store)
    assert [("d", str(first))] == [(event.subject, event.detail) for event in events]


async def test_an_interrupted_enqueue_goes_on_where_it_stopped(
    store: Store, tmp_path: Path
) -> None:
    """What came in before a crash is known; the rest is added; nothing is doubled."""
    folder = _prepared(tmp_path, 450)
    calls = 0

    def failing_lane(_n: int) -> str:
        nonlocal calls
        calls += 1
        if calls > 300:
            raise RuntimeError("the daemon dies here")
        return "short"

    with pytest.raises(RuntimeError):
        await enqueue_folder(store, CONFIG, folder, failing_lane)
    half = sum((await states(store)).values())
    done = await enqueue_folder(store, CONFIG, folder, any_lane)

    assert 0 < half < 450
    assert Enqueued("d", 450 - half, half, 0, 0) == done
    assert {SampleState.QUEUED: 450} == await states(store)


async def test_a_prompt_that_no_lane_takes_is_counted_never_cut(
    store: Store, tmp_path: Path
) -> None:
    """Too long conversations are left out with their number; the others are queued."""
    folder = _prepared(tmp_path, 10)
    lanes = iter(["short"] * 7 + [None] * 3)
    done = await enqueue_folder(store, CONFIG, folder, lambda _: next(lanes))

    assert (7, 3) == (done.added, done.too_long)
    assert "3 longer than any lane" in str(done)


async def test_a_folder_made_anew_from_other_rows_is_refused(store: Store, tmp_path: Path) -> None:
    """A dataset whose name is in the queue from another preparation is not mixed in."""
    await enqueue_folder(store, CONFIG, _prepared(tmp_path / "one", 3), any_lane)
    with pytest.raises(ArtifactError):
        await enqueue_folder(store, CONFIG, _prepared(tmp_path / "two", 4), any_lane)

    assert {SampleState.QUEUED: 3} == await states(store)


async def _generate(store: Store, n: int) -> None:
    for claim in await store.claim("short", n):
        await store.complete(claim.fence, Answer(pack_ids([7, 8]), Finish.STOP, "fp", 0.1))
    jobs = await store.text_jobs(n)
    verdicts = [TextVerdict(job.sample_id, job.attempt, None) for job in jobs]
    await store.settle_text(verdicts, lane_of=any_lane)


async def _shard(store: Store, folder: Path, jobs: list[ExtractJob], number: int) -> ShardRecord:
    """Write and commit a shard with one sample for each job."""
    shard = write_shard(folder, [sample(number * 100 + i) for i in range(len(jobs))])
    members = [ShardMember(job.fence, i) for i, job in enumerate(jobs)]
    result = await store.commit_shard(shard.record, members)
    assert len(jobs) == result.accepted
    return shard.record


async def _with_shards(store: Store, paths: StatePaths) -> list[ShardRecord]:
    """Commit three shards of two samples each."""
    await add_prompts(store, CONFIG, [[1, 2, i] for i in range(6)])
    await _generate(store, 6)
    return [
        await _shard(store, paths.shards, await store.claim_extract(2, 10_000, worker="w"), number)
        for number in range(3)
    ]


async def test_shards_that_are_whole_stay(store: Store, tmp_path: Path) -> None:
    """A start on an orderly folder changes nothing."""
    paths = StatePaths(tmp_path / "state")
    await _with_shards(store, paths)

    assert [] == await reconcile_shards(store, paths)
    assert {SampleState.EXTRACTED: 6} == await states(store)


@pytest.mark.fault("F73")
async def test_what_is_not_whole_is_set_aside_and_extracted_again(
    store: Store, tmp_path: Path
) -> None:
    """A torn, a missing and an unknown shard: named, moved, and their samples wait again."""
    assert "moved aside and its samples queued again" in fault_row("F73")["expect"]
    paths = StatePaths(tmp_path / "state")
    records = await _with_shards(store, paths)
    torn, gone = paths.shards / records[0].name, paths.shards / records[1].name
    torn.write_bytes(torn.read_bytes()[:-10])
    gone.unlink()
    unknown = paths.shards / "unknown.safetensors"
    unknown.write_bytes(fault_file("disk/cut_data.safetensors").read_bytes())
    (paths.shards / "left.safetensors.tmp").write_bytes(b"half")
    lines = await reconcile_shards(store, paths)
    again = await reconcile_shards(store, paths)

    assert {SampleState.EXTRACTED: 2, SampleState.GENERATED: 4} == await states(store)
    assert {records[0].name, records[1].name, unknown.name} == {line.split()[1] for line in lines}
    assert [] == again
    assert {records[0].name, unknown.name} == {p.name for p in paths.quarantine.iterdir()}
    assert [records[2].name] == [p.name for p in paths.shards.iterdir()]
    assert 1 == shard_totals(await store.shards()).shards


async def test_only_members_of_the_corpus_are_extracted_after_a_merge(
    store: Store, tmp_path: Path
) -> None:
    """Answers that came after the merge are not handed out; members that come back are."""
    paths = StatePaths(tmp_path / "state")
    config = toy_config(paths.root, tmp_path / "none", merge={"holdout": 0.0})
    await add_prompts(store, CONFIG, [[1, 2, i] for i in range(6)])
    await _generate(store, 4)
    queue = CorpusQueue(paths, Readers())
    before = await queue.next(10)
    with StoreReader(paths.database) as reader:
        merge_run(config, reader)
    members = {row.id for row in await store.samples() if row.state is SampleState.GENERATED}
    await _generate(store, 2)
    queue = CorpusQueue(paths, Readers())
    listed = await queue.next(10)
    jobs = await store.claim_extract(3, 10_000, worker="w", ids=listed)
    queue.put_back(listed[3:])
    rest = await queue.next(10)

    assert [] == list(before)
    assert members == set(listed)
    assert listed[:3] == [job.fence.sample_id for job in jobs]
    assert listed[3:] == rest
