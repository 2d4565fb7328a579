"""One server as the generator sees it: what runs there, its breaker, and how much more it takes.

Guarantee: whatever is in flight is counted by `lane.Slot` and nothing else. All of this is plain
state without I/O; `monitor.py` does the asking.

The breaker: CLOSED takes what the cap allows; OPEN takes nothing; HALF_OPEN takes one request,
whose success (or token progress) closes it and whose failure opens it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from eagled.config import GenerationConfig
from eagled.server.client import SglangClient
from eagled.server.fingerprint import Fingerprint
from eagled.server.protocol import Load, ServerInfo
from eagled.types import Claim, EventKind
from eagled.workers.generation.controller import Reason, State

PRESSURE_CUT = 0.85  # share of the requests in flight that stays after a sign of pressure
PRESSURE_SUCCESSES = 16  # successes after which one request more is tried again
NO_CAP = 1 << 30
USUAL_MEMORY = 1_000_000  # tokens of a server that does not tell; only compares it with others


class EndpointState(StrEnum):
    """What a person is shown."""

    STARTING = "starting"
    UP = "up"
    TRIAL = "trial"  # back again; the next request decides
    DOWN = "down"
    STUCK = "stuck"
    REFUSED = "refused"


class Breaker(StrEnum):
    """Whether requests are sent."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, eq=False)
class Flight:
    """One request on its way; `tokens` is what it is expected to occupy in the server's cache."""

    claim: Claim
    rid: str
    tokens: int
    started_at: float
    task: asyncio.Task[None] | None = None
    timed_out: bool = False
    n_out: int | None = None  # tokens of its answer, once there is one
    retractions: int = 0


class Watcher(Protocol):
    """Hears of each request that begins and ends at a server."""

    def took_off(self, flight: Flight) -> None:
        """A request was sent."""

    def landed(self, endpoint: Endpoint, flight: Flight) -> None:
        """It is over."""


Changed = Callable[["Endpoint", EventKind, str], None]


