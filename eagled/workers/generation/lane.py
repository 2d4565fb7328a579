"""One lane as the generator sees it: how many at once, and whether there is more to claim.

Guarantee: what is in flight or being stored is counted by `Slot` and by nothing else. `dry` says
that the store had no more to give; only `news` (new work) clears it, so an idle lane asks for
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from eagled.config import LaneConfig
from eagled.workers.generation.endpoint import NO_CAP, Endpoint, Flight
from eagled.workers.generation.rates import LaneMetrics, Rates

SPARE_SETTLING = (
    64  # replies that may wait for the disk, beyond two lanes' width, before claims stop
)


class Slot:
    """Counts one request in flight in its lane and at its server, then its outcome on the way.

    A context manager whose block is the whole flight; `landed` moves the count from "in flight" to
    "settling" and frees the place. Entered by whoever sends, so that the place is taken at once;
    `release` may be called again and does nothing then.
    """

    __slots__ = ("_endpoint", "_flight", "_lane", "_stage")

    def __init__(self, lane: Lane, endpoint: Endpoint, flight: Flight) -> None:
        self._lane, self._endpoint, self._flight = lane, endpoint, flight
        self._stage = "new"

    def __enter__(self) -> Self:
        if self._stage == "new":
            self._stage = "flying"
            self._lane.in_flight += 1
            self._lane.tokens += self._flight.tokens
            self._endpoint.took_off(self._flight)
        return self

    def landed(self) -> None:
        """The reply, or its failure, is here: the place is free."""
        if self._stage == "flying":
            self._stage = "settling"
            self._lane.in_flight -= 1
            self._lane.tokens -= self._flight.tokens
            self._lane.settling += 1
            self._endpoint.landed(self._flight)
            self._lane.freed()

    def release(self) -> None:
        """Stop counting, wherever the flight is."""
        self.landed()
        if self._stage == "settling":
            self._stage = "over"
            self._lane.settling -= 1
            self._endpoint.settled()
            self._lane.freed()

    def __exit__(self, *_exc: object) -> None:
        self.release()


def quota(lane: Lane, lanes: Sequence[Lane], capacity: int) -> int:
    """Return how many requests a lane may have while the servers take only `capacity` together.

    Lanes with work share in proportion to their targets, at least one place each; the widest one
    gets what rounding leaves. A lane without work lends its share.
    """
    active = [each for each in lanes if each is lane or not (each.dry or each.paused)]
    total = sum(each.target for each in active)
    if total <= capacity:
        return lane.target
    widest = max(active, key=lambda each: each.target)
    others = {each: max(1, capacity * each.target // total) for each in active}
    if lane is not widest:
        return others[lane]
    return max(1, capacity - sum(n for each, n in others.items() if each is not widest))


class Lane:
    """State of one lane; `limit` and `paused` are live.

    Attributes:
        tokens: expected tokens of what is in flight.
        weight: expected tokens of a request, the newest counting most.
        reserved: places kept for a claim that is on its way.
        by_budget: it goes by its share of the servers' tokens, not by a number of requests.
    """

    LEARN = 0.05  # part that the newest request has in `weight`
    FIRST_WEIGHT = 2048.0  # tokens, before one was seen

    def __init__(self, name: str, config: LaneConfig, now: float) -> None:
        self.name = name
        self.limit = config.limit
        self.paused = False
        self.dry = False
        self.in_flight = 0
        self.settling = 0
        self.tokens = 0
        self.weight = self.FIRST_WEIGHT
        self.reserved = 0
        self.by_budget = False
        self.share = config.share
        self.seed = config.seed
        self.auto = config.concurrency == "auto"
        self.wanted = asyncio.Event()
        self.rates = Rates(now)
        self._config = config

    @property
    def target(self) -> int:
        """Return how many requests are wanted at most; limit 0 leaves the cap to the server."""
        if self.by_budget:
            return self.limit or NO_CAP
        fixed = self._config.concurrency
        wanted = self._config.seed if fixed == "auto" else fixed
        return min(wanted, self.limit) if self.limit else wanted

    def room(self) -> int:
        """Return how many more samples this lane can take now."""
        if self.paused or self.dry:
            return 0
        width = max(self.in_flight, self.seed) if self.target >= NO_CAP else self.target
        spare = 2 * width + SPARE_SETTLING - self.in_flight - self.settling
        return max(0, min(self.target - self.in_flight, spare))

    def news(self) -> None:
        """There may be more to claim."""
        self.dry = False
        self.wanted.set()

    def freed(self) -> None:
        """A place is free; wakes the lane only if it has a use for it."""
        if not self.dry and not self.paused:
            self.wanted.set()

    def metrics(self, now: float) -> LaneMetrics:
        """Return what it does right now."""
        tokens_in, tokens_out = self.rates.per_second(now)
        return LaneMetrics(
            in_flight=self.in_flight,
            limit=self.limit,
            paused=self.paused,
            completions=self.rates.completions,
            out_tok_per_s=tokens_out,
            in_tok_per_s=tokens_in,
            p50_s=self.rates.percentile(0.5),
            p95_s=self.rates.percentile(0.95),
        )
