"""The course of a run: a line every half minute in `history.jsonl`, for the report.

Guarantee: bounded; past `MAX_BYTES` every second line goes, so the oldest part becomes coarser and
the newest stays fine. Readers leave out a line that is torn. Not synced: a power cut may cost the
last minutes of it, and nothing depends on it. docs/formats.md describes the lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

HISTORY_EVERY_S = 30.0
MAX_BYTES = 4 << 20
_COUNTED = ("done", "extracted", "failed", "rejected")
_LANE_KEYS = ("out_tok_per_s", "in_tok_per_s", "in_flight", "limit")


def moment(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the history keeps of a status document."""
    datasets = document["datasets"].values()
    return {
        "at_ms": document["at_ms"],
        "epoch": document["epoch"],
        "phase": document["phase"],
        **{key: sum(d[key] for d in datasets) for key in _COUNTED},
        "lanes": {
            name: {key: lane[key] for key in _LANE_KEYS} for name, lane in document["lanes"].items()
        },
        "shard_bytes": document["extraction"]["bytes"],
        "used_bytes": document["disk"]["used_bytes"],
        "free_bytes": document["disk"]["free_bytes"],
        "alarms": len(document["alarms"]),
    }


def add_moment(path: Path, document: Mapping[str, Any], max_bytes: int = MAX_BYTES) -> None:
    """Append a status document's numbers; blocking, a few milliseconds at most once a week."""
    with path.open("ab") as file:
        file.write(orjson.dumps(moment(document), option=orjson.OPT_APPEND_NEWLINE))
        size = file.tell()
    if size > max_bytes:
        tmp = path.with_name(path.name + ".tmp")
        tmp.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1::2]))
        tmp.replace(path)


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines, oldest first; none when there is no file."""
    try:
        raw = path.read_bytes()
    except OSError:
        return []
    found = (_parsed(line) for line in raw[-2 * MAX_BYTES :].splitlines())
    return sorted((line for line in found if line is not None), key=lambda line: line["at_ms"])


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    whole = isinstance(line, dict) and isinstance(line.get("at_ms"), int)
    return line if whole and isinstance(line.get("lanes"), dict) else None
