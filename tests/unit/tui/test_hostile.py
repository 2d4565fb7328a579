"""Text from datasets, models and servers in every place where it can appear."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
from rich.cells import cell_len
from textual.widgets._toast import Toast

from eagled.clock import FakeClock
from eagled.errors import EagledError
from eagled.printable import printable
from eagled.tui.app import TopApp
from eagled.tui.dialogs import ConfirmDialog, NumberDialog
from eagled.tui.inspector import shown
from eagled.tui.model import TEXT_CHARS
from eagled.tui.panels import event_log
from eagled.tui.state import KEPT_EVENTS, TopState
from eagled.tui.views import VIEWS
from tests.faults import fault_file
from tests.unit.tui.answers import ANSWERS, UID, sample_row, sample_text
from tests.unit.tui.doubles import AT_MS, FakeSource, make_app, screen_text, wait_for

STRINGS: list[str] = json.loads(fault_file("ui/strings.json").read_text("utf-8"))
WIDE = (240, 60)


def _document(text: str) -> dict[str, Any]:
    return {
        "at_ms": AT_MS,
        "run": text,
        "phase": text,
        "lanes": {text: {"paused": False, "limit": 3}},
        "datasets": {text: {"mode": text, "paused": False, "priority": 0}},
        "servers": [{"url": text, "state": text, "error": text}],
        "extraction": {"state": text, "reason": text},
        "alarms": [{"kind": text}, {"level": text, "text": text, "since_ms": AT_MS}],
    }


def _visible(text: str) -> str:
    return printable(text, TEXT_CHARS)


@pytest.mark.fault("F94")
async def test_hostile_text_is_shown_as_it_is() -> None:
    """As a dataset's name, an error and a log line: no crash, no markup, controls made visible."""
    source = FakeSource()
    app, _, _ = make_app(source)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        for number, text in enumerate(STRINGS):
            source.document, source.post_error = _document(text), EagledError(text)
            await app.ask()
            event = {"seq": 999 + number, "at_ms": AT_MS, "kind": text, "detail": text}
            app.state.take_events([event])
            app.redraw()
            await pilot.pause()
            screen = screen_text(app)
            await pilot.press("p")
            await wait_for(pilot, lambda: bool(app.screen.query(Toast)))
            await pilot.press("c")
            await wait_for(pilot, lambda: isinstance(app.screen, NumberDialog))
            await pilot.pause()
            _is_harmless(text, screen, screen_text(app))
            app.clear_notifications()
            await pilot.press("escape")
            await wait_for(pilot, lambda: not app.screen.query(Toast))


def _is_harmless(text: str, screen: str, dialog: str) -> None:
    shown_text = _visible(text)
    beginning = shown_text[:24]  # a column or a line may cut it
    assert "cannot show" not in screen
    assert screen.count(beginning[:12]) >= 5
    assert beginning in screen
    for drawn in (screen, dialog):
        assert not set(drawn) & {"\x1b", "\x07", "\t", "\r", "\u202e"}
    if len(shown_text) > 250:
        assert "…" in screen


def _answers() -> dict[str, Any]:
    """Return answers in which every text of every view is one of the strings, each in turn."""
    rows = [
        sample_row(i, uid=text, dataset=text, lane=text, reason=text, detail=text, state="failed")
        for i, text in enumerate(STRINGS, start=1)
    ]
    causes = [
        dict.fromkeys(("cause", "dataset", "state", "reason", "pattern", "detail"), text) | {"n": 1}
        for text in STRINGS
    ]
    groups = [{"dataset": text, "lane": text, "bytes": 1} for text in STRINGS]
    options = [{"name": text, "trade": text, "policy": {"codec": text}, "groups": groups}
               for text in STRINGS]  # fmt: skip
    joined = " ".join(STRINGS)
    log = [{"attempt": 1, "kind": text, "detail": text} for text in STRINGS]
    names = dict.fromkeys(("conversation", "source_id", "server", "shard"), joined)
    return {
        "/v1/samples": {"samples": rows},
        "/v1/failures": {"failures": causes},
        "/v1/plan/disk": {"options": options, "why": joined},
        "/v1/training": {**ANSWERS["/v1/training"], "name": joined},
        f"/v1/samples/{UID}": {"row": {**rows[0], "uid": UID}, "failures_log": log, **names},
        f"/v1/samples/{UID}/text": sample_text(
            joined, prompt=[[text, 1, special] for text in STRINGS for special in (True, False)],
            note=joined,
        ),
    }  # fmt: skip


