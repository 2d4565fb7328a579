"""Pictures of screens in which colours and styles matter, as SVG: compare them by eye.

EAGLED_GOLDENS=1 draws them anew.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from textual.pilot import Pilot

from eagled.tui.browse import BrowseApp
from eagled.tui.dialogs import ConfirmDialog
from eagled.tui.screenshot import paint
from eagled.tui.svg import tidy
from eagled.tui.widgets import Look
from tests.unit.tui.answers import ANSWERS, UID
from tests.unit.tui.doubles import EVENTS, FakeSource, Golden, comes_to, make_app, wait_for

LOOKS = {
    "dark": Look(), "light": Look(light=True), "no-colour": Look(colour=False),
    "ascii": Look(ascii_only=True),
}  # fmt: skip


def _app(look: Look) -> tuple[BrowseApp, FakeSource]:
    source = FakeSource()
    source.answers = ANSWERS
    source.reply = {"n": 118}
    app, _, _ = make_app(source, look=look)
    paint(app)
    return app, source


async def _same(pilot: Pilot[Any], name: str) -> None:
    def draw() -> list[str]:
        svg = tidy(pilot.app.export_screenshot(title="eagled top", simplify=True))
        return re.sub(r"terminal-\d+", "terminal", svg).splitlines()

    await comes_to(pilot, Golden(f"{name}.svg"), draw)


@pytest.mark.parametrize("name", LOOKS)
async def test_mask_and_marks(name: str) -> None:
    """The mask, special tokens and alarms in each look, with the overview in front of them."""
    app, _ = _app(LOOKS[name])
    async with app.run_test(size=(80, 24)) as pilot:
        await app.ask()
        app.state.take_events(EVENTS)
        await _same(pilot, f"overview-{name}")
        app.open_sample(UID)
        await app.workers.wait_for_complete()
        await _same(pilot, f"sample-{name}")


async def test_a_question() -> None:
    """The question before a retry."""
    app, _ = _app(LOOKS["dark"])
    async with app.run_test(size=(80, 24)) as pilot:
        await app.ask()
        app.action_view("failures")
        await app.workers.wait_for_complete()
        app.redraw()
        await pilot.press("r")
        await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await _same(pilot, "question")
