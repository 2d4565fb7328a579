"""What a training run wrote so far, for people: the newest run, thinned to what a screen shows.

Guarantee: the file is read from its end, at most `TAIL_BYTES` of it, whatever the run's length; a
torn last line is left out. Loads neither torch nor numpy. Coupled to eagled/train/metrics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

METRICS_NAME = "metrics.jsonl"
STATUS_NAME = "status.json"
TAIL_BYTES = 2 << 20
MAX_POINTS = 300
SILENT_MS = 600_000  # a step takes seconds; a run that is silent for this has ended or stands


def newest_training(drafts: Path, *, brief: bool = False) -> dict[str, Any]:
    """Return name, steps and estimates of the run that wrote last; name None when there is none.

    Steps are thinned evenly to `MAX_POINTS`, first and last kept; `brief` leaves steps and
    estimates out: two small files are looked at.
    """
    path = _newest(drafts)
    if path is None:
        return {"name": None, "updated_ms": None, "steps": [], "estimates": [], "done": False,
                "status": {}}  # fmt: skip
    lines = [] if brief else _tail(path)
    steps = [_step(line) for line in lines if line.get("kind") == "step"]
    estimates = [line for line in lines if line.get("kind") == "estimate"]
    return {
        "name": path.parent.name,
        "updated_ms": int(path.stat().st_mtime * 1000),
        "steps": _thinned(steps),
        "estimates": [_estimate(line) for line in estimates[-20:]],
        "done": (path.parent / "draft" / "config.json").is_file(),
        "status": _status(path.parent),
    }


def _status(folder: Path) -> dict[str, Any]:
    """Return what the run says of itself: step, total, eta_s and such; empty when it does not."""
    try:
        return _parsed((folder / STATUS_NAME).read_bytes()) or {}
    except OSError:
        return {}


def _newest(drafts: Path) -> Path | None:
    found = [p for p in drafts.glob(f"*/{METRICS_NAME}") if p.is_file()]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def _tail(path: Path) -> list[dict[str, Any]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - TAIL_BYTES))
        whole = file.read(TAIL_BYTES).split(b"\n")[:-1]
    if size > TAIL_BYTES:
        whole = whole[1:]
    return [line for line in map(_parsed, whole) if line is not None]


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return line if isinstance(line, dict) else None


_STEP = ("step", "epoch", "lr", "loss", "grad_norm", "accept_length", "tokens", "hit_by_step")


def _step(line: dict[str, Any]) -> dict[str, Any]:
    timing = line.get("timing") or {}
    return {name: line.get(name) for name in _STEP} | {"tok_per_s": timing.get("tok_per_s")}


def _estimate(line: dict[str, Any]) -> dict[str, Any]:
    total = line.get("total") or {}
    return {"step": line.get("step"), "length": total.get("length", line.get("length"))}


def _thinned(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(steps) <= MAX_POINTS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]
