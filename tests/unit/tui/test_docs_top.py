"""docs/top.md and the picture tell of the screen as it is."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from eagled.tui.browse import key_list
from eagled.tui.screenshot import DOCS_PICTURES, demo_picture, picture
from eagled.tui.svg import tidy
from eagled.tui.tables import DATASET_COLUMNS, LANE_COLUMNS
from tests.unit.tui.doubles import EVENTS, status

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/top.md").read_text("utf-8")


def test_every_key_is_documented() -> None:
    """Each key of the screen and its tables is a row of the page, with the words of the help."""
    for keys, what in key_list():
        shown = " ".join(f"`{key}`" for key in keys.split())

        assert f"| {shown} | {what} |" in PAGE


def test_every_column_is_explained() -> None:
    """Each column of both tables is explained on the page."""
    titles = {c.title for c in LANE_COLUMNS} | {c.title for c in DATASET_COLUMNS}
    for title in {t.strip() for t in titles}:
        assert f"| `{title}` |" in PAGE


async def test_the_picture_is_well_formed() -> None:
    """A picture of a status has its words, nothing from the network, and is XML."""
    svg = await picture(status(), 160, 50, EVENTS)
    words = " ".join(ET.fromstring(svg).itertext())  # noqa: S314 - made a line above

    for word in ("kimi-k2.5", "PAUSED", "deepswe-kimi-k2", "server_down", "reserve"):
        assert word in words
    assert not re.search(r"url\(\"?http|@import|<script|<image", svg)
    assert "░" not in svg


def _without_ids(svg: str) -> str:
    return re.sub(r"terminal-\d+", "terminal", svg)


def test_the_pictures_are_shown() -> None:
    """Each picture is on the page and reads as one."""
    for name in DOCS_PICTURES:
        file = ROOT / "docs/images" / name

        assert f"images/{name}" in PAGE
        assert "svg" in ET.parse(file).getroot().tag  # noqa: S314 - our own file


def test_tidy_leaves_words_and_draws_blocks() -> None:
    """Words stand at their own cell; a block is a rectangle of its height."""
    text = (
        '<text class="a" x="12.2" y="20" textLength="61" clip-path="url(#c)">&#160;ab&#160;▄</text>'
    )
    done = tidy(text)

    assert '<text class="a" x="24.4" y="20" textLength="24.4" clip-path="url(#c)">ab</text>' in done
    assert '<rect class="a" x="61.0" y="13.70" width="12.2" height="12.20"/>' in done


async def test_the_pictures_are_up_to_date() -> None:
    """`make docs` was run after the last change of the screen, and gives the same here."""
    for name, (view, size, at_s) in DOCS_PICTURES.items():
        drawn = await demo_picture(*size, view=view, at_s=at_s)

        assert _without_ids((ROOT / "docs/images" / name).read_text("utf-8")) == _without_ids(drawn)
