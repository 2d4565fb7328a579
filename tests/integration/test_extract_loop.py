"""The extraction loop against a daemon in memory: what counts, what is given back, what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eagled.artifacts import fsync_dir
from eagled.clock import FakeClock
from eagled.errors import ArtifactError, UnreachableError
from eagled.shards import writer as writer_module
from eagled.shards.compute import compute, length_batches, open_jobs
from eagled.shards.format import read_shard_header
from eagled.shards.scan import scan_shards
from eagled.shards.verify import verify_shards
from eagled.tokens import pack_ids
from eagled.types import ExtractJob, ShardMember, ShardRecord
from eagled.workers import extraction as extraction_module
from eagled.workers.extraction import Extraction, ExtractSettings, drained
from tests.unit.shards.doubles import Daemon, ToyBackend, make_job
from tests.unit.shards.helpers import manifest

DEADLINE_S = 180.0
MIB = 1 << 20


def settings(folder: Path, **changes: Any) -> ExtractSettings:
    """Return settings that do not wait."""
    values: dict[str, Any] = {
        "shards": folder, "batch_tokens": 64, "target_bytes": MIB, "max_wait_s": 1e9,
        "stop_timeout_s": 1.0, "once": True, "idle_wait_s": 0.001, "disk_wait_s": 0.001,
    }  # fmt: skip
    return ExtractSettings(**{**values, **changes})


async def work(
    daemon: Daemon, folder: Path, backend: ToyBackend | None = None, **changes: Any
) -> Extraction:
    """Run the loop until nothing is left."""
    loop = Extraction(daemon, backend or ToyBackend(), settings(folder, **changes), FakeClock())
    await asyncio.wait_for(loop.run(), DEADLINE_S)
    return loop


def names(folder: Path) -> list[str]:
    """Return what lies in the shard folder."""
    return sorted(p.name for p in folder.iterdir())


def check(daemon: Daemon, folder: Path, numbers: Sequence[int]) -> None:
    """Assert that exactly these samples are in committed, correct shards, and no other file."""
    jobs = {make_job(n).uid.hex(): make_job(n) for n in numbers}
    source = {uid: (open_jobs([j], 300)[0][0].ids, j.prompt.n) for uid, j in jobs.items()}
    report = verify_shards(folder, daemon.shards, manifest=manifest(), ids_of=source.get)
    assert report.findings == ()
    assert sorted(daemon.extracted) == sorted(numbers)
    assert names(folder) == sorted(daemon.shards)
    found = [s.sample for name in daemon.shards for s in read_shard_header(folder / name).samples]
    assert sorted(found) == sorted(numbers)


async def test_every_sample_is_committed_once(tmp_path: Path) -> None:
    """All claimed samples end in verified shards, and the loop ends by itself."""
    daemon = Daemon([make_job(n) for n in range(20)])

    loop = await work(daemon, tmp_path)

    check(daemon, tmp_path, range(20))
    assert (loop.samples, daemon.failed) == (20, [])


@pytest.mark.fault("F55")
async def test_nothing_to_do_ends_without_a_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With every sample extracted the worker ends, says so, and runs no forward pass."""
    caplog.set_level("INFO")
    backend = ToyBackend()

    await work(Daemon([]), tmp_path, backend)

    assert backend.batches == []
    assert "nothing to do" in caplog.text
    assert names(tmp_path) == []


async def test_full_shards_are_closed(tmp_path: Path) -> None:
    """A shard is closed when it reaches its size; several come out."""
    daemon = Daemon([make_job(n) for n in range(20)])

    await work(daemon, tmp_path, target_bytes=8192)

    assert len(daemon.shards) > 1
    assert all(r.file_bytes < 2 * 8192 for r in daemon.shards.values())
    check(daemon, tmp_path, range(20))


async def test_old_shard_is_closed_although_more_may_come(tmp_path: Path) -> None:
    """While generation goes on, an open shard is committed at its age, not held back."""
    daemon, clock = Daemon([make_job(1)]), FakeClock()
    daemon.generating = 5
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path, max_wait_s=600.0), clock)
    running = asyncio.create_task(loop.run())
    await until(lambda: daemon.claims >= 3)

    assert daemon.shards == {}
    clock.advance(601)
    await until(lambda: len(daemon.shards) == 1)
    loop.stop()
    await asyncio.wait_for(running, DEADLINE_S)
    check(daemon, tmp_path, [1])


