"""Inputs and expected outcomes of the known faults (`tests/data/faults/index.json`).

Whoever reads an input through here is remembered, so that `make faults` can tell a test that
loads its fault's input from one that only carries the mark.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).parent / "data" / "faults"


class Usage:
    """Which inputs and index rows each test (or module, at import) has read."""

    def __init__(self) -> None:
        self.current: str | None = None
        self.files: defaultdict[str, set[str]] = defaultdict(set)
        self.rows: defaultdict[str, set[str]] = defaultdict(set)

    def reader(self) -> str:
        """Return the running test, or the module that is being imported."""
        return self.current or str(sys._getframe(2).f_globals.get("__name__"))


usage = Usage()


@cache
def _index() -> dict[str, dict[str, Any]]:
    rows = json.loads((FAULTS / "index.json").read_text(encoding="utf-8"))
    return {str(row["id"]): dict(row) for row in rows}


def all_fault_ids() -> list[str]:
    """Return every id of the index, sorted."""
    return sorted(_index())


def fault_row(fault_id: str) -> dict[str, Any]:
    """Return the entry of one fault, for example `fault_row("F34")`.

    Raises:
        KeyError: if the index has no such id.
    """
    usage.rows[usage.reader()].add(fault_id)
    return dict(_index()[fault_id])


def fault_file(relpath: str) -> Path:
    """Return the path of an input file, named as in a fault's `files`; read it only."""
    path = FAULTS / relpath
    if not path.is_file():
        raise FileNotFoundError(path)
    usage.files[usage.reader()].add(relpath)
    return path
