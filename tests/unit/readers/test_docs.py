"""docs/datasets.md has a section for each format, and knows every dataset by name."""

from __future__ import annotations

import re
from pathlib import Path

import eagled.readers
from eagled.readers import formats

DOCS = Path(__file__).parents[3] / "docs"


def test_every_format_has_its_section() -> None:
    """One heading a format, no heading without one, and the hub ids below."""
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    parts = re.split(r"^### ", text.partition("## Formats of single")[2], flags=re.MULTILINE)[1:]
    sections = {part.partition("\n")[0]: part for part in parts}

    assert {known.name for known in formats()} == set(sections)
    for known in formats():
        assert [] == [hub_id for hub_id in known.hub_ids if hub_id not in sections[known.name]]


def test_every_flag_of_a_reader_is_explained() -> None:
    """A word that a reader writes beside a row is in the list of flags."""
    listed = (DOCS / "formats.md").read_text(encoding="utf-8")
    found: set[str] = set()
    for path in Path(eagled.readers.__path__[0]).glob("*.py"):
        source = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'flags\.add\("(\w+)"\)', source))
        found |= set(re.findall(r'^_?[A-Z_]+ = "([a-z]+_[a-z_]+)"$', source, flags=re.MULTILINE))

    assert {"exit_context", "system_dropped", "html_stripped", "text_after_command"} <= found
    assert [] == sorted(flag for flag in found - {"function_call"} if f"`{flag}`" not in listed)
