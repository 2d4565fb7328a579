"""Kills of a process that holds a store, at every named point and at random."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagled.clock import FakeClock
from eagled.crashpoints import ENV, POINTS
from eagled.errors import LockedError
from eagled.paths import StatePaths
from eagled.store import StateLock, Store
from eagled.store.tools import check_database
from eagled.types import SampleState
from tests.faults import fault_file, fault_row
from tests.integration.store_child import TOTAL
from tests.unit.store.helpers import ANSWER, filled, generate, opened, state_counts

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 60


def command(folder: Path) -> list[str]:
    """Return how the child is started."""
    return [sys.executable, "-m", "tests.integration.store_child", str(folder)]


def run_child(folder: Path, crash_at: str | None = None) -> tuple[int, list[str]]:
    """Run the child to its end and return its exit code and lines."""
    env = dict(os.environ) | ({ENV: crash_at} if crash_at else {})
    done = subprocess.run(
        command(folder), cwd=_ROOT, env=env, capture_output=True, text=True, timeout=_LIMIT_S,
        check=False,
    )  # fmt: skip
    if done.returncode not in {0, 137}:
        raise AssertionError(done.stderr)
    return done.returncode, done.stdout.split("\n")[:-1]


def run_script(text: str, *args: str) -> int:
    """Run a few lines of Python in a process of its own and return its exit code."""
    script = [sys.executable, "-c", text, *args]
    return subprocess.run(script, cwd=_ROOT, timeout=_LIMIT_S, check=False).returncode


def acked(lines: list[str]) -> dict[int, tuple[int, int]]:
    """Return acknowledged (attempt, crc) by sample."""
    rows = [line.split() for line in lines if line[:1].isdigit()]
    return {int(sample): (int(attempt), int(crc)) for sample, attempt, crc in rows}


async def missing(store: Store, acks: dict[int, tuple[int, int]]) -> list[int]:
    """Return acknowledged samples that are not stored as they were acknowledged."""
    stored = {}
    after = 0
    while rows := await store.samples(None, 500, after=after):
        after = rows[-1].id
        for row in rows:
            detail = await store.sample(row.uid)
            if detail is not None and detail.output is not None:
                stored[row.id] = (row.attempt, detail.output.crc)
    return [sample for sample, what in acks.items() if stored.get(sample) != what]


HITS = {
    "before_commit": ("before_commit:2", "before_commit:9"),
    "after_commit": ("after_commit:3", "after_commit:9"),
    "after_stamp": ("after_stamp:2", "after_stamp:9"),
    "mid_enqueue": ("mid_enqueue:1", "mid_enqueue:3"),
    "during_recovery": ("during_recovery:1",),
    "during_migration": ("during_migration:1",),
}


def test_every_point_is_tried() -> None:
    """A new crash point needs an entry here."""
    assert set(POINTS) == set(HITS)


@pytest.mark.parametrize("where", [hit for hits in HITS.values() for hit in hits])
async def test_kill_at_a_named_point_loses_nothing(tmp_path: Path, where: str) -> None:
    """Whatever was acknowledged is there after the kill; a second start changes nothing more."""
    code, lines = run_child(tmp_path, where)
    acks = acked(lines)
    store = await Store.open(StatePaths(tmp_path), clock=FakeClock(), create=True)
    lost = await missing(store, acks)
    first = await state_counts(store)
    await store.close()
    store = await Store.open(StatePaths(tmp_path), clock=FakeClock())
    second, recovery = await state_counts(store), store.recovery
    await store.close()
    report = check_database(StatePaths(tmp_path))
    again, more = run_child(tmp_path)

    assert code == 137
    assert [] == lost
    assert first == second
    assert (True, 0, 0) == (recovery.clean, recovery.requeued, recovery.released_extracting)
    assert () == report.problems
    assert again == 0
    assert TOTAL == check_database(StatePaths(tmp_path)).samples
    assert TOTAL - first.get(SampleState.GENERATED, 0) == len(acked(more))  # none done twice


def kill_after(folder: Path, n: int) -> list[str]:
    """Kill the child after `n` lines and return all that it had said."""
    with subprocess.Popen(command(folder), cwd=_ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline().rstrip("\n") for _ in range(n)]
        child.send_signal(signal.SIGKILL)
        return lines + child.stdout.read().split("\n")[:-1]


@pytest.mark.parametrize("seed", range(6))
async def test_kill_at_random_loses_nothing(tmp_path: Path, seed: int) -> None:
    """SIGKILL after a random number of acknowledgements loses none of them."""
    lines = kill_after(tmp_path, 1 + (seed * 7919 + 104_729) % 300)
    async with opened(tmp_path) as store:
        lost = await missing(store, acked(lines))
        counts = await state_counts(store)

    assert [] == lost, f"seed {seed}"
    assert counts.get(SampleState.GENERATING, 0) == 0
    assert () == check_database(StatePaths(tmp_path)).problems


@pytest.mark.fault("F51")
async def test_f51_done_is_known_by_identity(tmp_path: Path) -> None:
    """After answers out of order and a kill, exactly the other jobs are done."""
    story = json.loads(fault_file(fault_row("F51")["files"][0]).read_text(encoding="utf-8"))
    order, jobs = story["finish_order"], story["jobs"]
    code = run_script(_OUT_OF_ORDER, str(tmp_path), str(jobs), json.dumps(order))
    async with opened(tmp_path) as store:
        left = sorted(claim.fence.sample_id - 1 for claim in await store.claim("short", 10))

    assert code == -signal.SIGKILL
    assert sorted(set(range(jobs)) - set(order)) == left == [1, 2, 3]


_OUT_OF_ORDER = """
import asyncio, json, os, signal, sys
from pathlib import Path
from tests.unit.store.helpers import ANSWER, filled, opened

