"""`eagled top` with all its views: where to look, what to open, what keys do there.

Guarantee: a view asks the daemon only while it is shown, one question at a time; an answer that
does not come is told in the view and the rest goes on. A change of many samples is asked for first
(dry run), shown with its number and price, and sent with that number: when it has changed
meanwhile nothing is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from eagled.errors import EagledError
from eagled.printable import printable
from eagled.tui import app as first
from eagled.tui.app import ASK_TIMEOUT_S, TopApp
from eagled.tui.commands import COMMAND_HELP, command_of, parse_command
from eagled.tui.desk import KNOBS, LEVELS, PAGE, Wanted, parse_wanted
from eagled.tui.dialogs import ConfirmDialog, HelpScreen, LineDialog
from eagled.tui.inspector import make_doc
from eagled.tui.lines import Line
from eagled.tui.page import Page
from eagled.tui.palette import Entry, Palette, action_entry, action_of
from eagled.tui.panels import View
from eagled.tui.records import (
    Cause,
    SampleText,
    parse_causes,
    parse_detail,
    parse_plan,
    parse_samples,
    parse_text,
    parse_training,
)  # fmt: skip
from eagled.tui.source import reason_of
from eagled.tui.state import Kind, Target
from eagled.tui.views import PAGES, VIEWS, price, view_at, view_bar
from eagled.tui.widgets import Header, Panel, Table

_EVERY_S = {"overview": 10.0, "lanes": 2.0, "samples": 2.0, "failures": 5.0, "disk": 15.0,
            "training": 2.0, "inspector": 5.0}  # fmt: skip
_CUT_AT_ONCE = 50_000  # characters; longer texts are cut into rows in a thread
_KEYS = {
    "lanes": " p pause  P all  c limit  +/- step  enter samples  u undo  esc back  ? help  q quit",
    "samples": " enter open  / filter  space mark  r retry  X reject  L move  esc back  ? help",
    "failures": " enter samples  r retry  u undo  esc back  : commands  ? help  q quit",
    "disk": " left/right change  w store so from now on  esc back  ? help  q quit",
    "events": " F follow  l level  / find  A alarm seen  enter go to  esc back  ? help  q quit",
    "datasets": " p pause  c priority  +/- step  enter samples  u undo  esc back  ? help  q quit",
    "training": " esc back  : commands  ? help  q quit",
    "inspector": " / find  n N next  { } special  ( ) edge  [ ] sample  v ids  r X L  esc  ?",
}


class _Bar(Header):
    """The names of the views; a click goes there."""

    def on_click(self, event: events.Click) -> None:
        """Go to the view that was clicked."""
        app = self.app
        if isinstance(app, BrowseApp):
            name = view_at(event.x, app.state.current, self.size.width)
            if name is not None:
                app.action_view(name)


class BrowseApp(TopApp):
    """The first screen and the views behind it."""

    CSS = (
        TopApp.CSS
        + """
    Page { height: 1fr; display: none; background: ansi_default; }
    #bar { height: 1; }
    .-low #bar { display: none; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(i), f"view('{name}')", f"view: {name}", id=f"view.{name}")
            for i, name in enumerate(VIEWS, start=1)
        ),
        Binding("f", "view('failures')", "failures by cause", id="view.failures.too"),
        Binding("d", "view('disk')", "the disk", id="view.disk.too"),
        Binding("e,a", "view('events')", "events and alarms", id="view.events.too"),
        Binding("enter", "open", "open the row", id="open"),
        Binding("escape", "go_back", "back", id="back"),
        Binding("slash", "filter", "filter samples and events, find in a sample", id="filter"),
        Binding("n", "match(1)", "next place that was found", id="match.next"),
        Binding("N", "match(-1)", "the place before", id="match.previous"),
        Binding("space", "mark", "mark the sample", id="mark"),
        Binding("r", "retry", "retry, after a question", id="retry"),
        Binding("X", "reject", "reject samples, after their number is typed", id="reject"),
        Binding("L", "move_lane", "move samples to a lane", id="move"),
        Binding("A", "acknowledge", "the oldest new alarm was seen", id="alarm.seen"),
        Binding("F", "follow", "follow the event log", id="follow"),
        Binding("l", "level", "which events are shown", id="level"),
        Binding("v", "shape", "sample as text or ids", id="shape"),
        Binding("left_square_bracket", "neighbour(-1)", "the sample before", id="sample.before"),
        Binding("right_square_bracket", "neighbour(1)", "the sample after", id="sample.after"),
        Binding("left_curly_bracket", "jump_to('specials', -1)", "special token before",
                id="special.before"),
        Binding("right_curly_bracket", "jump_to('specials', 1)", "next special token",
                id="special.next"),
        Binding("left_parenthesis", "jump_to('edges', -1)", "edge of the mask before",
                id="edge.before"),
        Binding("right_parenthesis", "jump_to('edges', 1)", "next edge of the mask",
                id="edge.next"),
        Binding("left", "knob(-1)", "what-if: the value before", id="knob.before"),
        Binding("right", "knob(1)", "what-if: the next value", id="knob.next"),
        Binding("w", "store_so", "store states by this option, after a question", id="store"),
        Binding("colon,ctrl+p", "command", "commands, and every key by name", id="command"),
    ]  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - those of TopApp
        super().__init__(*args, **kwargs)
        self._asked_at: dict[str, float] = {}
        self._trail: list[str] = []
        self._matches: list[tuple[int, int]] = []
        self._cutting: tuple[str, int, str] | None = None

    def compose_pages(self) -> ComposeResult:
        """Lay out every view in the place of the first, and the bar of their names."""
        for name, build in PAGES.items():
            yield Page(build, self.look, widget_id=f"page-{name}")
        yield _Bar(self._bar, self.look, widget_id="bar")

    @staticmethod
    def _bar(view: View, width: int, _: int) -> list[Line]:
        return [view_bar(view.current, width)]

    def keys_line(self) -> str:
        """Return the keys of the present view."""
        return _KEYS.get(self.state.current) or super().keys_line()

    def shows(self, panel: Panel) -> bool:
        """Whether a panel belongs to the present view."""
        if isinstance(panel, Page):
            return panel.id == f"page-{self.state.current}"
        return self.state.current == "overview" or isinstance(panel, Header)

    def wants_events(self) -> bool:
        """Whether the event log is on the screen."""
        return self.state.current == "events" or super().wants_events()

    # --- going about

    def page(self, name: str | None = None) -> Page:
        """Return the widget of a view; of the present one by default."""
        return self.screen_stack[0].query_one(f"#page-{name or self.state.current}", Page)

    def action_view(self, name: str) -> None:
        """Show a view."""
        if name != self.state.current:
            self._trail = [*self._trail[-20:], self.state.current]
            self._show(name)

    def action_go_back(self) -> None:
        """Show the view before; escape never ends the screen."""
        if self._trail:
            self._show(self._trail.pop())

    def _show(self, name: str) -> None:
        self.state.current = name
        base = self.screen_stack[0]
        overview = name == "overview"
        base.query_one("#body").display = overview
        compact = base.query_one("#compact")
        if overview:
            compact.styles.clear_rule("display")
        else:
            compact.styles.display = "none"
        for other in PAGES:
            base.query_one(f"#page-{other}").display = other == name
        (base.query_one("#lanes") if overview else self.page()).focus()
        self._asked_at.pop(name, None)
        if name == "events":
            self.page().follow = True
        self.redraw()
        self.look_now()

    def redraw(self) -> None:
        """Draw the state as it is now; a sample's text is cut anew when the width has changed."""
        if self.is_running and self.screen_stack and self.state.current == "inspector":
            self._cut()
        super().redraw()

    def _cut(self) -> None:
        desk, width = self.state.desk, self.page().size.width
        if desk.text is None or not width or (desk.doc is not None and desk.doc.width == width):
            return
        if desk.text.n_chars < _CUT_AT_ONCE:
            desk.doc = make_doc(desk.text, width, ids=desk.shape == "ids")
        elif self._cutting != (desk.text.uid, width, desk.shape):
            self._cutting = (desk.text.uid, width, desk.shape)
            work = self._cut_aside(desk.text, width, desk.shape)
            self.run_worker(work, group="cut", exit_on_error=False)

    async def _cut_aside(self, text: SampleText, width: int, shape: str) -> None:
        """Cut a long text into rows without holding the screen up."""
        try:
            doc = await asyncio.to_thread(make_doc, text, width, ids=shape == "ids")
        finally:
            self._cutting = None
        desk = self.state.desk
        if desk.text is text and desk.shape == shape:
            desk.doc = doc
        self.redraw()

    # --- asking

    async def ask(self) -> None:
        """Ask for the status, then for what the present view needs."""
        await super().ask()
        if not self.state.tries and not self.state.frozen:
            await self._look()

    def look_now(self) -> None:
        """Ask for what the present view needs without waiting for the next tick."""
        if self._hz is not None:
            self._ask_now.set()
        elif self.is_running:
            self.run_worker(self._look(), group="look", exit_on_error=False)

    async def _look(self) -> None:
        name, now = self.state.current, self.state.clock.monotonic()
        every = _EVERY_S.get(name)
        if every is None or now - self._asked_at.get(name, float("-inf")) < every:
            return
        self._asked_at[name] = now
        desk = self.state.desk
        try:
            async with asyncio.timeout(2 * ASK_TIMEOUT_S):
                await _ASKERS[name](self)
            desk.problems.pop(name, None)
            desk.known.add(name)
        except Exception as error:  # noqa: BLE001 - told in the view; the rest goes on
            desk.problems[name] = printable(reason_of(error), 200)
        self.redraw()

    async def get(self, path: str, **query: str | int) -> object:
        """Ask the daemon one thing."""
        return await self._source.get(path, query)

    async def _ask_overview(self) -> None:
        self.state.desk.trains = parse_training(await self.get("/v1/training", brief=1))

    async def _ask_lanes(self) -> None:
        desk, lane = self.state.desk, self.page("lanes").selected
        if lane is None:
            return
        reply = await self.get("/v1/samples", state="generating", lane=lane, limit=PAGE)
        desk.running, desk.running_lane = parse_samples(reply), lane

    async def _ask_samples(self) -> None:
        desk = self.state.desk
        wanted, after = desk.wanted, desk.starts[-1]
        reply = await self.get("/v1/samples", **wanted.query(), after=after, limit=PAGE)
        if (wanted, after) == (desk.wanted, desk.starts[-1]):
            desk.samples = parse_samples(reply)
            self.state.marks &= {s.uid for s in desk.samples}

    async def _ask_failures(self) -> None:
        self.state.desk.causes = parse_causes(await self.get("/v1/failures", limit=200))

    async def _ask_disk(self) -> None:
        asked = dict(self.state.desk.asked)
        plan = parse_plan(await self.get("/v1/plan/disk", **asked))
        if asked == self.state.desk.asked:
            self.state.desk.plan = plan

    async def _ask_training(self) -> None:
        self.state.desk.training = parse_training(await self.get("/v1/training"))

    async def _ask_inspector(self) -> None:
        desk, uid = self.state.desk, self.state.desk.uid
        if uid is None:
            return
        fresh = parse_detail(await self.get(f"/v1/samples/{uid}"))
        if uid != desk.uid:
            return
        moved = desk.detail is None or desk.detail.sample.attempt != fresh.sample.attempt
        changed = moved or desk.detail.sample.state != fresh.sample.state  # type: ignore[union-attr] # moved says so
        desk.detail = fresh
        self.redraw()
        if desk.text is None or changed or desk.text.pieces is None:
            reply = await self.get(f"/v1/samples/{uid}/text")
            text = await asyncio.to_thread(parse_text, reply)
            if uid == desk.uid:
                desk.text, desk.doc = text, None

    # --- opening

    def action_open(self) -> None:
        """Open what the row stands for."""
        name = self.state.current
        key = self._table()[1].selected if name == "overview" else self.page().selected
        if key is None:
            return
        if name in ("overview", "lanes", "datasets"):
            kind = self._table()[0]
            wanted = Wanted(lane=key) if kind == "lane" else Wanted(dataset=key)
            self.list_samples(wanted)
        elif name == "samples":
            self.open_sample(key)
        elif name == "failures":
            cause = self._cause(key)
            if cause is not None:
                self.list_samples(Wanted(cause.state, cause.dataset, None, cause.reason))
        elif name == "events":
            self._open_event(key)

    def _open_event(self, key: str) -> None:
        event = next((e for e in self.state.view().events if str(e.seq) == key), None)
        lanes = {lane.key for lane in self.state.snapshot.lanes}
        datasets = {d.key for d in self.state.snapshot.datasets}
        if event is not None and event.subject in lanes:
            self.page("lanes").select(event.subject)
            self.action_view("lanes")
        elif event is not None and event.subject in datasets:
            self.page("datasets").select(event.subject)
            self.action_view("datasets")
        else:
            self.say("this event is about nothing that can be opened")

    def on_page_chosen(self, _: Page.Chosen) -> None:
        """Open the row that was clicked again."""
        self.action_open()

    def on_page_sized(self, _: Page.Sized) -> None:
        """Cut a sample's text for the new width, also when no answer comes that would redraw it."""
        if self.state.current == "inspector":
            self.redraw()

    def on_page_past(self, event: Page.Past) -> None:
        """Go to the next or the previous page of samples."""
        desk = self.state.desk
        if self.state.current == "samples" and (
            desk.next_page() if event.by > 0 else desk.previous_page()
        ):
            self._asked_at.pop("samples", None)
            self.look_now()

    def list_samples(self, wanted: Wanted) -> None:
        """Show the list of samples that a filter lets through."""
        self.state.desk.look_for(wanted)
        self.state.desk.known.discard("samples")
        self.state.marks.clear()
        if self.state.current == "samples":
            self._asked_at.pop("samples", None)
            self.redraw()
            self.look_now()
        else:
            self.action_view("samples")

    def open_sample(self, uid: str) -> None:
        """Show one sample."""
        self.state.desk.open(uid)
        self._matches, self.state.match = [], None
        if self.state.current == "inspector":
            self._asked_at.pop("inspector", None)
            self.page().select("0")
            self.redraw()
            self.look_now()
        else:
            self.page("inspector").select("0")
            self.action_view("inspector")

    def action_neighbour(self, by: int) -> None:
        """Show the sample beside this one in the list."""
        if self.state.current == "inspector":
            uid = self.state.desk.neighbour(by)
            if uid is not None:
                self.open_sample(uid)
            else:
                self.say("no further sample in this list")

    def action_shape(self) -> None:
        """Show a sample as text or as ids."""
        desk = self.state.desk
        desk.shape = "ids" if desk.shape == "rendered" else "rendered"
        desk.doc, self._matches, self.state.match = None, [], None
        self.redraw()

    def action_jump_to(self, what: str, by: int) -> None:
        """Go to the next special token or edge of the mask."""
        doc = self.state.desk.doc
        if self.state.current != "inspector" or doc is None:
            return
        at = int(self.page().selected or 0)
        rows = doc.specials() if what == "specials" else doc.edges()
        further = [r for r in rows if r > at] if by > 0 else [r for r in rows if r < at][::-1]
        if further:
            self.page().action_jump(further[0])

    def action_match(self, by: int) -> None:
        """Go to the next place that was found."""
        doc = self.state.desk.doc
        if self.state.current != "inspector" or doc is None or not self._matches:
            return
        now = self.state.match
        at = (self._matches.index(now) + by) % len(self._matches) if now in self._matches else 0
        self.state.match = self._matches[at]
        self.redraw()
        self.page().action_jump(doc.row_of(self.state.match[0]))

    def action_filter(self) -> None:
        """Ask for a filter, or for words to find."""
        name, desk = self.state.current, self.state.desk
        if name == "inspector":
            self._ask_line("FIND", ["words, whatever their case; n and N go on"], "", self._find)
        elif name == "events":
            self._ask_line("SHOW EVENTS THAT CONTAIN", ["empty shows all"], desk.find,
                           self._find_events)  # fmt: skip
        else:
            about = ["state:failed  dataset:NAME  lane:NAME  reason:WORD", "empty lists all"]
            words = " ".join(f"{k}:{v}" for k, v in desk.wanted.query().items())
            self._ask_line("LIST SAMPLES", about, words, self._filter)

    def _ask_line(
        self, title: str, about: list[str], text: str, then: Callable[[str], None]
    ) -> None:
        def done(answer: str | None) -> None:
            if answer is not None:
                then(answer)

        dialog = LineDialog(title, about, text, ascii_only=self.look.ascii_only)
        self.push_screen(dialog, done)

    def _find(self, words: str) -> None:
        doc = self.state.desk.doc
        self._matches = doc.find(words) if doc is not None else []
        self.state.match = None
        if self._matches:
            self.action_match(1)
        self.say(f"found {len(self._matches)} times")

    def _find_events(self, words: str) -> None:
        self.state.desk.find = words
        self.redraw()

    def _filter(self, text: str) -> None:
        wanted, problem = parse_wanted(text)
        if problem:
            self.say(problem, bad=True)
        else:
            self.list_samples(wanted)

    def action_follow(self) -> None:
        """Follow the event log, or stop."""
        page = self.page("events")
        page.follow = not page.follow
        self.say("following" if page.follow else "not following")
        self.redraw()

    def action_level(self) -> None:
        """Show all events, operators' only, or warnings only."""
        desk = self.state.desk
        desk.level = LEVELS[(LEVELS.index(desk.level) + 1) % len(LEVELS)]
        self.redraw()

    def action_mark(self) -> None:
        """Mark a sample, or take the mark off."""
        if self.state.current == "samples" and self.page().selected:
            self.state.marks ^= {self.page().selected or ""}
            self.page().action_move(1)
            self.redraw()

    # --- changing

    def _table(self) -> tuple[Kind, Table]:
        if self.state.current in ("lanes", "datasets"):
            return ("lane" if self.state.current == "lanes" else "dataset"), self.page()
        return super()._table()

    def _target(self) -> Target | None:
        if self.state.current not in ("overview", "lanes", "datasets"):
            self.say("this key acts on a lane or a dataset: keys 1, 2 and 7")
            return None
        return super()._target()

    def _cause(self, key: str | None) -> Cause | None:
        return next((c for c in self.state.desk.causes if c.key == key), None)

    def _chosen_samples(self) -> list[str]:
        name = self.state.current
        if name == "inspector" and self.state.desk.uid:
            return [self.state.desk.uid]
        if name == "samples":
            one = self.page().selected
            return sorted(self.state.marks) or ([one] if one else [])
        return []

    def action_retry(self) -> None:
        """Ask what a retry would do, then do it on a yes."""
        cause = self._cause(self.page().selected) if self.state.current == "failures" else None
        if cause is not None:
            told = [f"cost    {price(cause)}", f"what    {cause.reason}: {cause.pattern}"]
            self._propose("retry", "RETRY", {"cause": cause.cause}, told)
        elif uids := self._chosen_samples():
            self._propose("retry", "RETRY", {"samples": uids}, [])

    def action_reject(self) -> None:
        """Ask what a rejection would take away, then do it when the number is typed."""
        if uids := self._chosen_samples():
            told = ["effect  left out of corpus and training, kept in the database"]
            self._propose("reject", "REJECT", {"samples": uids}, told, typed=True)

    def action_move_lane(self) -> None:
        """Ask for a lane, then move samples that wait there."""
        uids = self._chosen_samples()
        if not uids or not self._may_change():
            return
        names = [lane.label for lane in self.state.snapshot.lanes]

        def to(name: str) -> None:
            told = [f"effect  {len(uids)} chosen; only samples that wait can move"]
            self._propose("move", f"MOVE to {name}", {"samples": uids, "to": name}, told)

        self._ask_line("MOVE TO LANE", ["  ".join(names)], "", to)

    def _propose(
        self, verb: str, title: str, body: Mapping[str, object], told: list[str], *,
        typed: bool = False,
    ) -> None:  # fmt: skip
        if self._may_change():
            work = self._dry_run(verb, title, dict(body), told, typed=typed)
            self.run_worker(work, group="post", exit_on_error=False)

    async def _dry_run(
        self, verb: str, title: str, body: dict[str, object], told: list[str], *, typed: bool
    ) -> None:
        path = f"/v1/{verb}"
        try:
            async with asyncio.timeout(first.POST_TIMEOUT_S):
                reply = await self._source.post(path, {**body, "dry_run": True})
        except Exception as error:  # noqa: BLE001 - told to the operator; nothing was done
            self.say(f"{verb}: {reason_of(error)}", bad=True)
            return
        n = reply.get("n") if isinstance(reply, Mapping) else None
        if not isinstance(n, int) or n == 0:
            self.say(f"{verb}: no sample of these can be changed so")
            return
        lines = [
            printable(f"{title} {n} sample{'s' * (n != 1)}"),
            "",
            *map(printable, told),
            "undo    u takes it back",
            "checked just now; if the number changes nothing is done",
        ]

        self._confirm(lines, path, {**body, "expect": n}, verb, word=str(n) if typed else "")

    def _confirm(
        self, lines: Sequence[str], path: str, body: Mapping[str, object], verb: str, *,
        word: str = "",
    ) -> None:  # fmt: skip
        """Ask, and send on a yes; whatever is pressed how often, it is done once."""
        dialog = ConfirmDialog(lines, word=word, ascii_only=self.look.ascii_only)

        def decided(yes: bool | None) -> None:  # noqa: FBT001 - Textual's callback
            if yes and self._may_change():
                self._begin(path, body, verb, dialog.key)

        self.push_screen(dialog, decided)

    def _begin(self, path: str, body: Mapping[str, object], verb: str, key: str) -> None:
        work = self._commit(path, body, verb, key)
        self.run_worker(work, group="post", exit_on_error=False)

    async def _commit(self, path: str, body: Mapping[str, object], verb: str, key: str) -> None:
        ok, text = await self._post(path, body, f"{verb}: done", key)
        self.say(text if ok else f"{verb} {text}", bad=not ok)
        self.state.marks.clear()
        self._asked_at.clear()
        self.look_now()

    def action_acknowledge(self) -> None:
        """Note that the oldest new alarm was seen."""
        new = next((a for a in self.state.snapshot.alarms if not a.acknowledged and a.kind), None)
        if new is None:
            self.say("no new alarm")
        elif self._may_change():
            self._begin("/v1/alarms/ack", {"kind": new.kind}, "alarm", uuid4().hex)

    def action_knob(self, by: int) -> None:
        """Change an assumption of the disk plan; nothing is done with it."""
        key = self.page().selected if self.state.current == "disk" else None
        if key is not None and key.removeprefix("knob ") in KNOBS:
            self.state.desk.turn_knob(key.removeprefix("knob "), by)
            self._asked_at.pop("disk", None)
            self.redraw()
            self.look_now()

    def action_store_so(self) -> None:
        """Store states by the selected option from now on, on a yes."""
        plan, page = self.state.desk.plan, self.state.current
        key = self.page().selected if page == "disk" else None
        found = next((o for o in plan.options if f"option {o.name}" == key), None) if plan else None
        if found is None or not self._may_change():
            self.say("choose one of the options below the what-if first")
            return
        lines = [
            f"STORE STATES AS {found.name}",
            "",
            f"how     {found.words}",
            f"price   {found.trade}",
            "effect  from the next shard on; stored ones stay",
        ]
        self._confirm(lines, "/v1/plan/disk", {"choose": found.name}, "store")

    # --- commands and help

    def action_command(self) -> None:
        """Ask for a command, or for a key by what it does."""
        palette = Palette(entries(), ascii_only=self.look.ascii_only)

        def chosen(answer: str | None) -> None:
            action = action_of(answer) if answer else None
            if action is not None:
                self.call_later(self.run_action, action)
            elif answer:
                self.run_command(answer)

        self.push_screen(palette, chosen)

    def run_command(self, text: str) -> None:
        """Do what a typed command says."""
        lanes = [lane.key for lane in self.state.snapshot.lanes]
        datasets = [dataset.key for dataset in self.state.snapshot.datasets]
        try:
            found = parse_command(text, lanes, datasets)
        except EagledError as error:
            self.say(str(error), bad=True)
            return
        if found.view:
            self.action_view(found.view)
        elif found.sample:
            self.open_sample(found.sample)
        elif found.quit:
            self.exit(0)
        elif found.path and self._may_change():
            self._send_command(found.path, found.body, text, ask=found.ask)

    def _send_command(self, path: str, body: Mapping[str, object], text: str, *, ask: str) -> None:
        if ask:
            self._confirm([printable(f":{text}"), "", ask], path, body, text)
        else:
            self._begin(path, body, text, uuid4().hex)

    def action_help(self) -> None:
        """Show every key."""
        self.push_screen(HelpScreen(key_list(), ascii_only=self.look.ascii_only))