class Endpoint:
    """State of one server.

    Attributes:
        state: what a person is shown.
        breaker: whether requests are sent.
        detail: what led to the state, in words; empty while all is well.
        faults: server faults since the start.
        progress_at: monotonic time of the last completion or sign of token progress.
        healthy: the latest outcome was a success.
        probed: the server's own one-token probe passed since sending was last stopped.
        fingerprint_short: the hash that goes into each answer.
        verified_at: monotonic time at which the last successful identity check began.
        info: what the server says it can take; None before it was asked.
        admission: what the controller decided last; None before it looked.
        load: the last load it told; None if it tells none.
        sent: requests sent since the start.
        ended: those that came to an end.
        retracted: retractions that replies told of.
        settling: outcomes on their way to the store.
        at_rest: set when the last of them is stored and nothing is in flight.
        leaving: no new request is sent there.
    """

    def __init__(
        self, client: SglangClient, config: GenerationConfig, changed: Changed, now: float
    ) -> None:
        self.client = client
        self.state = EndpointState.STARTING
        self.breaker = Breaker.OPEN
        self.identity: Fingerprint | None = None
        self.fingerprint_short = ""
        self.detail = ""
        self.faults = 0
        self.server_cap = NO_CAP
        self.progress_at = now
        self.slowest_s = 0.0
        self.verified_at = float("-inf")
        self.info: ServerInfo | None = None
        self.admission: State | None = None
        self.load: Load | None = None
        self.took = asyncio.Event()
        self.settling = 0
        self.at_rest = asyncio.Event()
        self.sent = self.ended = self.retracted = 0
        self.leaving = False
        self.watcher: Watcher | None = None
        self.healthy = True
        self.probed = False
        self.flights: set[Flight] = set()
        self.tokens = 0
        self.hold_until = now
        self.trials_lost = 0
        self._faults_in_row = 0
        self._busy_in_row = 0
        self._pressure_cap = NO_CAP
        self._successes = 0
        self._config = config
        self._changed = changed

    @property
    def url(self) -> str:
        """Return the address."""
        return self.client.url

    def identify(self, found: Fingerprint, began_at: float) -> None:
        """Note the identity that a check, begun at that monotonic time, has confirmed."""
        if found != self.identity:
            self.identity = found
            self.fingerprint_short = found.short
        self.verified_at = began_at

    @property
    def capacity(self) -> int:
        """Return the most requests at once, as things stand."""
        if self.breaker is Breaker.OPEN or self.leaving:
            return 0
        return 1 if self.breaker is Breaker.HALF_OPEN else min(self.server_cap, self._pressure_cap)

    @property
    def free(self) -> float:
        """Return the expected tokens that may still be sent; below zero is over the budget."""
        if self.admission is None:
            return NO_CAP - self.tokens
        if self.admission.places and len(self.flights) >= self.admission.places:
            return min(0.0, self.admission.budget - self.tokens)
        return self.admission.budget - self.tokens

    @property
    def fullness(self) -> float:
        """Return how much of what it takes is in flight: of its memory, else of its places."""
        state = self.admission
        if state is not None and state.reason is Reason.BLIND and state.places:
            return len(self.flights) / state.places
        memory = self.load.total_tokens if self.load is not None else 0
        memory = memory or (self.info.max_total_tokens if self.info is not None else 0) or 0
        return self.tokens / (memory or USUAL_MEMORY)

    def room(self, now: float) -> int:
        """Return how many more requests may be sent now."""
        if now < self.hold_until:
            return 0
        return max(0, self.capacity - len(self.flights))

    def took_off(self, flight: Flight) -> None:
        """Count a request as in flight; only `lane.Slot` calls this."""
        if not self.flights:
            self.progress_at = flight.started_at
            self.took.set()
        self.sent += 1
        if self.watcher is not None:
            self.watcher.took_off(flight)
        self.flights.add(flight)
        self.tokens += flight.tokens

    def landed(self, flight: Flight) -> None:
        """Count it no more; only `lane.Slot` calls this."""
        self.flights.discard(flight)
        self.ended += 1
        self.settling += 1
        self.tokens -= flight.tokens
        if self.watcher is not None:
            self.watcher.landed(self, flight)

    def settled(self) -> None:
        """Count an outcome as stored; only `lane.Slot` calls this."""
        self.settling -= 1
        if not self.settling and not self.flights:
            self.at_rest.set()

    # -- what happened

    def succeeded(self, now: float, elapsed_s: float) -> None:
        """Note a whole reply."""
        self.progress_at = now
        self.slowest_s = max(self.slowest_s, elapsed_s)
        self.healthy = True
        self._faults_in_row = self._busy_in_row = self.trials_lost = 0
        if self.breaker is Breaker.HALF_OPEN:
            self.close("answers again")
        self._relax()

    def progressed(self, now: float) -> None:
        """Note that the server works although nothing has finished."""
        self.progress_at = now
        if self.breaker is Breaker.HALF_OPEN:
            self.close("makes tokens again")

    def faulted(self, detail: str) -> None:
        """Note a server fault; opens the breaker after enough in a row, or if on trial."""
        self.faults += 1
        self.healthy = False
        self._faults_in_row += 1
        if self.breaker is Breaker.HALF_OPEN:
            self.trials_lost += 1
            self.open(self.state_after_trial(), detail)
        elif self._faults_in_row >= self._config.breaker_failures:
            self.open(EndpointState.DOWN, f"{self._faults_in_row} faults in a row: {detail}")

    def state_after_trial(self) -> EndpointState:
        """Return the state that a lost trial leads back to."""
        stuck = self.state is EndpointState.STUCK
        return EndpointState.STUCK if stuck else EndpointState.DOWN

    def pressured(self, now: float, pause_s: float | None, detail: str) -> None:
        """Note that the server has too much to do: send less, after a pause if one is given.

        A server that is busy again and again while nothing of ours runs there is as good as down.
        """
        self.faults += 1
        self._busy_in_row += 1
        self._successes = 0
        running = min(len(self.flights) + 1, self._pressure_cap)
        self._pressure_cap = max(1, int(running * PRESSURE_CUT))
        if pause_s is not None:
            self.hold_until = max(self.hold_until, now + pause_s)
        if self.breaker is Breaker.HALF_OPEN:
            self.faulted(detail)
        elif self._busy_in_row >= self._config.breaker_failures and not self.flights:
            self.open(EndpointState.DOWN, f"busy {self._busy_in_row} times in a row: {detail}")

    @property
    def busy_in_row(self) -> int:
        """Return the signs of pressure since the last success."""
        return self._busy_in_row

    def _relax(self) -> None:
        if self._pressure_cap == NO_CAP:
            return
        self._successes += 1
        if self._successes >= PRESSURE_SUCCESSES:
            self._successes = 0
            self._pressure_cap += 1
            if self._pressure_cap > 2 * len(self.flights) + PRESSURE_SUCCESSES:
                self._pressure_cap = NO_CAP

    # -- the breaker

    def open(self, state: EndpointState, detail: str) -> None:
        """Send nothing more until a probe says otherwise."""
        self.breaker = Breaker.OPEN
        self.healthy = self.probed = False
        self._enter(state, detail)

    def half_open(self, detail: str) -> None:
        """Let one request decide."""
        self.breaker = Breaker.HALF_OPEN
        if self.state is not EndpointState.STUCK:
            self._enter(EndpointState.TRIAL, detail)

    def close(self, detail: str) -> None:
        """Send as much as the caps allow."""
        self.breaker = Breaker.CLOSED
        self._faults_in_row = 0
        self.trials_lost = 0
        self._enter(EndpointState.UP, detail)

    def _enter(self, state: EndpointState, detail: str) -> None:
        self.detail = "" if state is EndpointState.UP else detail
        if state is self.state:
            return
        self.state = state
        kind = _EVENT_OF_STATE.get(state)
        if kind is not None:
            self._changed(self, kind, detail)


_EVENT_OF_STATE = {
    EndpointState.UP: EventKind.SERVER_UP,
    EndpointState.DOWN: EventKind.SERVER_DOWN,
    EndpointState.STUCK: EventKind.SERVER_STUCK,
    EndpointState.REFUSED: EventKind.SERVER_REFUSED,
}
