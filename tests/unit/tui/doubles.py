"""A daemon made of scripted answers, and the characters of a screen."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from eagled.clock import FakeClock
from eagled.tui.browse import BrowseApp
from eagled.tui.model import parse_status
from eagled.tui.panels import View
from eagled.tui.state import TopState
from eagled.tui.widgets import Look

HERE = Path(__file__).parent
_STATUS: dict[str, Any] = json.loads((HERE / "status.json").read_bytes())
EVENTS: list[dict[str, Any]] = [
    json.loads(line) for line in (HERE / "events.jsonl").read_text("utf-8").splitlines()
]
DEADLINE_S = 60.0  # of a condition; it comes about in milliseconds
STILL_ROUNDS = 300  # of ten milliseconds: all that was to come has come
AT_MS = int(_STATUS["at_ms"])


def status(**changes: object) -> dict[str, Any]:
    """Return a copy of the example status with some top-level keys changed."""
    return {**copy.deepcopy(_STATUS), **changes}


class FakeSource:
    """Answers with `document`, or raises `error`; keeps what was posted."""

    def __init__(self, document: Mapping[str, object] | None = None) -> None:
        self.document = document if document is not None else status()
        self.error: Exception | None = None
        self.post_error: Exception | None = None
        self.posts: list[tuple[str, dict[str, object]]] = []
        self.keys: list[str] = []
        self.reply: object = {}
        self.answers: dict[str, object] = {}
        self.gets: list[tuple[str, dict[str, str | int]]] = []
        self.asked = 0
        self.closed = False

    async def status(self) -> Mapping[str, object]:
        """Return the document."""
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.document

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        """Return the example events above `after`."""
        return [e for e in EVENTS if e["seq"] > after]

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        """Return what `answers` has for the path."""
        self.gets.append((path, dict(query)))
        if self.error is not None:
            raise self.error
        return self.answers.get(path, {})

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> object:
        """Keep the change."""
        self.keys.append(key)
        self.posts.append((path, dict(body)))
        if self.post_error is not None:
            raise self.post_error
        return self.reply

    async def close(self) -> None:
        """Note that the screen let go."""
        self.closed = True


def make_app(
    source: FakeSource | None = None, *, readonly: bool = False, look: Look | None = None
) -> tuple[BrowseApp, FakeSource, FakeClock]:
    """Return a screen that asks only when told to, its daemon and its clock."""
    source = source or FakeSource()
    clock = FakeClock(AT_MS)
    clock.advance(0.2)
    app = BrowseApp(source, clock=clock, refresh_hz=None, readonly=readonly, look=look)
    return app, source, clock


def make_view(document: Mapping[str, object] | None = None) -> View:
    """Return the view of a document that has just arrived."""
    clock = FakeClock(AT_MS)
    state = TopState(clock)
    state.take(document if document is not None else status())
    state.take_events(EVENTS)
    return state.view()


def screen_text(app: App[Any]) -> str:
    """Return the characters on the screen, lines ended by line feeds."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def wait_for(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the screen work until `condition` holds; fail when it does not come about at all."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if condition():
            return
        await pilot.pause()
    raise AssertionError(f"did not come about; the screen is\n{screen_text(pilot.app)}")


class Golden:
    """A file with the lines of a screen; EAGLED_GOLDENS=1 writes it anew."""

    def __init__(self, name: str) -> None:
        self._path = HERE / "goldens" / name
        self.lines = self._path.read_text("utf-8").splitlines() if self._path.is_file() else []
        self.writes = bool(os.environ.get("EAGLED_GOLDENS"))

    def write(self, lines: list[str]) -> None:
        """Make `lines` what is expected."""
        self._path.write_text("\n".join(lines) + "\n", "utf-8")
        self.lines = lines


async def comes_to(pilot: Pilot[Any], golden: Golden, draw: Callable[[], list[str]]) -> None:
    """Let the screen work until `draw` gives the golden lines.

    It fails when the picture is another one and stays it.
    """
    app = pilot.app
    assert isinstance(app, BrowseApp)
    drawn, same = draw(), 0
    while same < (20 if golden.writes else STILL_ROUNDS):
        if not golden.writes and golden.lines == drawn:
            return
        app.redraw()
        await pilot.pause()
        await asyncio.sleep(0.01)
        before, drawn = drawn, draw()
        same = same + 1 if drawn == before else 0
    if golden.writes:
        golden.write(drawn)

    assert golden.lines == drawn


__all__ = [
    "AT_MS", "EVENTS", "FakeSource", "Golden", "comes_to", "make_app", "make_view",
    "parse_status", "screen_text", "status", "wait_for",
]  # fmt: skip
