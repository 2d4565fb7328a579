"""A long run with faults: is the daemon's memory flat, and is nothing lost or doubled?

    python -m bench.soak --minutes 30 --conversations 130000

One daemon, never restarted, works at 200 requests against the canned server while every minute one
fault comes: the server killed, the server frozen, the text worker killed, a follower of the events
frozen until it is cut off; each is undone after some seconds. A witness in a process of its own
writes down every acknowledgement; in the end database and a frozen corpus are compared with that.
Memory is the daemon's RSS every `SAMPLE_S` seconds, in fifths of the run; the first is warming up.

Reference: the median of the second fifth; `ratio` is the last fifth over it, 1.0 is flat. A leak of
1 KB a sample shows as 200 MB in 200,000. The work must last: the run fails when it is done early.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bench.crash.world import World, make_world, wait_until
from eagled.audit import Audit, audit
from eagled.control import call
from eagled.errors import UnreachableError

LIMIT = 200
SAMPLE_S = 5.0
FLAT = 1.1  # the allocator's own ups and downs stay below a tenth
_FAULT_EVERY_S = 60.0
_START_S = 300.0
_STOP_S = 120.0
_MIB = 1 << 20
_CONFIG = (
    ("limit = 32\nconcurrency = 32", f"limit = {LIMIT}\nconcurrency = {LIMIT}"),
    ("[extract]\n", '[extract]\nbackend = "off"\n'),
)


@dataclass(slots=True)
class Course:
    """What was seen while it ran, a value every `SAMPLE_S` seconds."""

    rss_mib: list[float] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


class Faults:
    """What goes wrong in turn. Each returns how long it lasts, in seconds, and what undoes it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._text = self._start_text()
        self._reader = self._start_reader()
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._next = itertools.cycle(
            (self.server_killed, self.server_frozen, self.text_killed, self.reader_frozen)
        )

    def strike(self, now: float) -> str:
        """Let the next one come; return its name."""
        fault = next(self._next)
        lasts_s, undo = fault()
        self._undo.append((now + lasts_s, undo))
        return fault.__name__

    def look(self, now: float) -> None:
        """Undo what has lasted long enough."""
        for due, undo in [item for item in self._undo if item[0] <= now]:
            self._undo.remove((due, undo))
            undo()

    def server_killed(self) -> tuple[float, Callable[[], None]]:
        """The server dies with all its requests."""
        self._world.engine.kill()
        return 5.0, self._world.engine.start

    def server_frozen(self) -> tuple[float, Callable[[], None]]:
        """The server answers nothing; its connections stay."""
        self._world.engine.signal(signal.SIGSTOP)
        return 8.0, lambda: self._world.engine.signal(signal.SIGCONT)

    def text_killed(self) -> tuple[float, Callable[[], None]]:
        """The text worker dies with what it held."""
        self._end(self._text)
        return 5.0, self._text_again

    def reader_frozen(self) -> tuple[float, Callable[[], None]]:
        """A follower of every acknowledgement takes none."""
        self._reader.send_signal(signal.SIGSTOP)
        return 45.0, self._reader_again

    def _text_again(self) -> None:
        self._text = self._start_text()

    def _reader_again(self) -> None:
        self._end(self._reader)
        self._reader = self._start_reader()

    def _start_text(self) -> subprocess.Popen[bytes]:
        config = str(self._world.config)
        return self._start("text", "eagled", "worker", "text", "--config", config)

    def _start_reader(self) -> subprocess.Popen[bytes]:
        socket = str(self._world.state.socket)
        return self._start("reader", "bench.crash.witness", "--socket", socket, "--out", os.devnull)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        self._world.helper(*command)
        return self._world.helpers[-1]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self._world.helpers.remove(process)


def _status(world: World) -> dict[str, Any]:
    code = world.daemon_ended()
    if code is not None:
        log = (world.root / "daemon.log").read_text(errors="replace")[-3000:]
        raise SystemExit(f"the daemon ended with {code}:\n{log}")
    return dict(call.get(world.state.socket, "/v1/status"))


def _done(world: World) -> int:
    return int(_status(world)["datasets"].get("chat", {}).get("done", 0))


def _answers(world: World) -> bool:
    try:
        return bool(_status(world))
    except UnreachableError:
        return False