async def test_shard_is_closed_while_a_claim_waits(tmp_path: Path) -> None:
    """When the last sample is in, the shard is committed although the next claim still waits."""
    daemon = Daemon([make_job(n) for n in range(3)])
    daemon.long_poll = asyncio.Event()
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path, look_s=0.001), FakeClock())
    running = asyncio.create_task(loop.run())
    await until(lambda: len(daemon.extracted) == 3)

    assert not running.done()
    daemon.long_poll.set()
    await asyncio.wait_for(running, DEADLINE_S)
    check(daemon, tmp_path, range(3))


async def test_after_a_merge_a_shard_is_closed_when_work_ends(tmp_path: Path) -> None:
    """With all work handed out at once, idle time closes the shard although others are queued."""
    daemon, clock = Daemon([make_job(n) for n in range(3)]), FakeClock()
    daemon.generating = 100
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path, trickle=False, once=False), clock)
    running = asyncio.create_task(loop.run())
    await until(lambda: daemon.claims >= 3)

    assert daemon.extracted == {}
    clock.advance(11)
    await until(lambda: len(daemon.extracted) == 3)
    loop.stop()
    await asyncio.wait_for(running, DEADLINE_S)
    check(daemon, tmp_path, range(3))


def _has_claimed(daemon: Daemon, n: int) -> bool:
    return daemon.claims >= n


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is any state of the double
            await asyncio.sleep(0.001)


async def test_one_bad_sample_fails_alone(tmp_path: Path) -> None:
    """NaN states, an id outside the vocabulary and damaged ids fail for good; the rest is kept."""
    jobs = [make_job(n) for n in range(6)]
    backend = ToyBackend()
    backend.broken = {int(open_jobs([jobs[2]], 300)[0][0].ids[0])}
    jobs[3] = ExtractJob(jobs[3].fence, jobs[3].uid, "alpha", pack_ids([300]), pack_ids([1]))
    jobs[4] = ExtractJob(jobs[4].fence, jobs[4].uid, "alpha", jobs[5].prompt, jobs[3].prompt)
    torn = jobs[4].output
    jobs[4] = ExtractJob(
        jobs[4].fence, jobs[4].uid, "alpha", jobs[5].prompt, type(torn)(torn.z, torn.crc ^ 1, 1)
    )
    daemon = Daemon(jobs)

    await work(daemon, tmp_path, backend)

    assert sorted(daemon.failed) == [
        (2, "bad_states", True), (3, "id_out_of_vocabulary", True), (4, "ArtifactError", True),
    ]  # fmt: skip
    check(daemon, tmp_path, [0, 1, 5])


async def test_batch_that_does_not_fit_is_halved(tmp_path: Path) -> None:
    """Out of memory halves the batch until it fits; nobody is charged."""
    backend = ToyBackend()
    backend.max_batch = 2
    daemon = Daemon([make_job(n) for n in range(8)])

    await work(daemon, tmp_path, backend, batch_tokens=1000)

    assert daemon.failed == []
    assert max(backend.batches) == 8
    check(daemon, tmp_path, range(8))


async def test_sample_that_always_raises_is_given_up(tmp_path: Path) -> None:
    """One whose forward pass raises goes back twice and is given up at the third time."""
    backend = ToyBackend()
    backend.raises = {int(open_jobs([make_job(1)], 300)[0][0].ids[0])}
    daemon = Daemon([make_job(n) for n in range(3)])

    await work(daemon, tmp_path, backend)

    assert daemon.failed == [(1, "RuntimeError", False)] * 2 + [(1, "RuntimeError", True)]
    check(daemon, tmp_path, [0, 2])


@pytest.mark.fault("F59")
async def test_mixed_up_batch_is_done_again_one_by_one(tmp_path: Path) -> None:
    """When a batch's rows land in one result, its samples are extracted alone, and are right."""
    backend = ToyBackend()
    backend.mix = True
    daemon = Daemon([make_job(n) for n in range(4)])

    await work(daemon, tmp_path, backend, batch_tokens=1000)

    assert backend.batches == [4, 1, 1, 1, 1]
    assert daemon.failed == []
    check(daemon, tmp_path, range(4))


async def test_lost_acknowledgement_is_asked_for_again(tmp_path: Path) -> None:
    """A commit whose answer was lost is repeated and counts once."""
    daemon = Daemon([make_job(n) for n in range(3)])
    daemon.lose_answers = 1

    loop = Extraction(daemon, ToyBackend(), settings(tmp_path, once=False), FakeClock())
    running = asyncio.create_task(loop.run())
    await until(lambda: loop.samples == 3)
    loop.stop()
    await asyncio.wait_for(running, DEADLINE_S)

    check(daemon, tmp_path, range(3))