_ASKERS: Mapping[str, Callable[[BrowseApp], Any]] = {
    "overview": BrowseApp._ask_overview,  # noqa: SLF001 - same module
    "lanes": BrowseApp._ask_lanes,  # noqa: SLF001 - same module
    "samples": BrowseApp._ask_samples,  # noqa: SLF001 - same module
    "failures": BrowseApp._ask_failures,  # noqa: SLF001 - same module
    "disk": BrowseApp._ask_disk,  # noqa: SLF001 - same module
    "training": BrowseApp._ask_training,  # noqa: SLF001 - same module
    "inspector": BrowseApp._ask_inspector,  # noqa: SLF001 - same module
}


def entries() -> list[Entry]:
    """Return everything that the palette offers."""
    typed = [Entry(words, what, command_of(words)) for words, what in COMMAND_HELP]
    views = [Entry(name, f"the view {name}", name) for name in VIEWS]
    keys = [
        action_entry(first.shown_key(b.key.split(",")[0]), b.description, b.action)
        for b in (*BrowseApp.BINDINGS, *TopApp.BINDINGS)
        if isinstance(b, Binding) and not b.action.startswith("view(") and b.action != "command"
    ]
    return [*typed, *views, *keys]


def key_list() -> list[tuple[str, str]]:
    """Return every key of the screen and of its tables, as shown to people, with what it does."""
    found = [
        b for b in (*BrowseApp.BINDINGS, *TopApp.BINDINGS, *Table.BINDINGS)
        if isinstance(b, Binding)
    ]  # fmt: skip
    return [(" ".join(first.shown_key(k) for k in b.key.split(",")), b.description) for b in found]
