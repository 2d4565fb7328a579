"""Cells that go to the terminal past Textual leave the picture that Textual would draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from textual.pilot import Pilot
from textual.strip import Strip

from eagled.tui.browse import BrowseApp
from eagled.tui.lines import STYLES, Line, clip
from eagled.tui.patch import Patch
from eagled.tui.widgets import Drawn, Look, _piece
from tests.unit.tui.doubles import FakeSource, make_app, screen_text, status, wait_for

Cells = list[tuple[str, object]]
SPANS = st.lists(st.tuples(st.text("ab 漢─", max_size=4), st.sampled_from(STYLES)), max_size=6)


def _cells(segments: Iterable[Segment]) -> Cells:
    """Each cell with its style; the second cell of a wide character is empty."""
    return [
        (cell, segment.style)
        for segment in segments
        for char in segment.text
        for cell in [char, *[""] * (cell_len(char) - 1)]
    ]


def _line_cells(drawn: Drawn) -> Cells:
    return _cells(Look().strip(drawn, 20, dimmed=False))


@given(old=SPANS, new=SPANS, moved=st.booleans())
def test_a_piece_makes_the_new_line_of_the_old(old: Line, new: Line, *, moved: bool) -> None:
    """Whatever two lines of one width have in common, the old one with the piece is the new one."""
    before = Drawn(clip(tuple(old), 20))
    after = Drawn(clip(tuple(new), 20), cursor=moved)
    x, piece = _piece(before, after)
    shown, sent = _line_cells(before), _line_cells(piece)
    shown[x : x + len(sent)] = sent

    assert _line_cells(after) == shown


def test_pieces_go_to_their_places() -> None:
    """Places count from 0 here and from 1 in the terminal."""
    patch = Patch([(0, 0, Strip([Segment("a")])), (7, 2, Strip([Segment("b")]))])

    assert "\x1b[1;1Ha\x1b[3;8Hb" == patch.render_segments(Console())


def _screen(app: BrowseApp) -> list[Cells]:
    return [_cells(strip) for strip in app.screen._compositor.render_strips()]


def _moved() -> dict[str, Any]:
    document = status()
    for n, lane in enumerate(document["lanes"].values()):
        lane["out_tok_per_s"] += 100 + n
        lane["queued"] -= 7
        lane["history"] = [*lane["history"][1:], 9000.0]
    document["servers"][0]["kv_usage"] = 0.123
    document["alarms"] = []
    document["phase"] = "draining"
    return document


async def _settled(pilot: Pilot[Any], app: BrowseApp) -> None:
    app.apply(status())
    await wait_for(pilot, lambda: "short" in screen_text(app))
    for _ in range(5):
        app.redraw()
        await pilot.pause()


@pytest.mark.parametrize("size", [(160, 50), (80, 24), (60, 12)])
async def test_a_tick_is_sent_as_cells(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """The cells that were there, with those that were sent, are what Textual would draw."""
    app, _, _ = make_app(FakeSource())
    sent: list[object] = []
    async with app.run_test(size=size) as pilot:
        await _settled(pilot, app)
        monkeypatch.setattr(app, "_display", lambda _, update: sent.append(update))
        shown = _screen(app)
        app.apply(_moved())
        (patch,) = sent
        assert isinstance(patch, Patch)
        for x, y, strip in patch.pieces:
            cells = _cells(strip)
            shown[y][x : x + len(cells)] = cells

        assert _screen(app) == shown
    assert patch.pieces


async def test_what_lies_over_the_panels_is_not_drawn_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a dialog and while a message is shown Textual draws; then cells are sent again."""
    app, _, clock = make_app(FakeSource())
    sent: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(pilot, app)
        monkeypatch.setattr(app, "_display", lambda _, update: sent.append(update))
        app.action_help()
        await wait_for(pilot, lambda: len(app.screen_stack) > 1)
        app.apply(_moved())
        await pilot.press("escape")
        await wait_for(pilot, lambda: len(app.screen_stack) == 1)
        app.say("done")
        app.apply(status())
        covered = [u for u in sent if isinstance(u, Patch)]
        clock.advance(60)
        app.apply(_moved())

    assert [] == covered
    assert any(isinstance(u, Patch) for u in sent)