async def main():
    async with opened(Path(sys.argv[1])) as store:
        await filled(store, int(sys.argv[2]))
        claims = await store.claim("short", 10)
        for job in json.loads(sys.argv[3]):
            await store.complete(claims[job].fence, ANSWER)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.fault("F53")
async def test_f53_orphans_are_taken_back_at_start(tmp_path: Path) -> None:
    """Samples that a dead process was generating are done too, their attempt counted."""
    story = json.loads(fault_file(fault_row("F53")["files"][0]).read_text(encoding="utf-8"))
    running, pending = story["running_rows"], story["pending_rows"]
    async with opened(tmp_path) as store:
        await filled(store, running + pending)
        held = [claim.fence for claim in await store.claim("short", running)]
    async with opened(tmp_path) as store:
        recovery = store.recovery
        again = await store.claim("short", story["concurrency"])
        for claim in again:
            await store.complete(claim.fence, ANSWER)
        rest = await generate(store, 100)
        counts = await state_counts(store)
        stale = await store.complete(held[0], ANSWER)

    assert (running, running) == (recovery.requeued, len(recovery.in_flight_rids))
    assert [2] * running == [claim.fence.attempt for claim in again]
    assert len(rest) == pending
    assert {SampleState.GENERATED: running + pending} == counts
    assert not stale


@pytest.mark.fault("F54")
async def test_f54_restart_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    """After 99 of 100 answers one sample is claimed."""
    async with opened(tmp_path) as store:
        await filled(store, 100)
        await generate(store, 99)
    async with opened(tmp_path) as store:
        claims = await store.claim("short", 200)

    assert len(claims) == 1


def test_second_daemon_is_turned_away(tmp_path: Path) -> None:
    """The lock names who holds it, and is free once that process is gone, however it went."""
    lock = StatePaths(tmp_path).lock
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(lock)], stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(LockedError, match=rf"pid {child.pid}\b"):
            StateLock(lock).acquire()
        child.kill()
    with StateLock(lock):
        held = lock.read_text(encoding="ascii")

    assert held.startswith(f"pid {os.getpid()}\nboot ")


_HOLD = """
import sys, time
from pathlib import Path
from eagled.store.lock import StateLock
StateLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""
