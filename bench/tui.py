"""What watching costs: bytes, CPU, memory and time to the first frame of `eagled top`.

    python -m bench.tui [--seconds 30] [--soak-s 600] [--rows 1000 1000000]

- cases: bytes to the terminal and CPU of the screen's process a tick at 4 Hz under tmux, 12 lanes
  and 12 datasets or a list of 200 samples of which every row changes, at 80x24 and 160x50. The
  reference, in the same run, is the same data in Textual's DataTable (bench/tui_table.py).
- first_frame_s: from the start of the process until the first live numbers stand on the screen.
- status_build_ms: making and serialising the daemon's status document of that size.
- queue: status, a page of samples and the first frame on a real daemon with `--rows` samples.
- soak: resident memory a minute after the start and at the end, at 4 Hz.

Prints one JSON line. `ok` says which bounds of the issue hold: 4 KB and 3% of a core a tick, 1 s to
the first frame, 2 ms to build, no growth over 5% in the soak, the longest queue at most 1.5 times
the shortest one's time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from bench.store import load, prepare
from eagled.control import call
from eagled.disk import DiskView
from eagled.paths import StatePaths
from eagled.progress import Point, Progress
from eagled.status import Alarm, ExtractionView, Facts, ServerView, ShardTotals, build_status
from eagled.store.records import CounterRow, DatasetRow, LaneRow
from eagled.tokens import pack_ids
from eagled.types import Mode, SampleState
from eagled.workers.generation.rates import LaneMetrics
from tests.daemon_kit import daemon, write_config
from tests.e2e.terminal import (
    STATUS,
    CannedDaemon,
    Tmux,
    clean_environ,
    process_of,
    tmux,
    top_command,
)

SIZES = ((80, 24), (160, 50))
HZ = 4.0
N_LANES = N_DATASETS = 12
N_SAMPLES = 200
POINT_EVERY = 20  # requests; the daemon adds a point to a history every five seconds
SETTLE_S = 4.0  # start-up paint is not a tick
STARTS = 5
CALLS = 20
MAX_BYTES, MAX_CPU, MAX_FRAME_S, MAX_BUILD_MS = 4096, 3.0, 1.0, 2.0
MAX_GROWTH, MAX_QUEUE = 1.05, 1.5
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one screen took while it was watched."""

    ticks: int
    bytes_per_tick: int
    cpu_percent: float


def example() -> Document:
    """Return a status with 12 lanes and 12 datasets."""
    document: Document = json.loads(json.dumps(STATUS))
    for name, n in (("lanes", N_LANES), ("datasets", N_DATASETS)):
        first = next(iter(document[name].values()))
        document[name] = {f"{name[:-1]}-{i:02d}": json.loads(json.dumps(first)) for i in range(n)}
    return document


def moving(rng: random.Random) -> Callable[[Document], None]:
    """Return a change that moves every live number of a status a little."""
    asked = count()

    def change(document: Document) -> None:
        point = next(asked) % POINT_EVERY == 0
        for lane in document["lanes"].values():
            for name in ("out_tok_per_s", "in_tok_per_s"):
                lane[name] *= rng.uniform(0.98, 1.02)
            lane["queued"] -= rng.randrange(1, 4)
            lane["generated"] += rng.randrange(1, 4)
            if point:
                lane["history"] = [*lane["history"][1:], lane["out_tok_per_s"]]
        for dataset in document["datasets"].values():
            dataset["queued"] -= rng.randrange(1, 3)
            dataset["generated"] += rng.randrange(1, 3)
        server = document["servers"][0]
        server["kv_usage"] = rng.uniform(0.6, 0.8)
        server["gen_tok_per_s"] *= rng.uniform(0.98, 1.02)
        document["extraction"]["samples"] += rng.randrange(3)
        document["uptime_s"] += 1 / HZ

    return change


def listing(rng: random.Random) -> Callable[[], Document]:
    """Return a list of 200 samples, other numbers at every call."""

    def rows() -> Document:
        now = time.time_ns() // 1_000_000
        return {"samples": [_sample(i, now, rng) for i in range(1, N_SAMPLES + 1)]}

    return rows


def _sample(i: int, now: int, rng: random.Random) -> Document:
    return {
        "id": i, "uid": f"{i:032x}", "dataset": f"dataset-{i % N_DATASETS:02d}", "lane": "lane-00",
        "turn": 0, "state": "generating", "attempt": 1, "failures": 0, "n_prompt": 700 + i,
        "n_output": rng.randrange(5000), "finish": None, "reason": None, "detail": None,
        "updated_ms": now - rng.randrange(300_000),
    }  # fmt: skip


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