@pytest.mark.fault("F94")
async def test_hostile_text_behind_the_first_screen() -> None:
    """Lists, causes, plans, training, a sample's text and questions: as it is in each of them."""
    source = FakeSource({**_document("x"), "lanes": {text: {} for text in STRINGS}})
    source.answers, source.reply = _answers(), {"n": 3}
    app, _, _ = make_app(source)
    drawn = {}
    async with app.run_test(size=WIDE) as pilot:
        for view in (*VIEWS, "inspector"):
            await app.ask()
            app.open_sample(UID) if view == "inspector" else app.action_view(view)
            await app.workers.wait_for_complete()
            app.redraw()
            await pilot.pause()
            await wait_for(pilot, partial(_shows, app, _expected(view)))
            drawn[view] = screen_text(app)
        app.action_view("failures")
        await pilot.press("r")
        await wait_for(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.pause()
        drawn["question"] = screen_text(app)

    for screen in drawn.values():
        assert "cannot show" not in screen
        assert "not up to date" not in screen
        assert {WIDE[0]} == {cell_len(line) for line in screen.split("\n")}
        assert not set(screen) & {"\x1b", "\x07", "\t", "\r", "\u202e"}
    assert sum(len(_expected(view)) for view in drawn) == 4 * len(STRINGS)


def _shows(app: TopApp, texts: list[str]) -> bool:
    screen = screen_text(app)
    return all(text in screen for text in texts)


def _expected(view: str) -> list[str]:
    """Return what a view has to come to show: the beginning of every string."""
    if view in {"samples", "failures", "disk"}:
        return [_visible(text)[:6] for text in STRINGS]
    return [_in_text(text) for text in STRINGS] if view == "inspector" else []


def _in_text(text: str) -> str:
    """Return the beginning of a string as a sample's text shows it, up to the end of its line."""
    return shown(text).split("\n")[0][:6]


@pytest.mark.fault("F94")
def test_markup_keeps_its_characters() -> None:
    """`[red]x` takes five cells more than `x`: nothing of it is read as markup."""
    state = TopState(FakeClock(AT_MS))
    for i, text in enumerate(("x", "[red]x")):
        state.take_events([{"seq": i + 1, "kind": "alarm", "detail": text}])
    lines = ["".join(part for part, _ in line).rstrip() for line in event_log(state.view(), 100, 5)]

    assert 5 == len(lines[1]) - len(lines[2])


def batched(rows: Iterator[dict[str, object]], n: int) -> Iterator[list[dict[str, object]]]:
    """Yield lists of `n` rows, as the daemon's answers bring them."""
    while batch := list(islice(rows, n)):
        yield batch


def _log_lines(n: int) -> Iterator[dict[str, object]]:
    detail = "y" * 2000
    for seq in range(1, n + 1):
        yield {"seq": seq, "at_ms": AT_MS, "kind": "shard_committed", "detail": detail}


@pytest.mark.fault("F97")
def test_a_million_log_lines() -> None:
    """The log keeps a fixed number of lines of a bounded length: memory levels off."""
    state = TopState(FakeClock(AT_MS))
    batches = batched(_log_lines(1_000_000), 10_000)
    state.take_events(next(batches))
    tracemalloc.start()
    state.take_events(next(batches))
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for batch in islice(batches, 97):
        state.take_events(batch)
    tracemalloc.start()
    state.take_events(next(batches))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = state.view().events

    assert (KEPT_EVENTS, 1_000_000) == (len(kept), state.last_event)
    assert TEXT_CHARS == max(len(event.text) for event in kept)
    assert after < 1.1 * before + 10_000
