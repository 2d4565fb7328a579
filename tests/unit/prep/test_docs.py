"""docs/formats.md names every reason and flag that prep and the text worker use."""

from __future__ import annotations

import re
from pathlib import Path

from eagled.types import RowReason

ROOT = Path(__file__).parents[3]


def test_every_reason_is_explained() -> None:
    """Each word that rejects.jsonl can hold has its line."""
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")

    assert [] == [reason for reason in RowReason if f"| `{reason}` |" not in text]


def test_every_flag_is_named() -> None:
    """Each flag that the rules set is in the documentation."""
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    flags: set[str] = set()
    for name in ("text/canonical.py", "text/rows.py"):
        source = (ROOT / "eagled" / name).read_text(encoding="utf-8")
        flags |= set(re.findall(r'flags\.add\("(\w+)"\)', source))

    assert len(flags) >= 8
    assert [] == sorted(flag for flag in flags if f"`{flag}`" not in text)
