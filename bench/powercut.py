"""Simulated power cuts of the store: a write log, replayed to a random point.

A VFS of APSW records every write, truncation, sync and deletion of a run of the store's own
operations (`run_batch` over the same SQL files). A cut keeps what was synced and, per file, none, a
prefix, a random subset or torn 512-byte parts of what was not; then the store's own start-up code
opens the result. Control runs at synchronous OFF and NORMAL must lose or corrupt, or the
simulation has no teeth.

    python -m bench.powercut --cuts 100

Guarantee of the count: `lost` counts acknowledged answers whose attempt and checksum are not there,
`doubled` samples that exist more often than they were added, `missing` rows without their ids,
`alarms` databases behind their stamp (at FULL each would be a false one).
Price: about 20-40 ms a cut on tmpfs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import apsw

from eagled.errors import EagledError, StoreError
from eagled.paths import StatePaths
from eagled.sql import QUERIES
from eagled.store.executor import WRITER_PRAGMAS, Params, Row, connect, set_pragmas
from eagled.store.opening import create_database, inspect, open_database, read_meta
from eagled.store.ops.base import Tx
from eagled.store.ops.change import RejectSamples, RetrySamples
from eagled.store.ops.enqueue import AddConversations, AddDataset, SyncLanes
from eagled.store.ops.extract import ClaimExtract, CommitShard
from eagled.store.ops.generation import ClaimSamples, CompleteSample, FailSample, GiveBack
from eagled.store.ops.text import Settlement, SettleText
from eagled.store.records import DatasetRecord, LaneRow, NewConversation, NewTurn
from eagled.store.stamp import SLOT_BYTES, StampState, pack_slot
from eagled.store.tools import check_database
from eagled.store.transaction import AnyOp, run_batch
from eagled.tokens import PackedIds, make_uid, pack_ids
from eagled.types import (
    Answer,
    Claim,
    Failure,
    Finish,
    Mode,
    ShardMember,
    ShardRecord,
    TextVerdict,
)

SECTOR_BYTES = 512
CUTS_A_RUN = 20  # cuts taken from one recorded run
TRANSACTIONS = 30  # of one recorded run
SYNC = {"OFF": 0, "NORMAL": 1, "FULL": 2}
_VFS = "eagled-powercut"
_NOW_MS = 1_800_000_000_001


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file at an offset."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file cut or extended to a size."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """All earlier writes to a file are durable."""

    file: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A file is gone."""

    file: str


@dataclass(frozen=True, slots=True)
class Acked:
    """An answer whose caller was told that it is stored."""

    sample: int
    attempt: int
    crc: int


@dataclass(frozen=True, slots=True)
class Released:
    """From here on a sample's answer may rightly go: an operator asks for it again."""

    sample: int


Entry = Write | Truncate | Sync | Delete | Acked | Released


