"""Text from datasets, models and servers in every place where it can appear."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from textual.widgets._toast import Toast

from eagled.clock import FakeClock
from eagled.errors import EagledError
from eagled.printable import printable
from eagled.tui.model import TEXT_CHARS
from eagled.tui.panels import event_log
from eagled.tui.state import KEPT_EVENTS, TopState
from tests.faults import fault_file
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
@pytest.mark.parametrize("text", STRINGS)
async def test_hostile_text_is_shown_as_it_is(text: str) -> None:
    """As a dataset's name, an error and a log line: no crash, no markup, controls made visible."""
    shown = _visible(text)
    app, source, _ = make_app(FakeSource(_document(text)))
    source.post_error = EagledError(text)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await app.ask()
        app.state.take_events([{"seq": 999, "at_ms": AT_MS, "kind": text, "detail": text}])
        app.redraw()
        await pilot.pause()
        await pilot.pause()
        screen = screen_text(app)
        await pilot.press("p")
        await wait_for(pilot, lambda: bool(app.screen.query(Toast)))
        await pilot.press("c")
        await pilot.pause()
        await pilot.pause()
        dialog = screen_text(app)

    assert "cannot show" not in screen
    beginning = shown[:24]  # a column or a line may cut it
    assert screen.count(beginning[:12]) >= 5
    assert beginning in screen
    for drawn in (screen, dialog):
        assert not set(drawn) & {"\x1b", "\x07", "\t", "\r", "\u202e"}
    if len(shown) > 250:
        assert "…" in screen


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
