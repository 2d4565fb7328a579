"""Run a workload through the engine under a policy of admission, and say how it went.

The client reacts to an ended request after `REACTION_S` (claim, commit, send), and to nothing else
but a tick each second. Everything is deterministic.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.sim.engine import Ended, Engine
from bench.sim.hosts import Host, Job

REACTION_S = 0.02  # a claim's transaction and the way to the server
TICK_S = 1.0


class Policy(Protocol):
    """Decides what is sent when."""

    def tick(self, engine: Engine) -> None:
        """Look at the server, once a second."""

    def ended(self, ended: Ended) -> None:
        """Hear of a reply."""

    def take(self) -> list[Job]:
        """Return what is sent now."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run; rates in tokens a second of the whole time, tail included."""

    host: str
    policy: str
    tok_per_s: float
    recomputed_share: float
    retractions: int
    seconds: float
    steady_tok_per_s: float


@dataclass(slots=True)
class Constant:
    """Keep C requests in flight, in order of arrival."""

    left: deque[Job]
    at_once: int
    in_flight: int = 0

    def tick(self, engine: Engine) -> None:
        """Look at nothing."""

    def ended(self, ended: Ended) -> None:
        """Free a place."""
        del ended
        self.in_flight -= 1

    def take(self) -> list[Job]:
        """Fill the free places."""
        n = min(self.at_once - self.in_flight, len(self.left))
        self.in_flight += n
        return [self.left.popleft() for _ in range(n)]


@dataclass(slots=True)
class _Clock:
    """What comes next besides the engine: requests on their way, and ticks."""

    arrivals: list[tuple[float, int, Job]] = field(default_factory=list)
    next_tick: float = 0.0
    sent: int = 0

    def send(self, jobs: Sequence[Job], at: float) -> None:
        """Let requests arrive at a time."""
        for job in jobs:
            self.sent += 1
            heapq.heappush(self.arrivals, (at, self.sent, job))

    def until(self) -> float:
        """Return when the engine must be looked at again."""
        return min(self.next_tick, self.arrivals[0][0]) if self.arrivals else self.next_tick


Watch = Callable[[Engine], None]


def run(
    host: Host, policy: Policy, n_jobs: int, *, name: str, seed: int = 0, watch: Watch | None = None
) -> Result:
    """Work off `n_jobs` requests that `policy` hands out, and return how it went.

    `watch` is called at each tick, for plots and tests.
    """
    engine, clock = Engine(host, seed), _Clock()
    over = 0
    half: list[tuple[float, int]] = []
    while over < n_jobs:
        for ended in engine.advance(clock.until()):
            over += 1
            policy.ended(ended)
            if over in (n_jobs // 5, 4 * n_jobs // 5):
                half.append((engine.now, engine.totals.decoded))
        while clock.arrivals and clock.arrivals[0][0] <= engine.now:
            engine.submit(heapq.heappop(clock.arrivals)[2])
        if engine.now >= clock.next_tick:
            clock.next_tick = engine.now + TICK_S
            policy.tick(engine)
            if watch is not None:
                watch(engine)
        clock.send(policy.take(), engine.now + REACTION_S)
    return _result(engine, name, half)


def _result(engine: Engine, name: str, half: list[tuple[float, int]]) -> Result:
    totals = engine.totals
    first_time = totals.decoded + totals.prefilled - totals.recomputed
    (a, first), (b, second) = half
    return Result(
        host=engine.host.name,
        policy=name,
        tok_per_s=totals.decoded / engine.now,
        recomputed_share=totals.recomputed / first_time,
        retractions=totals.retractions,
        seconds=engine.now,
        steady_tok_per_s=(second - first) / (b - a),
    )
