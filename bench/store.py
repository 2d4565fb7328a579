"""Throughput and claim latency of the store by number of rows, all sizes in one run.

    python -m bench.store --rows 100000 1000000 5000000

Closed loop at synchronous=FULL: `--workers` tasks each claim, then complete, as fast as they can.
Reference: a claim at 100,000 rows; a store whose claim slows with size has a ratio well above 1.
The rows that are claimed carry real payloads (about 1 KB of zstd each way); the bulk behind them,
which no claim reaches, has prompts of one token, so that 5 million rows load in minutes.
Durable pairs depend on the disk's flush time, which is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagled.clock import SystemClock
from eagled.paths import StatePaths
from eagled.sql import QUERIES
from eagled.store import DatasetRecord, LaneRow, Store
from eagled.store.executor import SqliteExecutor
from eagled.tokens import PackedIds, make_uid, pack_ids
from eagled.types import Answer, Finish, Mode

PAYLOAD_TOKENS = 350  # random 18-bit ids: about 1 KB of zstd
REAL_ROWS = 60_000  # more than one size's run claims
LOAD_CHUNK = 20_000
SINGLES = 400  # lone claims timed a size
STATEMENTS = 2_000  # claim statements timed a size
LANE = "short"


@dataclass(frozen=True, slots=True)
class Result:
    """One size; times in milliseconds but for `statement_us`."""

    rows: int
    load_s: float
    file_mb: float
    pairs_per_s: float
    pairs_per_cpu_s: float
    commits_per_s: float
    claim_p50_ms: float
    claim_p99_ms: float
    complete_p50_ms: float
    complete_p99_ms: float
    lone_claim_p50_ms: float
    lone_claim_p99_ms: float
    statement_p50_us: float
    statement_p99_us: float
    loop_stall_p99_ms: float


def _blobs(rng: random.Random, n: int) -> list[PackedIds]:
    return [pack_ids([rng.randrange(163_840) for _ in range(PAYLOAD_TOKENS)]) for _ in range(n)]


def _rows(start: int, end: int, real: Sequence[PackedIds], tiny: PackedIds) -> Iterator[Any]:
    for number in range(start, end):
        ids = real[number % len(real)] if number <= REAL_ROWS else tiny
        yield number, make_uid("bench", str(number)), ids


def load(paths: StatePaths, rows: int, real: Sequence[PackedIds]) -> float:
    """Fill an empty, closed database with queued rows and return how long it took, in seconds."""
    tiny = pack_ids([1])
    began = time.monotonic()
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous = OFF").fetchall()
        conn.execute("PRAGMA cache_size = -524288").fetchall()
        for start in range(1, rows + 1, LOAD_CHUNK):
            end = min(start + LOAD_CHUNK, rows + 1)
            part = list(_rows(start, end, real, tiny))
            conn.execute("BEGIN IMMEDIATE")
            conn.executemany(
                QUERIES["insert_conversation"], ((n, u, u, 1, None, None) for n, u, _ in part)
            )
            conn.executemany(
                QUERIES["insert_sample"],
                ((n, u, n, 1, 0, 1, 0, 1, p.n, p.crc, None, None, None, 0, 0) for n, u, p in part),
            )
            conn.executemany(QUERIES["insert_prompt"], ((n, p.z) for n, _, p in part))
            conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return time.monotonic() - began


@dataclass(slots=True)
class Times:
    """Latencies in seconds."""

    claim: list[float]
    complete: list[float]
    stall: list[float]
    pairs: int = 0


async def _worker(store: Store, answers: Sequence[PackedIds], times: Times, until: float) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        claims = await store.claim(LANE, 1)
        claimed = time.monotonic()
        if not claims:
            raise RuntimeError("the payload rows ran out: raise REAL_ROWS or lower --seconds")
        output = answers[claims[0].fence.sample_id % len(answers)]
        stored = await store.complete(claims[0].fence, Answer(output, Finish.STOP, "bench", 1.0))
        assert stored
        times.claim.append(claimed - began)
        times.complete.append(time.monotonic() - claimed)
        times.pairs += 1


async def _stall_probe(times: Times, until: float) -> None:
    step_s = 0.005
    while time.monotonic() < until:
        began = time.monotonic()
        await asyncio.sleep(step_s)
        times.stall.append(max(0.0, time.monotonic() - began - step_s))


async def _lone_claims(store: Store) -> list[float]:
    taken = []
    for _ in range(SINGLES):
        began = time.monotonic()
        claims = await store.claim(LANE, 1)
        taken.append(time.monotonic() - began)
        assert claims
    return taken


def statement_times(paths: StatePaths) -> list[float]:
    """Time the claim statement alone, without commit, in seconds."""
    taken = []
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as conn:
        db = SqliteExecutor(conn)
        params = {"epoch": 9, "now": 0, "lane_id": 1, "dataset_id": 1, "n": 1}
        db.sql("BEGIN IMMEDIATE")
        for _ in range(STATEMENTS):
            began = time.perf_counter()
            db.rows("claim_candidates", {"lane": LANE})
            rows = db.rows("claim", params)
            taken.append(time.perf_counter() - began)
            assert rows
        db.sql("ROLLBACK")
    return taken


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def prepare(paths: StatePaths) -> None:
    """Make an empty database with the lane and the dataset that `load` fills."""
    async with await Store.open(paths, clock=SystemClock(), create=True) as store:
        await store.sync_lanes([LaneRow(LANE, 0, 10_000, 200)])
        await store.add_dataset(DatasetRecord("bench", 0, Mode.REGENERATE, "k", 0, 0, 0))


async def _drive(
    paths: StatePaths, answers: Sequence[PackedIds], workers: int, seconds: float
) -> tuple[Times, list[float], float, float, float]:
    async with await Store.open(paths, clock=SystemClock()) as store:
        lone = await _lone_claims(store)
        times = Times([], [], [])
        commits, cpu, began = store.commits, time.process_time(), time.monotonic()
        until = began + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(_stall_probe(times, until))
            for _ in range(workers):
                group.create_task(_worker(store, answers, times, until))
        elapsed_s = time.monotonic() - began
        return times, lone, elapsed_s, time.process_time() - cpu, store.commits - commits


def measure(folder: Path, rows: int, workers: int, seconds: float) -> Result:
    """Fill a store in `folder` and measure it."""
    rng = random.Random(rows)
    blobs = _blobs(rng, 256)
    paths = StatePaths(folder)
    asyncio.run(prepare(paths))
    load_s = load(paths, rows, blobs)
    statement = statement_times(paths)
    times, lone, elapsed_s, cpu_s, commits = asyncio.run(_drive(paths, blobs, workers, seconds))
    return Result(
        rows=rows,
        load_s=round(load_s, 1),
        file_mb=round(paths.database.stat().st_size / 1e6, 1),
        pairs_per_s=round(times.pairs / elapsed_s),
        pairs_per_cpu_s=round(times.pairs / cpu_s),
        commits_per_s=round(commits / elapsed_s),
        claim_p50_ms=round(1000 * statistics.median(times.claim), 3),
        claim_p99_ms=round(1000 * percentile(times.claim, 0.99), 3),
        complete_p50_ms=round(1000 * statistics.median(times.complete), 3),
        complete_p99_ms=round(1000 * percentile(times.complete, 0.99), 3),
        lone_claim_p50_ms=round(1000 * statistics.median(lone), 3),
        lone_claim_p99_ms=round(1000 * percentile(lone, 0.99), 3),
        statement_p50_us=round(1e6 * statistics.median(statement), 1),
        statement_p99_us=round(1e6 * percentile(statement, 0.99), 1),
        loop_stall_p99_ms=round(1000 * percentile(times.stall, 0.99), 2),
    )


def flush_ms(folder: Path) -> float:
    """Return the median time of a 4 KB append with fdatasync, in milliseconds."""
    path = folder / "flush.probe"
    taken = []
    with path.open("ab", buffering=0) as file:
        for _ in range(100):
            began = time.monotonic()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            taken.append(time.monotonic() - began)
    path.unlink()
    return round(1000 * statistics.median(taken), 3)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON document: the machine, each size, and the ratios of the last to the first."""
    parser = argparse.ArgumentParser(description="Throughput and claim latency of the store.")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000])
    parser.add_argument("--workers", type=int, default=180)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=None, help="where; must be a real disk")
    args = parser.parse_args(argv)
    results = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        flush = flush_ms(Path(name))
        for rows in args.rows:
            folder = Path(name) / str(rows)
            results.append(measure(folder, rows, args.workers, args.seconds))
            shutil.rmtree(folder)
    first, last = results[0], results[-1]
    report = {
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
        "flush_p50_ms": flush,
        "payload_bytes": len(_blobs(random.Random(0), 1)[0].z),
        "workers": args.workers,
        "sizes": [asdict(result) for result in results],
        "ratio_last_to_first": {
            "claim_p50": round(last.claim_p50_ms / first.claim_p50_ms, 2),
            "lone_claim_p50": round(last.lone_claim_p50_ms / first.lone_claim_p50_ms, 2),
            "statement_p50": round(last.statement_p50_us / first.statement_p50_us, 2),
            "pairs_per_s": round(last.pairs_per_s / first.pairs_per_s, 2),
        },
        "reference": "claim at the first size; target 8000 pairs/s",
    }
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
