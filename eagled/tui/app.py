"""`eagled top`: the first screen, live.

Guarantee: the screen only reads; the run is never slower or different for being watched, except
by keys that say so. A daemon that does not answer, a document that cannot be read or a panel that
cannot be drawn is shown as such, and the screen goes on asking for ever.
Price: see bench/tui.py (bytes a tick and CPU under a real terminal).
If a key changes, change docs/top.md; a test compares them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from eagled.clock import Clock, SystemClock
from eagled.errors import EagledError, UnreachableError
from eagled.printable import printable
from eagled.tui import panels
from eagled.tui.dialogs import MAX_LIMIT, MAX_PRIORITY, ConfirmDialog, NumberDialog
from eagled.tui.lines import Line
from eagled.tui.panels import View
from eagled.tui.patch import Patch
from eagled.tui.source import StatusSource, kind_of, reason_of
from eagled.tui.state import Kind, Target, TopState
from eagled.tui.tables import dataset_table, lane_table
from eagled.tui.widgets import Header, Look, Panel, Table

ASK_TIMEOUT_S = 5.0  # a healthy daemon answers in milliseconds
POST_TIMEOUT_S = 15.0  # a change waits for its commit
LOST_S = 60.0  # how long the same wish after a lost reply is taken to be the same
_ONCE = frozenset({"/v1/undo", "/v1/retry", "/v1/reject", "/v1/move"})
EVENTS_EVERY_S = 2.0
BACKOFF_S = (0.5, 5.0)  # first and longest wait between tries
BLURRED_HZ = 0.5  # nobody looks; often enough for the numbers not to become stale
_SAID_S = 4.0  # a message stays on the screen
_SAID_SLACK_S = 2.0  # by then Textual has taken it away, on a busy machine too
_MIN_TABLE = 4  # title, heads and two rows
_MIN_LOG = 4
_LANES_SHARE = 0.45  # most of the left side's height that lanes take
_BIG_STEP_FROM = 20  # limits above it move by ten
_HANGUP_CODE = 129  # as a shell reports SIGHUP
_KEYS_LINE = " p pause  P all  c number  +/- step  u undo  z freeze  tab table  ? help  q quit"


class TopApp(App[int]):
    """The first screen of `eagled top`."""

    TITLE = "eagled top"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (124, "-wide")]  # noqa: RUF012 - as in Textual
    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-mid"), (34, "-tall")]  # noqa: RUF012 - as in Textual
    CSS = """
    Screen { layout: vertical; overflow: hidden; background: ansi_default; }
    #body, #left, #right, Panel { background: ansi_default; }
    #head { height: 2; }
    #body { height: 1fr; }
    #left { width: 1fr; }
    #gap { width: 2; }
    #right { width: 54; }
    #throughput { height: 10; }
    #events { height: 1fr; }
    #keys { height: 1; }
    .-narrow #right, .-narrow #gap, .-wide #compact { display: none; }
    .-narrow #throughput, .-low #throughput, .-mid #throughput { display: none; }
    .-narrow.-tall #throughput { display: block; height: 8; }
    .space { height: 1; }
    .-low .space, .-mid .space { display: none; }
    .-wide.-tall #throughput { height: 12; }
    .-low #events, .-mid #events { display: none; }
    .-low #compact { display: none; }
    Toast { background: ansi_default; border: round ansi_default; padding: 0 1; max-width: 70; }
    App.-ascii-only Toast { border: ascii ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "pause or resume the lane or dataset", id="pause"),
        Binding("c", "set_number", "set the lane's limit or the dataset's priority", id="number"),
        Binding("P", "pause_all", "pause or resume everything, after a question", id="pause.all"),
        Binding("plus,equals_sign", "step(1)", "limit or priority up", id="step.up"),
        Binding("minus", "step(-1)", "limit or priority down", id="step.down"),
        Binding("u", "undo", "undo the last change", id="undo"),
        Binding("z", "freeze", "hold the picture still, or let it go on", id="freeze"),
        Binding("tab", "app.focus_next", "next table", id="table.next"),
        Binding("shift+tab", "app.focus_previous", "previous table", id="table.previous"),
        Binding("question_mark", "help", "this help", id="help"),
        Binding("q,ctrl+c", "quit", "quit; the daemon runs on", id="quit"),
    ]

    def __init__(
        self,
        source: StatusSource,
        *,
        clock: Clock | None = None,
        refresh_hz: float | None = 2.0,
        readonly: bool = False,
        look: Look | None = None,
        first: Mapping[str, object] | None = None,
        watch_terminal: bool = False,
    ) -> None:
        """Make the screen.

        Args:
            source: the daemon.
            clock: what ages are measured with.
            refresh_hz: status requests a second; None asks for none (tests feed `apply`).
            readonly: keys that change the run are off.
            look: colours and characters.
            first: a status to show until the daemon answers.
            watch_terminal: end when the terminal goes away although SIGHUP is ignored.
        """
        super().__init__()
        self.state = TopState(clock or SystemClock())
        self.look = look or Look()
        self._source = source
        self._hz = refresh_hz
        self._readonly = readonly
        self._watch_terminal = watch_terminal
        self._post_order = asyncio.Lock()
        self._lost: tuple[str, str, float] | None = None  # a change without a reply, its key, when
        self._ask_now = asyncio.Event()
        self._blurred = False
        self._asked_events = float("-inf")
        self._panels: tuple[Panel, ...] = ()  # found once: none comes or goes
        self._side: _Side | None = None
        self._said_until = float("-inf")
        self.theme = "ansi-light" if self.look.light else "ansi-dark"
        self.set_class(self.look.ascii_only, "-ascii-only")
        if first is not None:
            self.state.take_old(first)

    # --- life

    def compose(self) -> ComposeResult:
        """Lay out the screen; the style sheet decides what is seen at which size."""
        look = self.look
        yield Header(lambda v, w, _: panels.header(v, w), look, widget_id="head")
        with Horizontal(id="body"):
            with _Left(self._share_height, id="left"):
                yield Table("LANES", lambda v, w: lane_table(v.lanes, w), look, widget_id="lanes")
                yield _space(look)
                yield Table(
                    "DATASETS",
                    lambda v, w: dataset_table(v.datasets, w),
                    look,
                    widget_id="datasets",
                )
                yield _space(look)
                yield Panel(panels.throughput, look, widget_id="throughput")
                yield _space(look)
                yield Panel(panels.event_log, look, widget_id="events")
            yield Panel(lambda *_: (), look, widget_id="gap")
            with Vertical(id="right"):
                for build in (panels.servers, panels.extraction, panels.training, panels.disk):
                    yield Panel(_with_gap(build), look, own_height=True, widget_id=build.__name__)
                yield Panel(panels.alarms, look, widget_id="alarms")
        yield Panel(panels.compact, look, own_height=True, widget_id="compact")
        yield from self.compose_pages()
        yield Header(self._keys, look, widget_id="keys")

    def compose_pages(self) -> ComposeResult:
        """Lay out what lies in the place of the first screen; a subclass has more views."""
        yield from ()

    def on_mount(self) -> None:
        """Begin to ask, and to tell the time."""
        base = self.screen_stack[0]
        self._panels = tuple(base.query(Panel))
        self._side = _Side(
            base.query_one("#left", _Left), base.query_one("#lanes", Table),
            base.query_one("#datasets", Table), base.query_one("#throughput", Panel),
            base.query_one("#events", Panel),
        )  # fmt: skip
        self.query_one("#lanes").focus()
        self.redraw()
        if self._hz is not None:
            self.run_worker(self._ask_for_ever(self._hz), group="ask", exit_on_error=False)
            self.set_interval(1.0, self._tick)

    async def on_unmount(self) -> None:
        """Let go of the socket."""
        await self._source.close()

    def on_app_blur(self, _: events.AppBlur) -> None:
        """Ask seldom while nobody looks."""
        self._blurred = True

    def on_app_focus(self, _: events.AppFocus) -> None:
        """Ask at once when somebody looks again."""
        self._blurred = False
        self._ask_now.set()

    async def _ask_for_ever(self, hz: float) -> None:
        while True:
            await self.ask()
            tries = self.state.tries
            wait = 1 / (min(hz, BLURRED_HZ) if self._blurred else hz)
            if tries:
                top = min(BACKOFF_S[0] * 2 ** min(tries - 1, 10), BACKOFF_S[1])
                wait = top * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
            self._ask_now.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._ask_now.wait()
            except TimeoutError:
                pass

    async def ask(self) -> None:
        """Ask the daemon once and show the answer, or why there is none."""
        asked_at = self.state.clock.monotonic()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                document = await self._source.status()
        except Exception as error:  # noqa: BLE001 - whatever it was, the screen stays and asks again
            self.state.failed(reason_of(error), kind_of(error))
            self.redraw()
        else:
            self.apply(document, asked_at)
            await self._ask_events(asked_at)

    async def _ask_events(self, now: float) -> None:
        """Ask for new events now and then; a log that cannot be had is left as it is."""
        if now - self._asked_events < EVENTS_EVERY_S or not self.wants_events():
            return
        self._asked_events = now
        with suppress(Exception):  # the status says whether the daemon is there
            async with asyncio.timeout(ASK_TIMEOUT_S):
                before = self.state.last_event
                self.state.take_events(await self._source.events(before))
            if self.state.last_event != before:
                self.redraw()

    def wants_events(self) -> bool:
        """Whether the event log is on the screen."""
        return self._side is not None and self._side.log.display

    def apply(self, document: object, asked_at: float | None = None) -> None:
        """Show a status document; one that breaks us is told in the header."""
        try:
            self.state.take(document, asked_at)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the screen
            self.state.problem = printable(f"{type(error).__name__}: {error}", 200)
        self.redraw()

    def redraw(self) -> None:
        """Draw the state as it is now."""
        if not self.is_running or not self.screen_stack:
            return
        view, patch = self.state.view(), self._patch()
        for panel in self._panels:
            if self.shows(panel):
                panel.show(view, patch)
        if patch is not None and patch.pieces:
            self._display(self.screen, patch)
        self._share_height()

    def _patch(self) -> Patch | None:
        """Return what takes changed cells to the terminal; None when Textual has to draw them.

        It has to when something may lie over the panels, or when it changes their colours.
        """
        covered = len(self.screen_stack) > 1 or self.state.clock.monotonic() < self._said_until
        return None if covered or self._batch_count or self.get_line_filters() else Patch()

    def shows(self, panel: Panel) -> bool:
        """Whether a panel belongs to what is shown, at any size of the terminal."""
        return panel.id is not None or panel.has_class("space")

    def _share_height(self) -> None:
        """Give the tables as many lines as they have rows, as far as there is room."""
        side = self._side
        if side is None:
            return
        height = side.left.outer_size.height
        log = _MIN_LOG * side.log.display
        margins = 3 * self.screen_stack[0].has_class("-tall")
        chart = 0
        if side.chart.display and side.chart.styles.height:
            chart = int(side.chart.styles.height.value)
        lanes = min(side.lanes.wanted, max(_MIN_TABLE, int(height * _LANES_SHARE)))
        side.lanes.set_height(lanes)
        taken = min(side.lanes.wanted, int(height * _LANES_SHARE)) + margins + chart + log
        room = max(_MIN_TABLE, height - taken)
        side.datasets.set_height(min(side.datasets.wanted, room) if log else room)

    def _tick(self) -> None:
        if self._watch_terminal and not _terminal_lives():
            os._exit(_HANGUP_CODE)  # nothing to restore: the terminal is gone
        if self.state.tries or self.state.stale or self.state.frozen:
            self.redraw()

    # --- what keys do

    def _keys(self, view: View, _: int, __: int) -> list[Line]:
        if self._readonly:
            return [
                (
                    (" read-only: keys that change the run are off", "warn"),
                    ("   ? help  q quit", "dim"),
                )
            ]
        if view.link.kind in {"STALE", "CONNECTING", "DENIED", "VERSION"}:
            return [
                (
                    (" keys that change the run are off until the daemon answers", "warn"),
                    ("   ? help  q quit", "dim"),
                )
            ]
        return [((self.keys_line(), "dim"),)]

    def keys_line(self) -> str:
        """Return the keys of the present view."""
        return _KEYS_LINE

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a short message; never as markup."""
        self._said_until = self.state.clock.monotonic() + _SAID_S + _SAID_SLACK_S
        self.notify(
            printable(text, 300),
            severity="error" if bad else "information",
            markup=False,
            timeout=_SAID_S,
        )

    def _table(self) -> tuple[Kind, Table]:
        datasets = self.screen_stack[0].query_one("#datasets", Table)
        if datasets.has_focus:
            return "dataset", datasets
        return "lane", self.screen_stack[0].query_one("#lanes", Table)

    def _target(self) -> Target | None:
        kind, table = self._table()
        target = None if table.selected is None else self.state.target(kind, table.selected)
        if target is None:
            self.say(f"no {kind} is selected", bad=True)
        return target

    def _may_change(self) -> bool:
        if self._readonly:
            self.say("read-only: nothing was done", bad=True)
            return False
        if self.state.stale or self.state.word in {"DENIED", "VERSION"}:
            self.say("the daemon does not answer: nothing was done", bad=True)
            return False
        return True

    def action_pause(self) -> None:
        """Pause the row under the cursor, or resume it."""
        target = self._target()
        if target is not None and self._may_change():
            wanted = self.state.wanted(target, "paused")
            paused = target.paused if wanted is None else bool(wanted)
            self._change(target, {"paused": not paused})

    def action_set_number(self) -> None:
        """Ask for the lane's limit, or for the dataset's priority."""
        target = self._target()
        if target is None or not self._may_change():
            return
        dialog = NumberDialog(target, ascii_only=self.look.ascii_only)

        def set_it(number: int | None) -> None:
            if number is not None and self._may_change():
                self._change(target, {target.field: number}, dialog.key)

        self.push_screen(dialog, set_it)

    def action_pause_all(self) -> None:
        """Ask whether everything shall stand still, or go on when it does."""
        if not self._may_change():
            return
        verb = "resume" if self.state.snapshot.held else "pause"
        dialog = ConfirmDialog(_WORDS_OF_ALL[verb], ascii_only=self.look.ascii_only)

        def decided(yes: bool | None) -> None:  # noqa: FBT001 - Textual's callback
            if yes and self._may_change():
                work = self._tell(f"/v1/{verb}", verb, dialog.key)
                self.run_worker(work, group="post", exit_on_error=False)

        self.push_screen(dialog, decided)

    def action_step(self, by: int) -> None:
        """Move the limit or the priority by one step; quick presses add up."""
        target = self._target()
        if target is None or not self._may_change():
            return
        wanted = self.state.wanted(target, target.field)
        now = wanted if isinstance(wanted, int) else target.number
        number = None if now is None else stepped(target.kind, int(now), by)
        if number is None:
            self.say(f"the {target.field} of {target.label} has no number to step from: use c")
        elif number != now:
            self._change(target, {target.field: number})

    def action_undo(self) -> None:
        """Take the last change back."""
        if self._may_change():
            work = self._tell("/v1/undo", "undo", uuid4().hex)
            self.run_worker(work, group="post", exit_on_error=False)

    def action_freeze(self) -> None:
        """Hold the picture still, or let it go on."""
        self.state.toggle_freeze()
        self.redraw()

    async def action_quit(self) -> None:
        """Leave; the daemon runs on."""
        self.exit(0)

    def _change(self, target: Target, change: Mapping[str, object], key: str = "") -> None:
        self.state.wait_for(target, change)
        self.redraw()
        work = self._send(target, change, key or uuid4().hex)
        self.run_worker(work, group="post", exit_on_error=False)

    async def _send(self, target: Target, change: Mapping[str, object], key: str) -> None:
        name = f"{target.kind} {target.label}"
        what = ", ".join(_told(field, value) for field, value in change.items())
        path = f"/v1/{target.kind}s/{quote(target.key, safe='')}"
        ok, text = await self._post(path, change, f"{name}: {what}", key)
        self.state.answered(target, change, ok=ok)
        self.say(text if ok else f"{name} {text}", bad=not ok)
        self._ask_now.set()
        self.redraw()

    async def _tell(self, path: str, verb: str, key: str) -> None:
        ok, text = await self._post(path, {}, f"{verb}: done", key)
        self.say(text if ok else f"{verb} {text}", bad=not ok)
        self._ask_now.set()

    async def _post(
        self, path: str, body: Mapping[str, object], done: str, key: str
    ) -> tuple[bool, str]:
        """Send one change after the ones before it; return whether it was made, and what to say.

        The daemon's own words come first; `done` is for an answer without any. What has the same
        `key` is made once.
        """
        async with self._post_order:
            same, now = repr((path, sorted(body.items()))), self.state.clock.monotonic()
            key, self._lost = self._key_for(path, same, now) or key, None
            try:
                async with asyncio.timeout(POST_TIMEOUT_S):
                    reply = await self._source.post(path, body, key=key)
            except UnreachableError as error:
                self._lost = (same, key, now)
                return False, f"not confirmed: {error}"
            except EagledError as error:
                return False, f"refused: {error}"
            except Exception as error:  # noqa: BLE001 - told to the operator; the screen stays
                self._lost = (same, key, now)
                return False, f"not confirmed: {reason_of(error)}"
        message = reply.get("message") if isinstance(reply, Mapping) else None
        return True, message if isinstance(message, str) else done

    def _key_for(self, path: str, same: str, now: float) -> str | None:
        """Return the first key of a change that is asked for again because its reply was lost.

        With it the daemon tells what became of the change, and makes it only if it never did. Not
        for a limit, a pause and such: doing those again is right, whatever happened in between.
        """
        if self._lost is None or path not in _ONCE:
            return None
        before, key, at = self._lost
        return key if before == same and now - at < LOST_S else None


def _space(look: Look) -> Panel:
    """An empty line. Not a margin: Textual paints those black under a terminal's own colours."""
    panel = Panel(lambda *_: (), look)
    panel.add_class("space")
    return panel


