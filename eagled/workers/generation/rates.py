"""Rates and latencies of one lane over the last minute.

Guarantee: constant memory; recording is O(1), reading sorts a few hundred numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60
_LATENCIES = 512  # the last so many completions give the percentiles


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """What a lane does right now; rates are over the last minute, None means nothing known."""

    in_flight: int
    limit: int
    paused: bool
    completions: int
    out_tok_per_s: float
    in_tok_per_s: float
    p50_s: float | None
    p95_s: float | None


@dataclass(slots=True)
class _Second:
    at: int
    n_in: int
    n_out: int


class Rates:
    """Counts completions; `now` is monotonic seconds throughout."""

    def __init__(self, now: float) -> None:
        self.completions = 0
        self._started_at = now
        self._seconds: deque[_Second] = deque(maxlen=WINDOW_S + 1)
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)

    def record(self, now: float, n_in: int, n_out: int, elapsed_s: float) -> None:
        """Count one completion of `n_in` prompt and `n_out` answer tokens."""
        self.completions += 1
        self._latencies.append(elapsed_s)
        second = int(now)
        if not self._seconds or self._seconds[-1].at != second:
            self._seconds.append(_Second(second, 0, 0))
        self._seconds[-1].n_in += n_in
        self._seconds[-1].n_out += n_out

    def per_second(self, now: float) -> tuple[float, float]:
        """Return (prompt tokens, answer tokens) a second, over the last minute."""
        since = now - WINDOW_S
        span = min(max(now - self._started_at, 1.0), WINDOW_S)
        recent = [s for s in self._seconds if s.at > since]
        return sum(s.n_in for s in recent) / span, sum(s.n_out for s in recent) / span

    def percentile(self, share: float) -> float | None:
        """Return the latency in seconds that `share` of the last completions did not exceed."""
        if not self._latencies:
            return None
        ordered = sorted(self._latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
