"""How long it still takes, with a range, and which lane decides; pure functions.

The daemon gives each lane a time left at its mean rate. The range comes from how much the rate of
one minute differs from the next: the 10th and the 90th percentile of the mean, by its standard
error. It says nothing of what has not happened yet, such as a server that dies. Minutes in which
nothing at all came (no daemon, a pause) are left out, as they are from the daemon's rate. Before
`LEAST_MINUTES` of history, and for a lane that stands, there is no range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from eagled.tui.model import HISTORY_STEP_S, Lane

LEAST_MINUTES = 3
_Z90 = 1.2816  # standard errors from the mean to the 90th percentile
_WIDEST = 10.0  # a rate that is hardly above nothing would give years


@dataclass(frozen=True, slots=True)
class Total:
    """Seconds until all lanes are through.

    `at_rates`: the last lane at its own rate; `shared`: if the servers' whole rate goes on when a
    lane is through. None when no lane has a time. `last` is the lane that ends last, `critical`
    too if there are others.
    """

    at_rates: float | None
    shared: float | None
    critical: str | None
    paused: int
    last: str | None = None


def minutes(history: Sequence[float]) -> list[float]:
    """Return the means of the whole minutes of a history, newest last."""
    size = round(60 / HISTORY_STEP_S)
    whole = len(history) // size
    tail = history[len(history) - whole * size :]
    return [fmean(tail[i : i + size]) for i in range(0, len(tail), size)]


def eta_range(eta_s: float | None, history: Sequence[float]) -> tuple[float, float] | None:
    """Return (10%, 90%) of the time left; None while too little is known."""
    rates = [rate for rate in minutes(history) if rate > 0]
    if eta_s is None or eta_s <= 0 or len(rates) < LEAST_MINUTES:
        return None
    mean = fmean(rates)
    off = _Z90 * stdev(rates) / math.sqrt(len(rates)) / mean
    slowest = max(1 - off, 1 / _WIDEST)
    return eta_s / (1 + off), eta_s / slowest


def total_of(lanes: Sequence[Lane]) -> Total:
    """Return the time left over all lanes; paused ones are left out and counted."""
    running = [lane for lane in lanes if not lane.paused]
    timed = [(lane.eta_s, lane.key, lane.out_rate or 0.0) for lane in running
             if lane.eta_s]  # fmt: skip
    paused = sum(bool(lane.paused and lane.counts.open) for lane in lanes)
    if not timed:
        return Total(None, None, None, paused)
    longest, key, _ = max(timed)
    rate = sum(r for _, _, r in timed)
    shared = sum(s * r for s, _, r in timed) / rate if rate > 0 else None
    critical = key if len(timed) > 1 else None
    return Total(longest, shared, critical, paused, key)
