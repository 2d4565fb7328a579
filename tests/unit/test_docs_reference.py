"""The pages that list commands, events and errors are complete."""

from __future__ import annotations

import re
from pathlib import Path

from eagled import errors
from eagled.commands.reference import render_reference
from eagled.errors import EagledError
from eagled.types import EventKind

DOCS = Path(__file__).parents[2] / "docs"


def _rows(page: str, section: str) -> list[list[str]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    part = re.split(rf"^## {section}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("| `")
    ]


def test_the_page_of_commands_is_up_to_date() -> None:
    """`python -m eagled.commands.reference` was run after the last change of a command."""
    assert render_reference() == (DOCS / "commands.md").read_text(encoding="utf-8")


def test_every_event_kind_is_explained() -> None:
    """The table has each kind once, and no other."""
    assert sorted(EventKind) == sorted(row[0] for row in _rows("events.md", "Events"))


def test_every_error_is_explained_with_its_exit_code() -> None:
    """The table has each class once, with the code that a command ends with."""
    classes = {
        name: str(kind.exit_code)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, EagledError) and kind is not EagledError
    }

    assert classes == {row[0]: row[1] for row in _rows("events.md", "Errors")}
