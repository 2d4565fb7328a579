"""Ties the controller to real servers and lanes: looks, weighs, and says how much room there is.

Guarantee: each server with requests of ours is looked at every `feedback_interval_s`, one that has
none is left alone; what is decided is in `Endpoint.admission`, whole and visible. What is learned
of the lengths of answers is in the store's settings at most `SAVE_S` late.
Price: one small GET a look; room is computed from a handful of numbers at each free place.

A server that tells no load gets a fixed number: its `max_in_flight`, else the lanes' seeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from eagled.clock import Clock
from eagled.config import GenerationConfig
from eagled.errors import EagledError
from eagled.server.protocol import Load
from eagled.types import Claim
from eagled.workers.generation.budget import LaneUse, allotments, room
from eagled.workers.generation.controller import Observation, Reason, Rules, State, begin, step
from eagled.workers.generation.cost import SpeedLine
from eagled.workers.generation.endpoint import Breaker, Endpoint, Flight
from eagled.workers.generation.expected import Expected
from eagled.workers.generation.lane import Lane
from eagled.workers.generation.router import Router

_log = logging.getLogger(__name__)
SETTING = "expected_answers"
SAVE_S = 60.0
LOOK_TIMEOUT_S = 5.0


class LengthStore(Protocol):
    """What is needed of the store here."""

    async def settings(self) -> dict[str, str]:
        """Return all settings."""

    async def remember(self, key: str, value: str) -> None:
        """Store one setting of our own, without an event."""


@dataclass(frozen=True, slots=True)
class LaneAdmission:
    """What a lane may have at once, and why.

    `limit_costs` is the share of throughput that its limit keeps from it, None if that cannot be
    told.
    """

    target: int | None
    why: str
    share: float
    limit_costs: float | None


@dataclass(frozen=True, slots=True)
class ServerAdmission:
    """What the controller decided for a server; None is not known.

    Attributes:
        budget_tokens: expected tokens that may be in flight.
        free_tokens: those not used yet.
        reason: what decided it.
        places: most requests, where their number is limited; 0 is no such limit.
        used_tokens: tokens of its cache in use.
        total_tokens: tokens that its cache holds.
        retractions: those noticed since the start.
        could_run: requests like the present ones that it could run at once.
    """

    budget_tokens: int
    free_tokens: int
    reason: str
    places: int
    used_tokens: int | None
    total_tokens: int | None
    retractions: int
    could_run: int | None


class Admission:
    """Admission to all servers; one per generator."""

    def __init__(
        self,
        config: GenerationConfig,
        clock: Clock,
        store: LengthStore,
        lanes: Sequence[Lane],
        router: Router,
        wake: Callable[[], None],
    ) -> None:
        self.expected = Expected()
        self._config = config
        self._clock = clock
        self._store = store
        self._lanes = lanes
        self._router = router
        self._wake = wake
        self._rules = Rules().at(config.feedback_interval_s)
        self._lines: dict[Endpoint, SpeedLine] = {}
        self._saved = ""
        self._save_at = clock.monotonic() + SAVE_S

    # -- lengths

    async def load(self) -> None:
        """Take over the lengths that an earlier life learned."""
        self._saved = (await self._store.settings()).get(SETTING, "")
        self.expected.load(self._saved)

    async def save(self) -> None:
        """Store what was learned, if it changed."""
        self._save_at = self._clock.monotonic() + SAVE_S
        text = self.expected.to_json()
        if text != self._saved:
            self._saved = text
            await self._store.remember(SETTING, text)

    def weigh(self, lane: Lane, claim: Claim, max_new: int) -> int:
        """Return the tokens that a request is expected to come to occupy."""
        now = self._clock.monotonic()
        answer = self.expected.of(claim.dataset, claim.n_sent, max(0, max_new), now)
        weight = claim.n_sent + answer
        lane.weight += lane.LEARN * (weight - lane.weight)
        return round(weight)

    def took_off(self, flight: Flight) -> None:
        """Count a request as running."""
        self.expected.sent(flight.claim.dataset, flight.claim.n_sent, flight.started_at)

    def landed(self, endpoint: Endpoint, flight: Flight) -> None:
        """Learn from a request that is over."""
        claim = flight.claim
        self.expected.ended(claim.dataset, claim.n_sent, flight.started_at, flight.n_out)
        endpoint.retracted += flight.retractions

    # -- room

    def room(self, lane: Lane) -> int:
        """Return how many requests a lane may send by its share of what the servers take."""
        use = self._use(lane)
        uses = [self._use(each) for each in self._lanes if each.by_budget]
        allotment = allotments(uses, self._total())[lane.name]
        coming = sum(each.reserved * each.weight for each in self._lanes)
        free = sum(max(0.0, e.free) for e in self._usable()) - coming
        return min(room(use, allotment, free), self._places())

    def _use(self, lane: Lane) -> LaneUse:
        return LaneUse(
            name=lane.name,
            share=lane.share,
            cap=lane.limit,
            in_flight=lane.in_flight + lane.reserved,
            tokens=lane.tokens + lane.reserved * lane.weight,
            weight=lane.weight,
            hungry=not lane.paused and (bool(lane.reserved) or not lane.dry),
        )

    def _usable(self) -> list[Endpoint]:
        return [e for e in self._router.endpoints if e.capacity]

    def _total(self) -> float:
        """Return the expected tokens that the servers take together, without the fixed lanes'."""
        total = 0.0
        for endpoint in self._usable():
            if endpoint.admission is None or endpoint.breaker is Breaker.HALF_OPEN:
                total += endpoint.tokens + max(lane.weight for lane in self._lanes)
            else:
                total += endpoint.admission.budget
        return total - sum(lane.tokens for lane in self._lanes if not lane.by_budget)

    def _places(self) -> int:
        """Return the requests that the servers' own limits on places leave."""
        left = 0
        for endpoint in self._usable():
            places = endpoint.admission.places if endpoint.admission is not None else 0
            if not places:
                return 1 << 30
            left += max(0, places - len(endpoint.flights))
        return max(0, left - sum(lane.reserved for lane in self._lanes))

    # -- looking

    async def watch(self, endpoint: Endpoint) -> None:
        """Look at one server while it has requests of ours; runs until cancelled."""
        if not any(lane.auto for lane in self._lanes):
            return
        while True:
            if not endpoint.flights:
                endpoint.took.clear()
                await endpoint.took.wait()
            await self._look(endpoint)
            if self._clock.monotonic() >= self._save_at:
                await self.save()
            await asyncio.sleep(self._config.feedback_interval_s)

    def known(self, endpoint: Endpoint) -> None:
        """A server has said what it can take: begin with that, before anything is sent."""
        total = endpoint.info.max_total_tokens if endpoint.info is not None else None
        if endpoint.admission is None and total and not endpoint.client.is_router:
            autos = [lane for lane in self._lanes if lane.auto]
            if not autos:
                return
            seeds = sum(lane.seed * lane.weight for lane in autos)
            budget = min(seeds, self._rules.over * total)
            places = sum(lane.seed for lane in autos)
            endpoint.admission = replace(begin(budget, self._rules), places=places)
            self._sight()

    async def _look(self, endpoint: Endpoint) -> None:
        """Ask for the load and decide; a server that does not answer keeps its last decision."""
        try:
            load = await endpoint.client.loads(LOOK_TIMEOUT_S)
        except EagledError as exc:
            _log.debug("no load from url=%s: %s", endpoint.url, exc)
            return
        endpoint.load = load
        if load is None:
            endpoint.admission = self._blind(endpoint)
        else:
            if load.running:
                self.expected.pace(load.tok_per_s / load.running)
            self._lines.setdefault(endpoint, SpeedLine()).add(load.running, load.tok_per_s)
            state = endpoint.admission or begin(float(endpoint.tokens), self._rules)
            endpoint.admission = step(state, self._observation(endpoint, load), self._rules)
        self._sight()
        self._wake()

    def _blind(self, endpoint: Endpoint) -> State:
        """Return the fixed decision for a server that tells no load."""
        autos = [lane for lane in self._lanes if lane.auto]
        places = endpoint.client.max_in_flight or sum(lane.seed for lane in autos)
        budget = places * max(lane.weight for lane in autos)
        return replace(begin(budget, self._rules), places=places, reason=Reason.BLIND)

    def _observation(self, endpoint: Endpoint, load: Load) -> Observation:
        info = endpoint.info
        return Observation(
            at_s=self._clock.monotonic(),
            in_flight=len(endpoint.flights),
            tokens=endpoint.tokens,
            sent=endpoint.sent,
            ended=endpoint.ended,
            retracted=endpoint.retracted,
            more=any(not (lane.dry or lane.paused) for lane in self._lanes),
            running=load.running,
            waiting=load.waiting,
            used_tokens=load.used_tokens,
            total_tokens=load.total_tokens or (info and info.max_total_tokens) or 0,
            tok_per_s=load.tok_per_s,
            max_running=(info and info.max_running) or 0,
            graphs=(info and info.graph_batch) or 0,
        )

    def _sight(self) -> None:
        """Lanes go by tokens as soon as one server tells its load."""
        states = [e.admission for e in self._router.endpoints]
        sighted = any(s is not None and s.reason is not Reason.BLIND for s in states)
        for lane in self._lanes:
            lane.by_budget = lane.auto and sighted

    def forget(self, endpoint: Endpoint) -> None:
        """A server is gone."""
        self._lines.pop(endpoint, None)
        self._sight()

    # -- for people

    def view(self, lane: Lane) -> LaneAdmission:
        """Return what a lane may have now, and what decides it."""
        if not lane.by_budget:
            why = "seed" if lane.auto else "fixed"
            return LaneAdmission(lane.target, why, lane.share, None)
        uses = [self._use(each) for each in self._lanes if each.by_budget]
        allotment = allotments(uses, self._total())[lane.name]
        target = round(allotment / max(lane.weight, 1.0)) if allotment < float("inf") else 0
        capped = bool(lane.limit) and target >= lane.limit
        target = max(lane.in_flight, min(target, lane.limit) if lane.limit else target)
        why = "limit" if capped and lane.in_flight >= lane.limit else self._why(lane)
        return LaneAdmission(target, why, lane.share, self._limit_costs() if capped else 0.0)

    def server_view(self, endpoint: Endpoint) -> ServerAdmission | None:
        """Return what was decided for a server; None before anything was."""
        state = endpoint.admission
        if state is None:
            return None
        seen = state.last
        return ServerAdmission(
            budget_tokens=round(state.budget),
            free_tokens=round(endpoint.free),
            reason=state.reason.value,
            places=state.places,
            used_tokens=seen.used_tokens if seen is not None else None,
            total_tokens=(seen.total_tokens or None) if seen is not None else None,
            retractions=state.retractions,
            could_run=self.could_run(endpoint),
        )

    def _why(self, lane: Lane) -> str:
        if lane.paused:
            return "paused"
        if lane.dry:
            return "no work"
        states = [e.admission for e in self._usable() if e.admission is not None]
        return ", ".join(dict.fromkeys(s.reason.value for s in states)) or "no server"

    def _limit_costs(self) -> float | None:
        """Return the share of throughput that the lanes' limits keep back, over all servers."""
        losses = [self._loss(e) for e in self._usable()]
        known = [loss for loss in losses if loss is not None]
        return sum(known) / len(known) if known and len(known) == len(losses) else None

    def _loss(self, endpoint: Endpoint) -> float | None:
        more = self.could_run(endpoint)
        if more is None or endpoint.load is None or endpoint not in self._lines:
            return None
        return self._lines[endpoint].loss(endpoint.load.running, more)

    def could_run(self, endpoint: Endpoint) -> int | None:
        """Return how many requests like the present ones a server could run at once."""
        load, state = endpoint.load, endpoint.admission
        if load is None or state is None or state.last is None or not load.running:
            return None
        seen = state.last
        limits = [seen.max_running, state.ladder.narrow, state.ladder.plateau]
        if seen.usage:
            limits.append(round(load.running * state.fill / seen.usage))
        known = [n for n in limits if n]
        return max(load.running, min(known)) if known else None