class _Left(Vertical):
    """The tables' side; says when its size has changed."""

    def __init__(self, resized: Callable[[], None], **kwargs: Any) -> None:  # noqa: ANN401 - Textual's own
        super().__init__(**kwargs)
        self._resized = resized

    def on_resize(self, _: events.Resize) -> None:
        self._resized()


@dataclass(frozen=True, slots=True)
class _Side:
    """The tables' side and what shares its height."""

    left: _Left
    lanes: Table
    datasets: Table
    chart: Panel
    log: Panel


def _with_gap(build: panels.BuildPanel) -> panels.BuildPanel:
    """Add an empty line below a panel; one without lines takes none."""

    def gapped(view: View, width: int, height: int) -> list[Line]:
        lines = build(view, width, height)
        return [*lines, ()] if lines else []

    return gapped


def _told(name: str, value: object) -> str:
    if name == "paused":
        return "paused" if value else "resumed"
    return f"{name} {value}"


def stepped(kind: Kind, now: int, by: int) -> int | None:
    """Return the next limit or priority; None when there is no number to step from."""
    if kind == "dataset":
        return min(max(now + by, -MAX_PRIORITY), MAX_PRIORITY)
    if now <= 0:
        return None  # the server's own maximum
    size = 10 if now > _BIG_STEP_FROM or (now == _BIG_STEP_FROM and by > 0) else 1
    return min(max(now + by * size, 1), MAX_LIMIT)


_WORDS_OF_ALL = {
    "pause": (
        "PAUSE EVERYTHING", "", "what    every lane and extraction",
        "effect  nothing new is sent anywhere; what runs is finished and kept",
        "undo    P again; it stays so over restarts until then",
    ),
    "resume": (
        "RESUME EVERYTHING", "", "what    every lane that is not paused by itself, and extraction",
        "undo    P again",
    ),
}  # fmt: skip
_KEY_SIGNS = {"plus": "+", "equals_sign": "=", "minus": "-", "question_mark": "?", "slash": "/",
              "colon": ":", "left_square_bracket": "[", "right_square_bracket": "]",
              "left_curly_bracket": "{", "right_curly_bracket": "}",
              "left_parenthesis": "(", "right_parenthesis": ")"}  # fmt: skip


def shown_key(key: str) -> str:
    """Return a key as it stands on the keyboard."""
    return _KEY_SIGNS.get(key, key)


def _terminal_lives() -> bool:
    """Whether standard input is still a terminal that answers."""
    try:
        termios.tcgetattr(sys.__stdin__.fileno() if sys.__stdin__ else 0)
    except (termios.error, ValueError, OSError):
        return False
    return True
