"""Inputs and expected outcomes of the known faults (`tests/data/faults/index.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).parent / "data" / "faults"


def fault_row(fault_id: str) -> dict[str, Any]:
    """Return the entry of one fault, for example `fault_row("F34")`.

    Raises:
        KeyError: if the index has no such id.
    """
    rows = json.loads((FAULTS / "index.json").read_text(encoding="utf-8"))
    return {str(row["id"]): dict(row) for row in rows}[fault_id]


def fault_file(relpath: str) -> Path:
    """Return the path of an input file, named as in a fault's `files`; read it only."""
    path = FAULTS / relpath
    if not path.is_file():
        raise FileNotFoundError(path)
    return path
