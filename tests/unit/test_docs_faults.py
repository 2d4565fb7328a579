"""The page about faults names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([a-z_/]+)::([a-z_0-9]+)`")
PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")


def _file(name: str) -> Path:
    return ROOT / "tests" / (f"{name}.py" if "/" in name else f"integration/test_{name}.py")


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED.findall(PAGE))))
def test_every_test_that_holds_a_fault_is_there(file: str, test: str) -> None:
    """A test that is renamed or removed is noticed here."""
    assert f"def test_{test}(" in _file(file).read_text(encoding="utf-8")


def test_every_fault_names_what_holds_it() -> None:
    """No row is a promise only."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    faults = [row for row in rows if not row.startswith(("| fault", "| ---"))]

    assert [] == [row for row in faults if "::" not in row and "the same" not in row]
    assert len(faults) > 30