@contextmanager
def canned(folder: Path) -> Iterator[CannedDaemon]:
    """A daemon whose numbers change at every request."""
    rng = random.Random(1)
    socket = folder / "c.sock"
    answers = {"/v1/samples": listing(rng), "/v1/training": dict}
    with CannedDaemon(socket, moving(rng), document=example(), answers=answers) as found:
        yield found


def _command(socket: Path, *, listed: bool, table: bool) -> str:
    if not table:
        return top_command(socket, "--hz", str(HZ))
    words = [sys.executable, "-m", "bench.tui_table", "--socket", str(socket), "--hz", str(HZ)]
    return " ".join([*words, *(["--list"] if listed else [])])


def cost(size: tuple[int, int], seconds: float, *, listed: bool, table: bool) -> Cost:
    """Watch one screen for some seconds."""
    with tempfile.TemporaryDirectory() as name, canned(Path(name)) as found:
        folder = Path(name)
        with tmux(folder) as terminal:
            command = _command(found.socket, listed=listed, table=table)
            terminal.start(command, size=size, environ=clean_environ())
            terminal.wait_for("LIVE")
            if listed and not table:
                terminal.press("3")
            if listed:
                terminal.wait_for("generating")
            time.sleep(SETTLE_S)
            module = "bench.tui_table" if table else "eagled.tui"
            return _watched(terminal, found, folder, seconds, process_of(module, str(found.socket)))


def _watched(terminal: Tmux, found: CannedDaemon, folder: Path, seconds: float, pid: int) -> Cost:
    log = folder / "bytes"
    terminal.run("pipe-pane", "-t", "top", f"cat > {log}")
    ticks, cpu, began = found.n_status, cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    elapsed, n, used = time.monotonic() - began, found.n_status - ticks, cpu_s(pid) - cpu
    terminal.run("pipe-pane", "-t", "top")
    assert n > 0
    return Cost(n, round(log.stat().st_size / n), round(100 * used / elapsed, 2))


def cases(seconds: float) -> list[Document]:
    """Return ours and the reference in every case."""
    found = []
    for listed in (False, True):
        for size in SIZES:
            ours = cost(size, seconds, listed=listed, table=False)
            table = cost(size, seconds, listed=listed, table=True)
            found.append({
                "what": "200 samples" if listed else "12 lanes, 12 datasets",
                "size": f"{size[0]}x{size[1]}", "ours": asdict(ours), "datatable": asdict(table),
                "bytes_ratio": round(ours.bytes_per_tick / max(1, table.bytes_per_tick), 3),
                "cpu_ratio": round(ours.cpu_percent / max(0.01, table.cpu_percent), 3),
            })  # fmt: skip
    return found


def first_frame_s(socket: Path, times: int = STARTS) -> float:
    """Return the median time from the start of the process to live numbers on the screen."""
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder, tmux(Path(folder)) as terminal:
            began = time.monotonic()
            terminal.start(top_command(socket), size=SIZES[0], environ=clean_environ())
            terminal.wait_for("LIVE")
            taken.append(time.monotonic() - began)
    return round(statistics.median(taken), 3)


def _facts() -> Facts:
    names = [f"d{i}" for i in range(N_DATASETS)]
    lanes = [LaneRow(f"l{i}", i, 10_000, 200) for i in range(N_LANES)]
    return Facts(
        run="r", version="0", at_ms=2, started_ms=1, phase="generating", pid=1, epoch=1,
        counters=[CounterRow(d, lane.name, state, 7)
                  for d in names for lane in lanes for state in SampleState],
        lanes=lanes,
        lane_metrics={x.name: LaneMetrics(3, 200, False, 4, 12.3, 6.0, 1.0, 2.0) for x in lanes},  # noqa: FBT003 - a record
        datasets=[DatasetRow(i, d, 0, False, Mode.REGENERATE, "k", 9, 9, 0, True)  # noqa: FBT003 - a record
                  for i, d in enumerate(names)],
        servers=[ServerView("http://h", "up", "1", "m", 3, 3, 0, 0.5, 20.0, 0, None)],
        shards=ShardTotals(1, 2, 100, 2000),
        extraction=ExtractionView("running", "", False, 1, 50),  # noqa: FBT003 - a record
        disk=DiskView(10, 20, 30, 5, 7, None, False, "", False),  # noqa: FBT003 - a record
        alarms=[Alarm("k", "warn", "look", 1)], oldest_running_s=1.0, held_text=0,
        stale_completions=0, queue_depth=0, workers={},
    )  # fmt: skip


