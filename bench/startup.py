"""Start-up, recovery after a kill, and the orderly stop, by size of the database.

    python -m bench.startup --rows 100000 5000000

The real daemon runs on a database of so many samples against a server that answers after
`--reply-s`; it is killed with 200 requests in flight, started again, and in the end stopped with
SIGTERM, again with 200 in flight. A start is over when the daemon says READY=1, as systemd sees it:
database checked, queue put right, control socket open. Times are medians of `--times` starts.

Reference: the first size; a recovery that looks at every row grows with their number, one that does
not stays. The stop cannot be shorter than the rest of the replies that it waits for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.store import flush_ms, load, prepare
from eagled.paths import StatePaths
from eagled.tokens import pack_ids
from tests.daemon_kit import DaemonProcess, daemon, write_config
from tests.servers.process import ServerProcess

LANE_LIMIT = 200
VOCAB = 163_840
PROMPT_TOKENS = 350
START_S = 1800.0  # a check of five million rows on a slow disk takes minutes
FLY_S = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """One size; seconds."""

    rows: int
    file_mb: float
    load_s: float
    start_after_a_clean_stop_s: float
    start_after_a_kill_s: float
    requeued: int
    stop_s: float


@contextmanager
def _manager(folder: Path) -> Iterator[socket.socket]:
    """A socket such as systemd gives a service of type notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.settimeout(START_S)
        yield sock


def _ready(sock: socket.socket, began: float) -> float:
    """Return how long it took until READY=1, in seconds."""
    while b"READY=1" not in sock.recv(4096).split(b"\n"):
        pass
    return time.monotonic() - began


def _full(process: DaemonProcess) -> None:
    """Wait until the lane is full of requests."""
    process.until(lambda status: status["lanes"]["short"]["in_flight"] >= LANE_LIMIT, FLY_S)


def _emptied(sock: socket.socket) -> None:
    """Drop what an earlier daemon said."""
    sock.settimeout(0)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        sock.settimeout(START_S)


def _starts(
    config: Path, sock: socket.socket, times: int, end: Callable[[DaemonProcess], None]
) -> float:
    """Start again and again, `end` each once it is busy; return the median time to READY.

    The first start is not counted: what came before it was ended in another way.
    """
    taken = []
    env = {"NOTIFY_SOCKET": str(sock.getsockname())}
    for _ in range(times + 1):
        _emptied(sock)
        began = time.monotonic()
        with daemon(config, **env) as process:
            taken.append(_ready(sock, began))
            _full(process)
            end(process)
    return statistics.median(taken[1:])


def _kill_and_start(config: Path, sock: socket.socket, times: int) -> tuple[float, int]:
    """Kill a busy daemon and start the next; return the median time to READY, and the requeued."""
    requeued = []

    def end(process: DaemonProcess) -> None:
        requeued.append(_requeued(config))
        process.kill()

    return _starts(config, sock, times, end), max(requeued)


def _requeued(config: Path) -> int:
    """Return what the last start queued again, by its event."""
    database = StatePaths(config.parent / "state").database
    query = "SELECT detail FROM event WHERE kind = 'daemon_started' ORDER BY seq DESC LIMIT 1"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as conn:
        detail = str(conn.execute(query).fetchone()[0])
    return int(detail.split(", ")[1].split(" ", maxsplit=1)[0])


def _clean(config: Path, sock: socket.socket, times: int) -> tuple[float, float]:
    """Stop a busy daemon in order and start the next; return both medians."""
    stopped = []

    def end(process: DaemonProcess) -> None:
        code, took = process.stop()
        assert code == 0, process.log[-2000:]
        stopped.append(took)

    return _starts(config, sock, times, end), statistics.median(stopped)


def measure(folder: Path, rows: int, *, times: int, reply_s: float) -> Size:
    """Fill a database in `folder` and measure."""
    with ServerProcess() as server, _manager(folder) as sock:
        server.steps({"do": "answer", "delay_s": reply_s})
        config = _config(folder, server.url)
        paths = StatePaths(folder / "state")
        paths.root.mkdir()
        asyncio.run(prepare(paths))
        rng = random.Random(rows)
        ids = [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(64)]
        load_s = load(paths, rows, [pack_ids(prompt) for prompt in ids])
        killed_s, requeued = _kill_and_start(config, sock, times)
        clean_s, stop_s = _clean(config, sock, times)
    return Size(
        rows=rows,
        file_mb=round(paths.database.stat().st_size / 1e6, 1),
        load_s=round(load_s, 1),
        start_after_a_clean_stop_s=round(clean_s, 2),
        start_after_a_kill_s=round(killed_s, 2),
        requeued=requeued,
        stop_s=round(stop_s, 2),
    )


def _config(folder: Path, url: str) -> Path:
    lane = {"context": 10_000, "limit": LANE_LIMIT, "concurrency": LANE_LIMIT}
    config = write_config(folder, url, lanes__short=lane, daemon={"stop_timeout_s": 60.0})
    model = {"vocab_size": VOCAB, "max_position_embeddings": 10_240}
    (folder / "model/config.json").write_text(json.dumps(model))
    return config


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON line: each size and the ratios of the last to the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 5_000_000])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--reply-s", type=float, default=1.5)
    parser.add_argument("--folder", type=Path, default=None, help="where; must be a real disk")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no child stays
    sizes: list[Size] = []
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="start") as name:
        flush = flush_ms(Path(name))
        for rows in args.rows:
            folder = Path(name) / str(rows)
            folder.mkdir()
            sizes.append(measure(folder, rows, times=args.times, reply_s=args.reply_s))
            shutil.rmtree(folder)
    first, last = asdict(sizes[0]), asdict(sizes[-1])
    timed = [key for key in first if key.startswith("start_after") or key == "stop_s"]
    report: dict[str, Any] = {
        "bench": "startup",
        "flush_p50_ms": flush,
        "reply_s": args.reply_s,
        "in_flight": LANE_LIMIT,
        "sizes": [asdict(size) for size in sizes],
        "ratio_last_to_first": {key: round(last[key] / first[key], 2) for key in timed},
        "reference": f"the start and stop at {sizes[0].rows} samples",
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