def _unchecked(world: World) -> int:
    """Return how many answers the text worker has still to look at."""
    query = "SELECT count(*) FROM sample WHERE state = 3 AND checked = 0"
    with closing(sqlite3.connect(f"file:{world.state.database}?mode=ro", uri=True)) as db:
        return int(db.execute(query).fetchone()[0])


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / _MIB


def soak(world: World, minutes: float) -> Course:
    """Let the daemon work under faults; return what was seen."""
    course, faults = Course(), Faults(world)
    wait_until(lambda: _done(world) > 0, _START_S, "work")
    began = time.monotonic()
    fault_at = began + _FAULT_EVERY_S
    while (now := time.monotonic()) < began + minutes * 60:
        faults.look(now)
        if now >= fault_at:
            fault_at += _FAULT_EVERY_S
            course.faults[faults.strike(now)] += 1
        work = _status(world)["datasets"]["chat"]
        if work["done"] >= work["total"] > 0:
            raise SystemExit("the work was done early: use more --conversations")
        assert world.daemon is not None
        course.rss_mib.append(_rss_mib(world.daemon.pid))
        course.done.append(work["done"])
        time.sleep(SAMPLE_S)
    faults.look(float("inf"))
    return course


def finish(world: World) -> Audit:
    """Let it come to rest, freeze a corpus, stop, and compare with what the witness saw."""
    world.command("drain", "--wait")
    wait_until(lambda: _unchecked(world) == 0, _START_S, "check of the last answers")
    world.command("merge")
    code = world.stop_daemon(_STOP_S)
    if code:
        raise SystemExit(f"the daemon ended with {code} on SIGTERM")
    acks = (orjson.loads(line) for line in world.acks.read_bytes().splitlines())
    corpus = max(world.state.corpora.iterdir()) / "corpus.parquet"
    return audit(acks, world.state.database, corpus=corpus)


def report_of(course: Course, found: Audit, minutes: float) -> dict[str, Any]:
    """Return the line that is printed."""
    n = len(course.rss_mib)
    fifths = [course.rss_mib[i * n // 5 : (i + 1) * n // 5] for i in range(5)]
    medians = [round(statistics.median(part), 1) for part in fifths]
    n_done = course.done[-1] - course.done[0]
    n_between = course.done[9 * n // 10] - course.done[3 * n // 10]  # middles of those fifths
    return {
        "bench": "soak",
        "minutes": minutes,
        "in_flight": LIMIT,
        "completions": n_done,
        "completions_per_s": round(n_done / ((n - 1) * SAMPLE_S), 1),
        "faults": dict(course.faults),
        "rss_mib_by_fifth": medians,
        "rss_mib_most": round(max(course.rss_mib), 1),
        "ratio": round(medians[-1] / medians[1], 3),
        "grown_kib_per_sample": round((medians[-1] - medians[1]) * 1024 / max(n_between, 1), 3),
        "acknowledged": found.acknowledged,
        "lost": len(found.lost),
        "doubled": len(found.doubled),
        "reference": "the median RSS of the second fifth; 1.0 is flat",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON line; 0 when memory was flat and nothing was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--conversations", type=int, default=130_000)
    parser.add_argument("--mean-ms", type=float, default=1500, help="mean time of a reply")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--dir", type=Path, help="where to work; default: a temporary folder")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no child stays
    with tempfile.TemporaryDirectory(prefix="eagled-soak-") as temporary:
        world = make_world(
            args.dir or Path(temporary) / "w", conversations=args.conversations, seed=args.seed,
            mean_ms=args.mean_ms,
        )  # fmt: skip
        try:
            _widen(world.config)
            world.helper(
                "witness", "bench.crash.witness", "--socket", str(world.state.socket), "--out",
                str(world.acks),
            )  # fmt: skip
            world.start_daemon()
            wait_until(lambda: _answers(world), _START_S, "answer from the daemon")
            course = soak(world, args.minutes)
            found = finish(world)
        finally:
            world.close()
    report = report_of(course, found, args.minutes)
    for line in (*found.lost, *found.doubled)[:20]:
        sys.stderr.write(f"  {line}\n")
    print(json.dumps(report))
    return 0 if found.ok and report["ratio"] <= FLAT else 1


def _widen(config: Path) -> None:
    """Turn the crash harness's configuration into one of 200 requests and no hidden states."""
    text = config.read_text()
    for old, new in _CONFIG:
        assert old in text, old
        text = text.replace(old, new)
    config.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
