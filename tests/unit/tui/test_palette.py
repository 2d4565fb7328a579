"""The command line with its list, and the mouse."""

from __future__ import annotations

import pytest
from textual.events import MouseScrollDown
from textual.widgets import Input

from eagled.tui.browse import entries
from eagled.tui.palette import Entry, Palette, matching
from eagled.tui.views import VIEWS
from tests.unit.tui.answers import ANSWERS
from tests.unit.tui.doubles import FakeSource, make_app, screen_text, wait_for

LIST = [Entry("pause [LANE]", "hold", "pause"), Entry("z", "hold the picture", "!freeze"),
        Entry("limit LANE N", "at once", "limit ")]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", ["pause [LANE]", "z", "limit LANE N"]), ("HOLD", ["pause [LANE]", "z"]),
        ("z", ["z"]), ("limit short 160", ["limit LANE N"]), ("nothing like it", []),
        ("hold pic", ["z"]),
    ],
)  # fmt: skip
def test_what_is_typed_narrows_the_list(typed: str, found: list[str]) -> None:
    """Every word has to be there, whatever its case; arguments after a command are let be."""
    assert found == [entry.words for entry in matching(LIST, typed)]


def test_everything_can_be_found() -> None:
    """Every view and every key's action is in the list."""
    names = {entry.does for entry in entries()}

    assert set(VIEWS) <= names
    assert {"!pause_all", "!retry", "!reject", "!undo", "!freeze", "!quit"} <= names


async def test_a_key_by_its_name() -> None:
    """What is chosen of the list is done; a command that needs more stays in the line."""
    app, source, _ = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.ask()
        await pilot.press("ctrl+p")
        await wait_for(pilot, lambda: isinstance(app.screen, Palette))
        app.screen.query_one(Input).value = "hold the picture"
        await pilot.press("down", "enter")
        await wait_for(pilot, lambda: app.state.frozen)
        await pilot.press("colon")
        await wait_for(pilot, lambda: isinstance(app.screen, Palette))
        line = app.screen.query_one(Input)
        line.value = "requests at once"
        await pilot.press("down", "enter")
        await wait_for(pilot, lambda: line.value == "limit ")
        line.value = "limit short 160"
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(source.posts))

    assert [("/v1/lanes/short", {"limit": 160})] == source.posts


async def test_the_mouse() -> None:
    """A click goes to a row, the wheel moves on, the bar leads to a view, a second click opens."""
    source = FakeSource()
    source.answers = ANSWERS
    app, _, _ = make_app(source)
    async with app.run_test(size=(160, 50)) as pilot:
        await app.ask()
        await wait_for(pilot, lambda: "deepswe" in screen_text(app))
        await pilot.click("#datasets", offset=(5, 4))
        await wait_for(pilot, lambda: "▸openthoughts-114k" in screen_text(app))
        await pilot._post_mouse_events([MouseScrollDown], "#datasets", offset=(5, 4))
        await wait_for(pilot, lambda: "▸ultrachat-200k" in screen_text(app))
        await pilot.click("#bar", offset=(screen_text(app).split("\n")[48].index("4 fail") + 2, 0))
        await wait_for(pilot, lambda: app.state.current == "failures")
        await wait_for(pilot, lambda: "too_many_failures" in screen_text(app))
        await pilot.click("#page-failures", offset=(5, 3))
        await wait_for(pilot, lambda: app.state.current == "samples")

    assert [] == source.posts
