"""Whether more requests at once are any faster, judged by the server's own throughput.

Guarantee: pure; a decision needs a window of readings on both sides, so that one slow second
decides nothing. A plateau stops growth where it is and never takes away what is in flight: a wrong
one costs some growth, for `AGAIN_S`.

Two questions are asked:

- While the batch grows and memory would allow more: was growing by half worth anything? If not,
  that is the plateau; it is tried again after `AGAIN_S`.
- The server decodes more at once than it has CUDA graphs for: is it faster with no more than that?
  Tried once the batch is steady: less for a minute, then whichever was faster. Only there can a
  smaller batch be faster on a server whose queue is kept short and whose memory is not full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

STEADY = 1.15  # a batch that stays within this of itself is steady
WINDOW = 40  # different readings that a comparison with less rests on (one comes in 1 to 3 s)
SETTLE = 8  # readings that do not count after a change
QUANTILE = 0.7  # of throughput: readings with little prefill tell most of the batch
CLIMB = 16  # readings that growth is judged by
CLIMB_STEP = 1.5  # so many times wider ...
CLIMB_GAIN = 1.02  # ... must be at least so many times faster
REACH = 1.6  # a batch so many times wider than the graphs is faster for certain
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
class Look:
    """One reading of a server.

    Attributes:
        at_s: monotonic seconds.
        in_flight: our requests there.
        running: those that decode.
        tok_per_s: tokens that it makes a second; 0 is unknown.
        graphs: largest batch with a CUDA graph; 0 is unknown.
        growing: it was being given more, and memory would allow it.
    """

    at_s: float
    in_flight: int
    running: int
    tok_per_s: float
    graphs: int
    growing: bool


@dataclass(frozen=True, slots=True)
class Ladder:
    """What was measured.

    Attributes:
        latest: the last reading.
        mark: requests in flight and throughput that growth is compared with.
        climb: readings since the last mark, or since growth went beyond `CLIMB_STEP` of it.
        beyond: whether it has.
        plateau: most requests in flight worth having; 0 is no limit.
        again_at_s: when the plateau is tried again.
        trial: where the comparison with a smaller batch stands.
        rung: size of the steady batch that `rates` are of, as a power of `STEADY`.
        rates: throughput of the present side of the comparison, newest last.
        skip: readings to leave out.
        wide: throughput with the larger batch.
        graphs: the smaller batch.
        retry_at_s: when the comparison is made again.
    """

    latest: float = 0.0
    mark: tuple[int, float] = (0, 0.0)
    climb: tuple[float, ...] = ()
    beyond: bool = False
    plateau: int = 0
    again_at_s: float = float("-inf")
    trial: Trial = Trial.NONE
    rung: int = -1
    rates: tuple[float, ...] = ()
    skip: int = SETTLE
    wide: float = 0.0
    graphs: int = 0
    retry_at_s: float = float("-inf")

    @property
    def narrow(self) -> int:
        """Return the batch that is tried, or kept, because it is faster; 0 is none."""
        return self.graphs if self.trial in (Trial.NARROW, Trial.KEPT) else 0

    def after(self, look: Look) -> Ladder:
        """Return it with one more look; a reading that was not renewed counts once."""
        if not look.running or not look.tok_per_s or look.tok_per_s == self.latest:
            return self
        ladder = replace(self, latest=look.tok_per_s)
        if ladder.plateau and look.at_s >= ladder.again_at_s:
            ladder = replace(ladder, plateau=0, mark=(0, 0.0), climb=(), beyond=False)
        if ladder.trial in (Trial.KEPT, Trial.OVER) and look.at_s >= ladder.retry_at_s:
            ladder = replace(ladder, trial=Trial.NONE, rates=(), skip=SETTLE)
        return ladder.climbed(look).measured(look).judged(look)

    def climbed(self, look: Look) -> Ladder:
        """Return it with a judgement of the growth since the mark."""
        n, rate = self.mark
        left = bool(n) and not n / CLIMB_STEP < look.in_flight < n * CLIMB_STEP
        if left and not self.beyond:
            return replace(self, climb=(), beyond=True)
        climb = (*self.climb[1 - CLIMB :], self.latest)
        if len(climb) < CLIMB or (n and not self.beyond):
            return replace(self, climb=climb)
        now = typical(climb)
        marked = replace(self, mark=(look.in_flight, now), climb=(), beyond=False)
        if not n or look.in_flight < n * CLIMB_STEP or not look.growing or now > CLIMB_GAIN * rate:
            return marked
        return replace(marked, plateau=look.in_flight, again_at_s=look.at_s + AGAIN_S)

    def measured(self, look: Look) -> Ladder:
        """Return it with the reading in the window of the side that it belongs to."""
        if self.trial is Trial.NARROW:
            if look.running > self.graphs:
                return replace(self, skip=SETTLE)
        elif abs((rung := int(math.log(look.running, STEADY))) - self.rung) > 1:
            return replace(self, rung=rung, rates=(), skip=SETTLE)
        if self.skip:
            return replace(self, skip=self.skip - 1)
        return replace(self, rates=(*self.rates[1 - WINDOW :], self.latest))

    def judged(self, look: Look) -> Ladder:
        """Return it with what a full window decides about the smaller batch."""
        if len(self.rates) < WINDOW:
            return self
        rate = typical(self.rates)
        if self.trial is Trial.NARROW:
            verdict = Trial.KEPT if rate > FASTER * self.wide else Trial.OVER
            retry_at_s = look.at_s + RETRY_S
            return replace(self, trial=verdict, rates=(), skip=SETTLE, retry_at_s=retry_at_s)
        if self.trial is Trial.NONE and look.graphs < look.running < REACH * look.graphs:
            return replace(
                self, trial=Trial.NARROW, wide=rate, graphs=look.graphs, rates=(), skip=SETTLE
            )
        return self


def typical(rates: tuple[float, ...]) -> float:
    """Return the throughput of a window that prefill disturbs least."""
    ordered = sorted(rates)
    return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]
