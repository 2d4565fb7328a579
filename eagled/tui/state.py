"""What the screen knows between two frames; no Textual here.

Guarantee: bounded. A rate history has at most `POINTS` points a lane, lanes that vanish are
forgotten, and `KEPT_EVENTS` events of a bounded length are kept: a screen that stays open for
weeks does not grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from eagled.clock import Clock
from eagled.printable import printable
from eagled.tui.desk import Desk
from eagled.tui.model import HISTORY_STEP_S, Event, Lane, Snapshot, parse_event, parse_status
from eagled.tui.panels import Link, View
from eagled.tui.tables import DatasetRow, LaneRow

POINT_S = HISTORY_STEP_S  # one point of a history covers this long
POINTS = 180  # a quarter of an hour, as the daemon keeps
LAG_S = 2.5  # age from which a snapshot is called late
STALE_S = 5.0  # age from which its numbers are too old to act upon
RESTART_S = 10.0  # how long the header tells of a restart
KEPT_EVENTS = 1000  # bounded: a screen may stay open for weeks
_SETTLE_S = 3.0  # a change that no snapshot shows by then is no longer marked as on its way

Kind = Literal["lane", "dataset"]


class History:
    """Mean rates of every lane over equal stretches of time, newest last."""

    def __init__(self) -> None:
        self._points: dict[str, deque[float]] = {}
        self._began = 0.0
        self._seen = 0

    def add(self, now: float, rates: Mapping[str, float]) -> None:
        """Take the rates at `now` (monotonic seconds) into the newest point, or begin one."""
        fresh = not self._points or now - self._began >= POINT_S
        if fresh:
            self._began, self._seen = now, 0
        self._points = {k: self._points.get(k, deque(maxlen=POINTS)) for k in rates}
        for name, value in rates.items():
            points = self._points[name]
            if fresh or not points:
                points.append(value)
            else:
                points[-1] += (value - points[-1]) / (self._seen + 1)
        self._seen += 1

    def of(self, lane: str) -> tuple[float, ...]:
        """Return the points of one lane, oldest first."""
        return tuple(self._points.get(lane, ()))

    @property
    def span_s(self) -> float:
        """Seconds that the longest history covers."""
        return POINT_S * max((len(p) for p in self._points.values()), default=0)


@dataclass(frozen=True, slots=True)
class Target:
    """What a key acts on, frozen when the key was pressed."""

    kind: Kind
    key: str
    label: str
    paused: bool
    number: float | None  # a lane's limit, a dataset's priority

    @property
    def field(self) -> str:
        """The word for `number` in the control API."""
        return "limit" if self.kind == "lane" else "priority"


@dataclass(frozen=True, slots=True)
class _Wait:
    wanted: object
    done_at: float | None


EMPTY = parse_status({})
API = 1  # of the control API that this screen speaks: `API_VERSION` of eagled/control/protocol.py


class TopState:
    """The newest snapshot, how old it is, the histories, and the changes on their way."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.snapshot: Snapshot = EMPTY
        self.desk = Desk()
        self.current = "overview"
        self.match: tuple[int, int] | None = None
        self.marks: set[str] = set()
        self.word: Literal["", "DENIED", "VERSION"] = ""
        self.live_word: Literal["LIVE", "DEMO"] = "LIVE"
        self.problem = ""
        self.reason = ""
        self.tries = 0
        self._restarted_at: float | None = None
        self._down_since: float | None = None
        self._received: float | None = None
        self._frozen_at: float | None = None
        self._frozen: tuple[Snapshot, History, tuple[Event, ...]] | None = None
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._history = History()
        self._waits: dict[tuple[Kind, str, str], _Wait] = {}

    # --- what arrives

    def take(self, document: object, asked_at: float | None = None) -> None:
        """Make a status document the newest snapshot."""
        now = self.clock.monotonic()
        before, self.snapshot = self.snapshot.epoch, parse_status(document)
        if before is not None and self.snapshot.epoch not in (before, None):
            self._restarted_at = now
        self.word = ""
        if self.snapshot.api not in (None, API):
            self.word = "VERSION"
        self._received = now
        self.problem = self.reason = ""
        self.tries, self._down_since = 0, None
        self._history.add(now, {s.key: s.out_rate or 0.0 for s in self.snapshot.lanes})
        self._drop_waits(now if asked_at is None else asked_at)

    def take_old(self, document: object) -> None:
        """Show a status found on disk until a daemon answers; its own time gives its age."""
        self.snapshot = parse_status(document)

    def take_events(self, rows: Iterable[object]) -> None:
        """Keep the newest events of `rows`, which come in order."""
        newest = deque(rows, maxlen=KEPT_EVENTS)
        for event in map(parse_event, newest):
            if event is not None and event.seq > self.last_event:
                self._events.append(event)

    @property
    def last_event(self) -> int:
        """The number of the newest event that is known."""
        return self._events[-1].seq if self._events else 0

    def failed(self, reason: str, word: Literal["", "DENIED", "VERSION"] = "") -> None:
        """Note that the daemon did not answer; `word` names a cause that lasts."""
        self.word = word
        self.tries += 1
        self.reason = printable(reason, 200)
        if self._down_since is None:
            self._down_since = self.clock.monotonic()

    # --- how fresh it is

    @property
    def age_s(self) -> float | None:
        """Seconds since the daemon made what is shown; None before the first snapshot."""
        made = self.snapshot.at_ms
        by_stamp = None if made is None else max(0.0, (self.clock.now_ms() - made) / 1000)
        if self._received is None:
            return by_stamp
        since = self.clock.monotonic() - self._received
        return since if by_stamp is None else max(since, by_stamp)

    @property
    def stale(self) -> bool:
        """Whether the numbers are too old to act upon."""
        age = self.age_s
        return self._received is None or age is None or age >= STALE_S

    @property
    def frozen(self) -> bool:
        """Whether the operator holds the picture still."""
        return self._frozen is not None

    def toggle_freeze(self) -> bool:
        """Hold the picture still, or let it go on; return whether it is held now."""
        if self._frozen is None:
            held = History()
            held._points = {k: deque(p, POINTS) for k, p in self._history._points.items()}  # noqa: SLF001 - same module
            self._frozen = (self.snapshot, held, tuple(self._events))
            self._frozen_at = self.clock.monotonic()
        else:
            self._frozen = self._frozen_at = None
        return self.frozen

    def link(self) -> Link:
        """Return what the header says of the connection."""
        now = self.clock.monotonic()
        down = 0.0 if self._down_since is None else now - self._down_since
        base = Link(self.live_word, self.age_s, self.tries, down, self.reason, self.problem)
        if self._frozen_at is not None:
            return replace(base, kind="FROZEN", age_s=now - self._frozen_at)
        if self.word:
            return replace(base, kind=self.word)
        if self._received is None and self.age_s is None:
            return replace(base, kind="CONNECTING")
        if self.stale:
            return replace(base, kind="STALE")
        if self._restarted_at is not None and now - self._restarted_at < RESTART_S:
            return replace(base, kind="RESTARTED")
        late = self.age_s is not None and self.age_s > LAG_S
        return replace(base, kind="LAGGING") if late else base

    # --- changes on their way

    def wait_for(self, target: Target, change: Mapping[str, object]) -> None:
        """Mark the fields of a change as on their way."""
        for name, value in change.items():
            self._waits[target.kind, target.key, name] = _Wait(value, None)

    def answered(self, target: Target, change: Mapping[str, object], *, ok: bool) -> None:
        """Note the daemon's answer; a refused change is no longer on its way."""
        now = self.clock.monotonic()
        for name, value in change.items():
            place = (target.kind, target.key, name)
            wait = self._waits.get(place)
            if wait is not None and wait.wanted == value:
                if ok:
                    self._waits[place] = replace(wait, done_at=now)
                else:
                    del self._waits[place]

    def wanted(self, target: Target, name: str) -> object | None:
        """Return the value that was asked for and is not shown yet."""
        wait = self._waits.get((target.kind, target.key, name))
        return None if wait is None else wait.wanted

    def _drop_waits(self, asked_at: float) -> None:
        shown = {("lane", s.key): s for s in self.snapshot.lanes} | {
            ("dataset", d.key): d for d in self.snapshot.datasets
        }
        for place, wait in list(self._waits.items()):
            item = shown.get(place[:2])
            told = item is not None and getattr(item, place[2], None) == wait.wanted
            late = wait.done_at is not None and asked_at - wait.done_at > _SETTLE_S
            if wait.done_at is not None and (told or late or item is None):
                del self._waits[place]

    def _waits_of(self, kind: Kind, key: str) -> frozenset[str]:
        return frozenset(p[2] for p in self._waits if p[:2] == (kind, key))

    # --- what is shown

    def view(self) -> View:
        """Return everything that one frame is made from."""
        now = (self.snapshot, self._history, tuple(self._events))
        snapshot, history, events = self._frozen or now
        critical = None if snapshot.held else _critical(snapshot.lanes)
        lanes = tuple(
            LaneRow(
                lane,
                lane.history or history.of(lane.key),
                lane.key == critical,
                self._waits_of("lane", lane.key),
                snapshot.held,
            )
            for lane in snapshot.lanes
        )
        datasets = tuple(
            DatasetRow(d, self._waits_of("dataset", d.key), snapshot.held)
            for d in snapshot.datasets
        )
        told = max((len(lane.history) for lane in snapshot.lanes), default=0)
        span = told * HISTORY_STEP_S or history.span_s
        return View(
            snapshot, self.link(), lanes, datasets, events, span, self.clock.now_ms(),
            self.desk, self.current, self.match, frozenset(self.marks),
        )  # fmt: skip

    def target(self, kind: Kind, key: str) -> Target | None:
        """Return the row that a key acts on as it is shown now; None when it is gone."""
        snapshot = self._frozen[0] if self._frozen else self.snapshot
        if kind == "lane":
            for lane in snapshot.lanes:
                if lane.key == key:
                    return Target(kind, key, lane.label, bool(lane.paused), lane.limit)
        for dataset in snapshot.datasets if kind == "dataset" else ():
            if dataset.key == key:
                paused = bool(dataset.paused)
                return Target(kind, key, dataset.label, paused, dataset.priority)
        return None


def _critical(lanes: tuple[Lane, ...]) -> str | None:
    """The running lane that ends last, if there is more than one to compare."""
    timed = [(lane.eta_s, lane.key) for lane in lanes if lane.eta_s and not lane.paused]
    return max(timed)[1] if len(timed) > 1 else None
