"""What watching costs: bytes to the terminal and CPU a tick, under tmux.

`python bench/tui.py [--seconds 20] [--hz 2]` starts a canned daemon whose numbers change at every
request and `eagled top` in a tmux window, lets it settle, then counts what the screen writes and
the CPU time of its process. Prints JSON; the reference is a full repaint of every cell a tick.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.terminal import CannedDaemon, Tmux, clean_environ, tmux, top_command

SIZES = ((80, 24), (160, 50))
POINT_EVERY = 10  # requests; the daemon adds a point to a history every five seconds
SETTLE_S = 3.0  # start-up paint is not a tick
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def moving(rng: random.Random) -> Any:  # noqa: ANN401 - a function of a JSON document
    """Return a change that moves every live number of a status a little."""
    asked = count()

    def change(document: dict[str, Any]) -> None:
        point = next(asked) % POINT_EVERY == 0
        for lane in document["lanes"].values():
            for name in ("out_tok_per_s", "in_tok_per_s"):
                lane[name] *= rng.uniform(0.98, 1.02)
            lane["queued"] -= rng.randrange(3)
            lane["generated"] += rng.randrange(3)
            if point:
                lane["history"] = [*lane["history"][1:], lane["out_tok_per_s"]]
        for dataset in document["datasets"].values():
            dataset["queued"] -= rng.randrange(2)
            dataset["generated"] += rng.randrange(2)
        server = document["servers"][0]
        server["kv_usage"] = rng.uniform(0.6, 0.8)
        server["gen_tok_per_s"] *= rng.uniform(0.98, 1.02)
        document["extraction"]["samples"] += rng.randrange(3)
        document["uptime_s"] += 0.5

    return change


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def process_of(socket: Path) -> int:
    """Return the process that draws the screen."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.exists() else []
            if b"eagled.tui" in words and str(socket).encode() in words and words[0] != b"sh":
                return int(entry.name)
    raise AssertionError("the screen does not run")


def measure(size: tuple[int, int], hz: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Return bytes and CPU a tick at one size."""
    socket, log = folder / "c.sock", folder / "bytes"
    with CannedDaemon(socket, moving(random.Random(1))) as daemon, tmux(folder) as terminal:
        command = top_command(socket, "--hz", str(hz))
        terminal.start(command, size=size, environ=clean_environ())
        terminal.wait_for("LIVE")
        time.sleep(SETTLE_S)
        return watched(terminal, daemon, log, size, seconds, process_of(socket))


def watched(
    terminal: Tmux, daemon: CannedDaemon, log: Path, size: tuple[int, int], seconds: float, pid: int
) -> dict[str, Any]:
    """Count for some seconds."""
    terminal.run("pipe-pane", "-t", "top", f"cat > {log}")
    ticks, cpu, began = daemon.n_status, cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    elapsed, n = time.monotonic() - began, daemon.n_status - ticks
    used = cpu_s(pid) - cpu
    terminal.run("pipe-pane", "-t", "top")
    sent = log.stat().st_size
    assert n > 0
    terminal.press("q")
    assert terminal.exit_code() == 0
    cells = size[0] * size[1]
    return {
        "size": f"{size[0]}x{size[1]}",
        "ticks": n,
        "bytes_per_tick": round(sent / n),
        "share_of_full_repaint": round(sent / n / cells, 3),
        "cpu_percent": round(100 * used / elapsed, 2),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure at both sizes."""
    parser = argparse.ArgumentParser(description="Bytes and CPU of the terminal screen.")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hz", type=float, default=2.0)
    options = parser.parse_args()
    results = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(size, options.hz, options.seconds, Path(folder)))
    print(json.dumps({"bench": "tui", "hz": options.hz, "results": results}, indent=2))


if __name__ == "__main__":
    main()
