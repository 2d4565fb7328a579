"""`docs/demo-data.md` says what is really fetched and built."""

from __future__ import annotations

from pathlib import Path

from eagled.demo import data
from eagled.demo.convert import MODEL_NAME
from eagled.demo.fetch import CACHE_VARIABLE, PACKAGES

PAGE = Path(__file__).parents[3] / "docs" / "demo-data.md"


def test_every_pin_is_documented() -> None:
    """Package, version, licence, file name and checksum stand together in one table row."""
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    pins = [(p.name, p.version, p.licence, f.name, f.sha256) for p in PACKAGES for f in p.files]
    missing = [pin for pin in pins if not any(all(w in row for w in pin) for row in rows)]

    assert [] == missing


def test_names_in_the_page_are_the_codes() -> None:
    """Cache variable, model and dataset sizes are those of the code."""
    page = PAGE.read_text(encoding="utf-8")

    assert f"${CACHE_VARIABLE}" in page
    assert MODEL_NAME in page
    assert f"| {data._TOOL_ROWS} | {data._TOOL_ROWS} |" in page
    assert f"| {data._TWO_TURN_CHATS + data._THREE_TURN_CHATS} conversations of 2 or 3" in page