class LoggingFile(apsw.VFSFile):
    """A file that records what is done to it; nameless (temporary) files are not recorded."""

    def __init__(self, name: Any, flags: list[int], log: list[Entry]) -> None:  # noqa: ANN401 - apsw's URIFilename
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = os.path.basename(path) if path else ""  # noqa: PTH119 - SQLite's own string
        self._log = log
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        """Record and write."""
        if self._name:
            self._log.append(Write(self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        """Record and truncate."""
        if self._name:
            self._log.append(Truncate(self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        """Record and sync."""
        if self._name:
            self._log.append(Sync(self._name))
        super().xSync(flags)


class LoggingVfs(apsw.VFS):
    """The default file system, recorded."""

    def __init__(self, log: list[Entry]) -> None:
        self._log = log
        super().__init__(_VFS, "")

    def xOpen(self, name: Any, flags: list[int]) -> LoggingFile:  # noqa: ANN401, N802 - SQLite's name, apsw's type
        """Open a recording file."""
        return LoggingFile(name, flags, self._log)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802 - SQLite's signature
        """Record and delete."""
        self._log.append(Delete(os.path.basename(filename)))  # noqa: PTH119 - SQLite's own string
        super().xDelete(filename, syncdir)


class ApswExecutor:
    """The store's `Executor` over APSW."""

    def __init__(self, conn: Any) -> None:  # noqa: ANN401 - apsw is not typed here
        self.conn = conn

    def rows(self, name: str, params: Params = ()) -> list[Row]:
        """Return all rows of a statement."""
        return list(self.conn.execute(QUERIES[name], params))

    def run(self, name: str, params: Params = ()) -> int:
        """Return how many rows a statement changed."""
        list(self.conn.execute(QUERIES[name], params))
        return int(self.conn.changes())

    def many(self, name: str, rows: Iterable[Params]) -> None:
        """Run a statement once a row."""
        list(self.conn.executemany(QUERIES[name], rows))

    def sql(self, text: str) -> list[Row]:
        """Run one literal statement."""
        return list(self.conn.execute(text))

    def total_changes(self) -> int:
        """Return rows changed since the connection was opened."""
        return int(self.conn.total_changes())


# --- the run that is recorded


def _ids(rng: random.Random, median: int) -> PackedIds:
    n = max(1, min(32_000, round(median * rng.lognormvariate(0, 1))))
    return pack_ids([rng.randrange(163_840) for _ in range(n)])


def _conversation(rng: random.Random, seed: int, number: int) -> NewConversation:
    def name(*parts: object) -> bytes:
        return make_uid(*(str(p) for p in (seed, number, *parts)))

    first = NewTurn(name("turn", 0), 0, _ids(rng, 40), lane="short")
    later = [NewTurn(name("turn", 1), 1, None)] if number % 3 == 0 else []
    return NewConversation(name(), name("dedup"), None, None, (first, *later))


@dataclass(slots=True)
class Workload:
    """Random but seeded traffic of a daemon: everything that changes samples."""

    db: ApswExecutor
    log: list[Entry]
    rng: random.Random
    lineage: bytes
    seq: int
    answer_median: int
    slot: int = 0
    held: list[Claim] = field(default_factory=list)
    items: list[NewConversation] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    shards: int = 0
    acked: dict[int, Acked] = field(default_factory=dict)

    def tx(self) -> Tx:
        """Return a transaction at a fixed time."""
        return Tx(self.db, 1_800_000_000_000, 1_800_000_000_000, 1, self.turns)

    def run(self, ops: Sequence[AnyOp]) -> list[Any]:
        """Commit operations and write the stamp, unsynced, as the store does."""
        batch = run_batch(self.db, ops, self.tx)
        if batch.seq is not None:
            state = StampState(self.lineage, batch.seq, 1, 1_800_000_000_000)
            self.log.append(Write("q.stamp", self.slot * SLOT_BYTES, pack_slot(state)))
            self.slot = 1 - self.slot
            if self.rng.random() < 0.1:
                self.log.append(Sync("q.stamp"))
        return batch.results

    def enqueue(self, seed: int, n: int) -> None:
        """Add conversations."""
        items = [_conversation(self.rng, seed, len(self.items) + i) for i in range(n)]
        self.run([AddConversations(1, tuple(items))])
        self.items += items

    def work(self) -> None:
        """Do one transaction of a daemon's day."""
        dice = self.rng.random()
        if dice < 0.55:
            self.complete_and_claim()
        elif dice < 0.65:
            self.fail_some()
        elif dice < 0.75:
            self.ask_again()
        elif dice < 0.9:
            self.settle()
        else:
            self.extract()

    def complete_and_claim(self) -> None:
        """Store a batch of answers and claim the next ones in the same transaction."""
        done, self.held = self.held, []
        answers = [
            CompleteSample(
                claim.fence, Answer(_ids(self.rng, self.answer_median), Finish.STOP, "s", 1.0)
            )
            for claim in done
        ]
        claim = ClaimSamples("short", self.rng.randint(1, 48))
        *stored, self.held = self.run([*answers, claim])
        for op, ok in zip(answers, stored, strict=True):
            if ok:
                entry = Acked(op.fence.sample_id, op.fence.attempt, op.answer.output.crc)
                self.acked[entry.sample] = entry
                self.log.append(entry)

    def fail_some(self) -> None:
        """Fail and give back part of what is held."""
        part, self.held = self.held[:6], self.held[6:]
        failure = Failure("X", "detail", charge=True, retry_in_s=0)
        back = GiveBack(tuple(c.fence for c in part[3:]))
        self.run([*(FailSample(c.fence, failure) for c in part[:3]), back])

    def ask_again(self) -> None:
        """An operator rejects stored answers and has them generated again."""
        for sample in self.rng.sample(sorted(self.acked), min(4, len(self.acked))):
            self.acked.pop(sample)
            self.log.append(Released(sample))
            self.run([RejectSamples((sample,), "sample", uid=0, seq=0, detail="again")])
            self.run([RetrySamples((sample,), "sample", uid=0, seq=0)])

    def settle(self) -> None:
        """The text worker accepts answers and queues the turns that follow."""
        rows = self.db.rows("unchecked_ids", {"n": 20})
        verdicts = []
        for (sample,) in rows:
            attempt = self.db.rows("text_job", {"id": sample})[0][1]
            verdicts.append(TextVerdict(sample, attempt, None, next_prompt=_ids(self.rng, 80)))
        self.run([SettleText(tuple(Settlement(v, "short") for v in verdicts))])

    def extract(self) -> None:
        """A shard is committed."""
        (jobs,) = self.run([ClaimExtract(20, 10**9, "w")])
        if not jobs:
            return
        self.shards += 1
        record = ShardRecord(f"shard-{self.shards}", "0" * 64, 1, len(jobs), 1, "m")
        members = tuple(ShardMember(job.fence, i) for i, job in enumerate(jobs))
        self.run([CommitShard(record, members)])


@dataclass(frozen=True, slots=True)
class Recording:
    """The files at the start of a run, and all that happened to them."""

    start: dict[str, bytes]
    log: tuple[Entry, ...]
    items: tuple[NewConversation, ...]


def _files(folder: Path) -> dict[str, bytes]:
    names = ("q.db", "q.db-wal")
    return {n: (folder / n).read_bytes() for n in names if (folder / n).exists()}


def record_run(
    folder: Path, seed: int, *, sync: str, autocheckpoint: int, answer_median: int = 700
) -> Recording:
    """Run a seeded workload in an empty folder and return what it did to its files."""
    paths = StatePaths(folder)
    create_database(paths.database)
    start = _files(folder)
    log: list[Entry] = []
    vfs = LoggingVfs(log)
    flags = apsw.SQLITE_OPEN_READWRITE
    conn = apsw.Connection(str(paths.database), vfs=_VFS, flags=flags)
    try:
        db = ApswExecutor(conn)
        own = {"synchronous": SYNC[sync], "wal_autocheckpoint": autocheckpoint}
        set_pragmas(db, dict(WRITER_PRAGMAS) | own)
        meta = read_meta(db)
        rng = random.Random(seed)
        load = Workload(db, log, rng, meta.lineage, meta.seq, answer_median)
        load.run([SyncLanes((LaneRow("short", 0, 10_000, 200),))])
        load.run([AddDataset(DatasetRecord("a", 0, Mode.REGENERATE, "k", 1, 1, 0))])
        load.enqueue(seed, 120)
        for _ in range(TRANSACTIONS):
            if rng.random() < 0.1:
                load.enqueue(seed, 20)
            load.work()
    finally:
        end = len(log)  # what closing does is not part of the run
        conn.close()
        vfs.unregister()
    return Recording(start, tuple(log[:end]), tuple(load.items))


# --- the cut


class Disk:
    """Files with what is durable and what is only in the cache."""

    def __init__(self, start: dict[str, bytes]) -> None:
        self.durable = {name: bytearray(data) for name, data in start.items()}
        self.pending: dict[str, list[Write | Truncate]] = {}

    def apply(self, entry: Entry) -> None:
        """Take one entry of the log."""
        if isinstance(entry, Write | Truncate):
            self.durable.setdefault(entry.file, bytearray())
            self.pending.setdefault(entry.file, []).append(entry)
        elif isinstance(entry, Sync):
            for change in self.pending.pop(entry.file, []):
                _change(self.durable.setdefault(entry.file, bytearray()), change)
        elif isinstance(entry, Delete):
            self.pending.pop(entry.file, None)
            self.durable.pop(entry.file, None)

    def cut(self, rng: random.Random) -> dict[str, bytes]:
        """Return the files after the power went: unsynced changes in a random state."""
        for name, changes in self.pending.items():
            for change in survivors(changes, rng):
                _change(self.durable[name], change)
        return {name: bytes(data) for name, data in self.durable.items()}


def survivors(
    changes: Sequence[Write | Truncate], rng: random.Random
) -> Iterator[Write | Truncate]:
    """Yield which unsynced changes of one file reached the disk: none, a prefix, some, torn."""
    way = rng.choice(("none", "prefix", "subset", "torn", "all"))
    if way == "none":
        return
    upto = rng.randrange(len(changes) + 1) if way == "prefix" else len(changes)
    for change in changes[:upto]:
        if way in {"prefix", "all"}:
            yield change
        elif isinstance(change, Truncate) or way == "subset":
            if rng.random() < 0.5:
                yield change
        else:
            yield from _torn(change, rng)


def _torn(change: Write, rng: random.Random) -> Iterator[Write]:
    for start in range(0, len(change.data), SECTOR_BYTES):
        if rng.random() < 0.7:
            part = change.data[start : start + SECTOR_BYTES]
            yield Write(change.file, change.offset + start, part)


def _change(data: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        size = change.size
        data[:] = data[:size].ljust(size, b"\0")
        return
    end = change.offset + len(change.data)
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    data[change.offset : end] = change.data


# --- what must hold afterwards


@dataclass(slots=True)
class Tally:
    """Counts over all cuts; everything but `cuts`, `acked` and `rows` should be 0 at FULL."""

    cuts: int = 0
    acked: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    missing: int = 0
    corrupt: int = 0
    alarms: int = 0
    other: int = 0
    cuts_with_loss: int = 0

    def clean(self) -> bool:
        """Return whether nothing bad was seen."""
        bad = (self.lost, self.doubled, self.missing, self.corrupt, self.alarms, self.other)
        return not any(bad)


def check_cut(folder: Path, recording: Recording, cut: int, tally: Tally) -> None:
    """Open what a cut left with the store's own start-up code and compare it with the log."""
    tally.cuts += 1
    acked: dict[int, Acked] = {}
    for entry in recording.log[:cut]:
        if isinstance(entry, Acked):
            acked[entry.sample] = entry
        elif isinstance(entry, Released):
            acked.pop(entry.sample, None)
    tally.acked += len(acked)
    paths = StatePaths(folder)
    try:
        if _went_back(paths):
            tally.alarms += 1
            paths.stamp.unlink()
        lost = _reopen(paths, recording, acked, tally)
    except (EagledError, sqlite3.DatabaseError):
        tally.corrupt += 1
        return
    tally.lost += lost
    tally.cuts_with_loss += lost > 0


def _went_back(paths: StatePaths) -> bool:
    try:
        inspect(paths)
    except StoreError as exc:
        return "went back in time" in str(exc)
    return False


def _reopen(paths: StatePaths, recording: Recording, acked: dict[int, Acked], tally: Tally) -> int:
    found = inspect(paths)
    with closing(connect(paths.database, "rw")) as conn:
        opened = open_database(paths, conn, found, _NOW_MS, _NOW_MS, lambda _: None)
        opened.stamp.close()
        lost = sum(_is_lost(conn, entry) for entry in acked.values())
        if conn.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            tally.corrupt += 1
        report = check_database(paths)
        tally.rows += report.samples
        tally.missing += len(report.damaged)
        tally.other += len(report.problems) - bool(report.damaged)
        _import_again(opened.db, recording, tally)
    return lost


def _is_lost(conn: sqlite3.Connection, entry: Acked) -> bool:
    row = conn.execute(
        "SELECT attempt, output_crc FROM sample WHERE id = ?", (entry.sample,)
    ).fetchone()
    return row is None or tuple(row) != (entry.attempt, entry.crc)


def _import_again(db: Any, recording: Recording, tally: Tally) -> None:  # noqa: ANN401 - any Executor
    """Add everything again: each sample is there exactly once afterwards."""
    if not db.sql("SELECT 1 FROM dataset"):
        return  # cut before the dataset was registered
    run_batch(
        db,
        [AddConversations(1, recording.items)],
        lambda: Tx(db, 1_800_000_000_002, 1_800_000_000_002, 2, {}),
    )
    wanted = {turn.uid for item in recording.items for turn in item.turns}
    stored = [row[0] for row in db.sql("SELECT uid FROM sample")]
    tally.doubled += len(stored) - len(set(stored))
    tally.other += len(wanted.symmetric_difference(stored))


def cut_once(recording: Recording, rng: random.Random, tally: Tally, work: Path) -> None:
    """Replay a run to a random point, cut the power, and check what is left."""
    cut = rng.randrange(1, len(recording.log) + 1)
    disk = Disk(recording.start)
    for entry in recording.log[:cut]:
        disk.apply(entry)
    folder = work / "cut"
    folder.mkdir()
    try:
        for name, data in disk.cut(rng).items():
            (folder / name).write_bytes(data)
        check_cut(folder, recording, cut, tally)
    finally:
        shutil.rmtree(folder)


def simulate(cuts: int, *, sync: str, seed: int, work: Path) -> Tally:
    """Return the tally of `cuts` cuts at one setting of synchronous."""
    rng = random.Random(f"{seed}/{sync}")
    tally = Tally()
    number = 0
    while tally.cuts < cuts:
        number += 1
        folder = work / f"run-{sync}-{number}"
        folder.mkdir()
        checkpoint = rng.choice((20, 100, 400))
        try:
            recording = record_run(
                folder, rng.randrange(1 << 30), sync=sync, autocheckpoint=checkpoint
            )
        finally:
            shutil.rmtree(folder)
        for _ in range(min(CUTS_A_RUN, cuts - tally.cuts)):
            cut_once(recording, rng, tally, work)
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result at FULL and of the controls; 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(description="Simulated power cuts of the store.")
    parser.add_argument("--cuts", type=int, default=100, help="cuts at synchronous=FULL")
    parser.add_argument("--control-cuts", type=int, default=40, help="cuts a control")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="default: /dev/shm or /tmp")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    base = args.folder or next((p for p in (Path("/dev/shm"), Path("/tmp")) if p.is_dir()), None)  # noqa: S108 - tmpfs is the point
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=base) as name:
        work = Path(name)
        full = simulate(args.cuts, sync="FULL", seed=args.seed, work=work)
        elapsed_s = time.monotonic() - began
        controls = {
            sync: simulate(args.control_cuts, sync=sync, seed=args.seed, work=work)
            for sync in ("NORMAL", "OFF")
        }
    teeth = all(not tally.clean() for tally in controls.values())
    if args.json:
        report = {"FULL": asdict(full)} | {k: asdict(v) for k, v in controls.items()}
        print(json.dumps(report | {"seed": args.seed, "s_per_cut": elapsed_s / args.cuts}))
    else:
        print(
            f"FULL: cuts={full.cuts} acknowledged={full.acked} lost={full.lost} "
            f"doubled={full.doubled} missing={full.missing} corrupt={full.corrupt} "
            f"alarms={full.alarms} other={full.other} "
            f"({1000 * elapsed_s / args.cuts:.0f} ms a cut, seed {args.seed})"
        )
        for sync, tally in controls.items():
            verdict = "caught, as it must be" if not tally.clean() else "NOT CAUGHT: no teeth"
            print(
                f"control {sync}: cuts={tally.cuts} lost={tally.lost} corrupt={tally.corrupt} "
                f"alarms={tally.alarms}: {verdict}"
            )
    return 0 if full.clean() and teeth else 1


if __name__ == "__main__":
    sys.exit(main())