async def test_commit_after_a_restart_removes_the_file(tmp_path: Path) -> None:
    """A daemon that restarted before the commit refuses it: the file goes, the work is redone."""
    daemon = Daemon([make_job(n) for n in range(3)])

    def restart_once() -> None:
        daemon.before_commit = lambda: None
        daemon.restart()

    daemon.before_commit = restart_once

    await work(daemon, tmp_path)

    assert daemon.epoch == 2
    check(daemon, tmp_path, range(3))


async def test_claims_of_a_new_epoch_drop_the_open_shard(tmp_path: Path) -> None:
    """Members claimed before a restart are never committed beside those claimed after it."""
    daemon = Daemon([make_job(1), make_job(2)])
    daemon.generating = 1
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path), FakeClock())
    running = asyncio.create_task(loop.run())
    await until(lambda: daemon.claims >= 2 and len(daemon.held) == 2)

    daemon.restart()
    await until(lambda: len(daemon.held) == 2)
    daemon.generating = 0
    await asyncio.wait_for(running, DEADLINE_S)

    check(daemon, tmp_path, [1, 2])
    assert {s.attempt for n in daemon.shards for s in read_shard_header(tmp_path / n).samples} == {
        2
    }


@pytest.mark.fault("F72")
async def test_full_disk_gives_the_work_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fills up while a shard is closed, its samples wait and are done later."""
    real, faults = fsync_dir, iter([OSError(28, "No space left on device")])

    def full_once(folder: Path) -> None:
        for fault in faults:
            raise fault
        real(folder)

    monkeypatch.setattr(writer_module, "fsync_dir", full_once)
    daemon = Daemon([make_job(n) for n in range(4)])

    await work(daemon, tmp_path)

    assert daemon.failed == [(n, "DiskError", False) for n in (0, 1, 2, 3)]
    assert sorted(daemon.extracted) == [0, 1, 2, 3]


@pytest.mark.fault("F72")
async def test_full_disk_while_appending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails gives back the open shard's samples and the one in hand, once each."""
    daemon = Daemon([make_job(n) for n in range(4)])
    real = writer_module.ShardWriter.append
    calls = iter(range(100))

    def full_at_third(self: writer_module.ShardWriter, sample: Any) -> int:
        if next(calls) == 2:
            with self._disk():
                raise OSError(28, "No space left on device")
        return real(self, sample)

    monkeypatch.setattr(writer_module.ShardWriter, "append", full_at_third)

    await work(daemon, tmp_path)

    assert [row[1:] for row in daemon.failed] == [("DiskError", False)] * 3
    check(daemon, tmp_path, range(4))


@pytest.mark.fault("F72")
@pytest.mark.parametrize("call", ["hello", "claim_extract", "commit_shard", "fail_extract"])
async def test_a_daemon_whose_disk_is_full_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What it cannot record it is told again until it can: no shard is lost, no worker ends."""
    monkeypatch.setattr(extraction_module, "RETRY_WAITS_S", (0.0,))
    daemon, backend = Daemon([make_job(n) for n in range(4)]), ToyBackend()
    backend.broken = {int(open_jobs([make_job(2)], 300)[0][0].ids[0])}
    real, left = getattr(daemon, call), iter(range(3))

    async def refused_thrice(*args: Any, **kwargs: Any) -> Any:
        for _ in left:
            daemon.full = 1
            break
        return await real(*args, **kwargs)

    monkeypatch.setattr(daemon, call, refused_thrice)
    loop = await work(daemon, tmp_path, backend)

    assert (daemon.full, next(left, "told again")) == (0, "told again")
    assert [row[0] for row in daemon.failed] == [2]
    check(daemon, tmp_path, [0, 1, 3])
    assert loop.samples == 3


async def test_temporary_files_removed_by_a_starting_daemon(tmp_path: Path) -> None:
    """When the open shard's files are taken away, its samples are given back, none is lost."""
    daemon = Daemon([make_job(n) for n in range(2)])
    daemon.generating = 1
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path), FakeClock())
    running = asyncio.create_task(loop.run())
    await until(lambda: daemon.claims >= 2)
    scan_shards(tmp_path, {})
    daemon.generating = 0
    await asyncio.wait_for(running, DEADLINE_S)

    assert [row[1:] for row in daemon.failed] == [("ArtifactError", False)] * 2
    check(daemon, tmp_path, range(2))


async def test_stop_commits_the_open_shard(tmp_path: Path) -> None:
    """Asked to stop while more is coming, the worker commits what it has."""
    daemon = Daemon([make_job(n) for n in range(3)])
    daemon.generating = 9
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path), FakeClock())
    running = asyncio.create_task(loop.run())
    await until(lambda: daemon.claims >= 2)
    loop.stop()
    await asyncio.wait_for(running, DEADLINE_S)

    check(daemon, tmp_path, range(3))


