"""Whether more requests at once are any faster, judged by the server's own throughput.

Guarantee: pure; a decision needs a full window of readings on both sides, taken while the batch was
steady, so that one slow second decides nothing.

Two questions are asked:

- Where the batch may grow (memory allows it): was the last growth by `STEP` worth anything, and
  was a fast climb by half? If not, that is the plateau; it is tried again after `AGAIN_S`.
- The server decodes more at once than it has CUDA graphs for: is it faster with no more than that?
  Tried once the batch is steady: less for a minute, then whichever was faster. Only there can a
  smaller batch be faster on a server whose queue is kept short and whose memory is not full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

STEP = 1.15  # a rung is so much wider than the one below
GAIN = 1.003  # the least gain that makes a rung worth taking
WINDOW = 40  # different readings that a judgement rests on (a server makes one in 1 to 3 s)
SETTLE = 8  # readings that do not count after a change
QUANTILE = 0.7  # of throughput: looks with little prefill tell most of the batch
REACH = 1.6  # a batch so many times wider than the graphs is faster for certain
CLIMB = 8  # readings that a fast climb is judged by
CLIMB_STEP = 1.5  # so many times wider ...
CLIMB_GAIN = 1.03  # ... must be at least so many times faster
FASTER = 1.015  # what a smaller batch must show
AGAIN_S = 300.0  # a plateau is tried again after so long
RETRY_S = 3600.0  # and the narrow batch


class Trial(StrEnum):
    """Where the comparison with a smaller batch stands."""

    NONE = "none"
    NARROW = "narrow"  # measuring with less
    KEPT = "kept"  # less it is
    OVER = "over"  # it is not


@dataclass(frozen=True, slots=True)
class Ladder:
    """What was measured; `rates` are of the present rung or side, newest last."""

    rung: int = -1
    rates: tuple[float, ...] = ()
    skip: int = SETTLE
    below: float = 0.0
    stopped_at: int | None = None
    retry_at_s: float = float("-inf")
    trial: Trial = Trial.NONE
    wide: float = 0.0
    graphs: int = 0
    latest: float = 0.0
    climb: tuple[float, ...] = ()
    mark: tuple[int, float] = (0, 0.0)

    @property
    def plateau(self) -> int | None:
        """Return the largest batch worth having; None is no limit."""
        return None if self.stopped_at is None else math.ceil(STEP ** (self.stopped_at + 1))

    @property
    def narrow(self) -> int:
        """Return the batch that is tried, or kept, because it is faster; 0 is none."""
        return self.graphs if self.trial in (Trial.NARROW, Trial.KEPT) else 0

    def after(
        self, at_s: float, running: int, tok_per_s: float, graphs: int, *, free: bool
    ) -> Ladder:
        """Return it with one more look.

        `graphs` is the largest batch with a graph, 0 unknown; `free` says that memory would allow
        a wider batch. A reading that the server has not renewed counts once.
        """
        if not running or not tok_per_s or tok_per_s == self.latest:
            return self
        ladder = self if at_s < self.retry_at_s else self._again()
        ladder = replace(ladder, latest=tok_per_s).climbed(at_s, running, free=free)
        ladder = ladder.measured(running, tok_per_s)
        return ladder.judged(at_s, running, graphs, free=free)

    def _again(self) -> Ladder:
        """Forget old judgements: the work, and so their ground, may have changed."""
        if self.stopped_at is None and self.trial not in (Trial.KEPT, Trial.OVER):
            return self
        return replace(self, stopped_at=None, trial=Trial.NONE, retry_at_s=float("-inf"))

    def climbed(self, at_s: float, running: int, *, free: bool) -> Ladder:
        """Return it with a climb stopped that is too fast for full windows and gains nothing."""
        climb = (*self.climb[1 - CLIMB :], self.latest)
        n, rate = self.mark
        if len(climb) < CLIMB or (n <= running < CLIMB_STEP * n):
            return replace(self, climb=climb)
        now = (running, typical(climb))
        if not free or running < n or now[1] > CLIMB_GAIN * rate or self.stopped_at is not None:
            return replace(self, climb=climb, mark=now)
        rung = int(math.log(n, STEP)) + 1
        return replace(self, climb=(), mark=(0, 0.0), stopped_at=rung, retry_at_s=at_s + AGAIN_S)

    def measured(self, running: int, tok_per_s: float) -> Ladder:
        """Return it with one more reading; a new rung or side begins with an empty window."""
        rung = int(math.log(running, STEP))
        if self.trial is not Trial.NARROW and abs(rung - self.rung) > 1:
            return replace(self, rung=rung, rates=(), skip=SETTLE, below=0.0)
        if self.trial is Trial.NARROW and running > self.graphs:
            return replace(self, skip=SETTLE)
        if rung == self.rung + 1 and self.trial is Trial.NONE and len(self.rates) >= WINDOW:
            return replace(self, rung=rung, rates=(), skip=SETTLE, below=typical(self.rates))
        if self.skip:
            return replace(self, skip=self.skip - 1)
        return replace(self, rates=(*self.rates[1 - WINDOW :], tok_per_s))

    def judged(self, at_s: float, running: int, graphs: int, *, free: bool) -> Ladder:
        """Return it with the judgement that a full window allows."""
        if len(self.rates) < WINDOW:
            return self
        rate = typical(self.rates)
        if self.trial is Trial.NARROW:
            kept = rate > FASTER * self.wide
            verdict = Trial.KEPT if kept else Trial.OVER
            return replace(self, trial=verdict, rates=(), skip=SETTLE, retry_at_s=at_s + RETRY_S)
        if self.trial is Trial.NONE and graphs < running < REACH * graphs:
            return replace(
                self, trial=Trial.NARROW, wide=rate, graphs=graphs, rates=(), skip=SETTLE
            )
        if free and self.below and rate < GAIN * self.below and self.stopped_at is None:
            return replace(self, stopped_at=self.rung, retry_at_s=at_s + AGAIN_S)
        return self


def typical(rates: tuple[float, ...]) -> float:
    """Return the throughput of a window that prefill disturbs least."""
    ordered = sorted(rates)
    return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]