def status_build_ms() -> float:
    """Return the median time to make and serialise a status with full histories."""
    facts, progress = _facts(), Progress()
    rates = {lane.name: 12.3 for lane in facts.lanes}
    keys = [f"lane:{x.name}" for x in facts.lanes] + [f"dataset:{x.name}" for x in facts.datasets]
    for i in range(200):
        progress.add(Point(5.0 * i, rates, dict.fromkeys(keys, i), i, i, i))
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        orjson.dumps(build_status(facts, progress))
        taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken), 3)


def queue(rows: int) -> Document:
    """Return what looking at a queue of `rows` samples takes, on a real daemon."""
    with tempfile.TemporaryDirectory() as name:
        config, paths = write_config(Path(name)), StatePaths(Path(name) / "state")
        asyncio.run(prepare(paths))
        load(paths, rows, [pack_ids([1])])
        with daemon(config) as process:
            process.until(bool, timeout_s=600)
            return {
                "rows": rows,
                "status_ms": _call_ms(process.socket, "/v1/status"),
                "first_page_ms": _call_ms(process.socket, "/v1/samples", limit=N_SAMPLES),
                "last_page_ms": _call_ms(process.socket, "/v1/samples", limit=N_SAMPLES,
                                         after=max(0, rows - N_SAMPLES), state="queued"),
                "failures_ms": _call_ms(process.socket, "/v1/failures"),
                "first_frame_s": first_frame_s(process.socket),
            }  # fmt: skip


def _call_ms(socket: Path, path: str, **query: int | str) -> float:
    taken = []
    for _ in range(CALLS):
        time.sleep(0.25)  # longer than a status is kept
        began = time.perf_counter()
        call.get(socket, path, **query)
        taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken), 2)


def soak(seconds: float) -> Document:
    """Return the memory of a screen early and late."""
    first = min(60.0, seconds / 4)
    with (
        tempfile.TemporaryDirectory() as name,
        canned(Path(name)) as found,
        tmux(Path(name)) as terminal,
    ):
        command = _command(found.socket, listed=False, table=False)
        terminal.start(command, size=SIZES[1], environ=clean_environ())
        terminal.wait_for("LIVE")
        pid = process_of("eagled.tui", str(found.socket))
        time.sleep(first)
        early = memory_mb(pid)
        time.sleep(seconds - first)
        late = memory_mb(pid)
    return {"seconds": seconds, "early_mb": round(early, 1), "late_mb": round(late, 1),
            "growth": round(late / early, 3), "ticks": found.n_status}  # fmt: skip


def slack(name: str) -> float:
    """Return what two measurements of the same may differ by, in their own unit."""
    return 1.0 if name.endswith("_ms") else 0.1


def holds(result: Document) -> dict[str, bool]:
    """Return which bounds hold."""
    ours = [case["ours"] for case in result["cases"]]
    few, many = result["queue"][0], result["queue"][-1]
    return {
        "bytes": all(c["bytes_per_tick"] <= MAX_BYTES for c in ours),
        "cpu": all(c["cpu_percent"] <= MAX_CPU for c in ours),
        "less_than_datatable": all(c["bytes_ratio"] < 1 for c in result["cases"]),
        "first_frame": result["first_frame_s"] <= MAX_FRAME_S,
        "build": result["status_build_ms"] <= MAX_BUILD_MS,
        "soak": result["soak"]["growth"] <= MAX_GROWTH,
        "queue": all(many[k] <= MAX_QUEUE * few[k] + slack(k) for k in few if k != "rows"),
    }


def main() -> None:
    """Measure everything, print one line."""
    parser = argparse.ArgumentParser(description="What `eagled top` costs.")
    parser.add_argument("--seconds", type=float, default=30.0, help="a case is watched this long")
    parser.add_argument("--soak-s", type=float, default=600.0)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 1_000_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, canned(Path(name)) as found:
        frame = first_frame_s(found.socket)
    result: Document = {
        "bench": "tui", "reference": "the same data in Textual's DataTable, in the same run",
        "hz": HZ, "load_average": os.getloadavg()[0], "first_frame_s": frame,
        "status_build_ms": status_build_ms(), "cases": cases(options.seconds),
        "queue": [queue(rows) for rows in options.rows], "soak": soak(options.soak_s),
    }  # fmt: skip
    print(json.dumps({**result, "ok": holds(result)}))


if __name__ == "__main__":
    main()