async def test_stop_without_a_daemon_ends_in_time(tmp_path: Path) -> None:
    """When nobody answers the commit, stopping ends at its timeout and leaves a whole file."""
    daemon = Daemon([make_job(n) for n in range(3)])
    daemon.generating = 9
    loop = Extraction(
        daemon, ToyBackend(), settings(tmp_path, once=False, stop_timeout_s=0.0), FakeClock()
    )
    running = asyncio.create_task(loop.run())
    await until(lambda: daemon.claims >= 2)
    daemon.away = 10**6
    loop.stop()
    await asyncio.wait_for(running, DEADLINE_S)

    assert daemon.shards == {}
    assert [read_shard_header(tmp_path / n).n_tokens for n in names(tmp_path)] == [33]


async def test_idle_worker_without_a_daemon_stops_at_once(tmp_path: Path) -> None:
    """With nothing to hand in, a stop does not wait for a daemon that is gone."""
    for away_from in (0, 2):
        daemon = Daemon([])
        loop = Extraction(
            daemon, ToyBackend(), settings(tmp_path, once=False, stop_timeout_s=1e9), FakeClock()
        )
        daemon.away = 0 if away_from else 10**6
        running = asyncio.create_task(loop.run())
        await until(partial(_has_claimed, daemon, away_from))
        daemon.away = 10**6
        loop.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert names(tmp_path) == []


async def test_daemon_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """A worker that starts before its daemon, or loses it, goes on when it is back."""
    daemon = Daemon([make_job(1)])
    daemon.away = 2
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path, once=False), FakeClock())
    running = asyncio.create_task(loop.run())
    await until(lambda: loop.samples == 1)
    loop.stop()
    await asyncio.wait_for(running, DEADLINE_S)

    check(daemon, tmp_path, [1])


async def test_once_without_a_daemon_is_an_error(tmp_path: Path) -> None:
    """A single pass needs a daemon and says that there is none."""
    daemon = Daemon([])
    daemon.away = 1

    with pytest.raises(UnreachableError):
        await work(daemon, tmp_path)


def test_batches_keep_to_the_token_budget() -> None:
    """Padded size stays within the budget; a longer sample goes alone; nobody is left out."""
    works, _ = open_jobs([make_job(n, n_output=1 + 7 * (n % 9)) for n in range(30)], 300)

    batches = list(length_batches(works, 50))

    sizes = [(len(b), max(len(w.ids) for w in b)) for b in batches]
    assert all(n * longest <= 50 or n == 1 for n, longest in sizes)
    assert any(n == 1 and longest > 50 for n, longest in sizes)
    assert sorted(w.job.fence.sample_id for b in batches for w in b) == list(range(30))
    assert len(batches) < 30


def test_compute_keeps_the_order_of_the_batch() -> None:
    """Results come in the order of the works, also after halving."""
    backend = ToyBackend()
    backend.max_batch = 1
    works, _ = open_jobs([make_job(n) for n in range(5)], 300)

    results = compute(backend, works)
    assert [r[1].sample for r in results if isinstance(r, tuple)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, False),
        ({"lanes": {"a": {"extracted": 5, "extracting": 2, "generated": 0}}}, True),
        ({"lanes": {"a": {"queued": 1}}}, False),
        ({"lanes": {"a": {"queued": 1}}, "phase": "draining"}, True),
        ({"lanes": {"a": {"generating": 1}}, "phase": "draining"}, False),
        ({"lanes": {"a": {}}, "datasets": {"d": {"waiting": 1}}}, False),
    ],
)
def test_drained_reads_the_status(status: dict[str, Any], *, want: bool) -> None:
    """Only samples that can still reach extraction keep a shard open."""
    assert drained(status) is want


def test_refused_commit_does_not_delete(tmp_path: Path) -> None:
    """When the daemon refuses a shard by an error, the file stays for a person to look at."""

    class Refusing(Daemon):
        async def commit_shard(
            self, record: ShardRecord, members: list[ShardMember]
        ) -> tuple[int, int]:
            assert members
            raise ArtifactError(f"shard {record.name} was dropped")

    daemon = Refusing([make_job(1)])
    daemon.generating = 1
    loop = Extraction(daemon, ToyBackend(), settings(tmp_path), FakeClock())

    async def scenario() -> None:
        running = asyncio.create_task(loop.run())
        await until(lambda: daemon.claims >= 2)
        loop.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    asyncio.run(scenario())
    assert daemon.failed == [(1, "ArtifactError", False)]
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"]
