"""One lane as the generator sees it: how many at once, and whether there is more to claim.

Guarantee: what is in flight or being stored is counted by the two context managers and by nothing
else. `dry` says that the store had no more to give; only `news` (new work) clears it, so an idle
lane asks for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eagled.config import LaneConfig
from eagled.workers.generation.rates import LaneMetrics, Rates

SPARE_SETTLING = (
    64  # replies that may wait for the disk, beyond two lanes' width, before claims stop
)


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
    """State of one lane; `limit` and `paused` are live."""

    def __init__(self, name: str, config: LaneConfig, now: float) -> None:
        self.name = name
        self.limit = config.limit
        self.paused = False
        self.dry = False
        self.in_flight = 0
        self.settling = 0
        self.wanted = asyncio.Event()
        self.rates = Rates(now)
        self._config = config

    @property
    def target(self) -> int:
        """Return how many requests are wanted at once; limit 0 leaves the cap to the server."""
        fixed = self._config.concurrency
        wanted = self._config.seed if fixed == "auto" else fixed
        return min(wanted, self.limit) if self.limit else wanted

    def room(self) -> int:
        """Return how many more samples this lane can take now."""
        if self.paused or self.dry:
            return 0
        spare = 2 * self.target + SPARE_SETTLING - self.in_flight - self.settling
        return max(0, min(self.target - self.in_flight, spare))

    def news(self) -> None:
        """There may be more to claim."""
        self.dry = False
        self.wanted.set()

    def freed(self) -> None:
        """A place is free; wakes the lane only if it has a use for it."""
        if not self.dry and not self.paused:
            self.wanted.set()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count one request in flight while the block runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self.freed()

    @contextmanager
    def settle(self) -> Iterator[None]:
        """Count one outcome on its way to the disk while the block runs."""
        self.settling += 1
        try:
            yield
        finally:
            self.settling -= 1
            self.freed()

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
