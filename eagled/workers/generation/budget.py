"""What each lane may have in flight: its share of the tokens that the servers take together.

Guarantee: lanes with work and room share in proportion to `share`; what a lane cannot use (no
work, or its own cap) goes to the others; a lane with work always has at least one request, so
long work starts at once and its tail overlaps short work. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneUse:
    """One lane as it is now.

    Attributes:
        name: of the lane.
        share: its part of the tokens, against the shares of the others.
        cap: most requests at once; 0 is none.
        in_flight: its requests at the servers.
        tokens: their expected tokens together.
        weight: expected tokens of its next request.
        hungry: whether it has more to send.
    """

    name: str
    share: float
    cap: int
    in_flight: int
    tokens: float
    weight: float
    hungry: bool

    @property
    def most(self) -> float:
        """Return the tokens that it can come to use, whatever its share."""
        if not self.hungry:
            return self.tokens
        if not self.cap:
            return float("inf")
        return self.tokens + max(0, self.cap - self.in_flight) * self.weight


def allotments(lanes: Sequence[LaneUse], total: float) -> dict[str, float]:
    """Return the expected tokens that each lane may have in flight of `total`."""
    out: dict[str, float] = {}
    left = list(lanes)
    while left:
        shares = sum(lane.share for lane in left)
        sated = [x for x in left if x.most <= total * x.share / shares]
        for lane in sated or left:
            out[lane.name] = lane.most if sated else max(0.0, total * lane.share / shares)
        total -= sum(out[lane.name] for lane in sated)
        left = [lane for lane in left if lane not in sated] if sated else []
    return out


def room(lane: LaneUse, allotment: float, free: float) -> int:
    """Return how many requests a lane may send now.

    `free` is what the servers still take, in expected tokens. The last one may go over by part of
    itself: a budget that is smaller than a request would never be used otherwise.
    """
    if not lane.hungry:
        return 0
    at_most = lane.cap - lane.in_flight if lane.cap else 1 << 30
    spare = min(allotment - lane.tokens, free)
    n = round(spare / max(lane.weight, 1.0))
    if not lane.in_flight and n < 1:
        n = 1
    return max(0, min(at_most, n))
