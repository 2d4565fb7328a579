"""How fast the run goes, remembered for the last quarter of an hour.

Guarantee: constant memory; every rate and time left is a quotient of what this run really did, and
None while that is not known. Right after a restart a lane's rate and history are those before it,
and give way to what is measured since; time for which an operator held a lane or a dataset does not
count in a rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

EVERY_S = 5.0
SPAN_S = 900.0
_KEEP = int(SPAN_S / EVERY_S)
_LEAST_S = 10.0  # a rate over less says nothing
_BEFORE_S = 120.0  # what the rate of the life before weighs at first, in seconds of measuring


@dataclass(frozen=True, slots=True)
class Point:
    """What had happened by one moment.

    Attributes:
        at: monotonic seconds.
        out_rates: answer tokens a second by lane, as the generator measures them.
        finished: samples whose generation is over, by lane and by dataset ("lane:x", "dataset:y").
        extracted: samples in shards.
        shard_tokens: tokens in shards.
        shard_bytes: bytes in shards.
        held: lanes and datasets that an operator holds, by the keys of `finished`.
    """

    at: float
    out_rates: Mapping[str, float]
    finished: Mapping[str, int]
    extracted: int
    shard_tokens: int
    shard_bytes: int
    held: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Before:
    """What is known of the daemon's life before.

    Attributes:
        rates: samples finished a second, by the keys of `Point.finished`.
        histories: answer tokens a second by lane as `Progress.out_history` gave them, followed by
            zeros for the time without a daemon.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    histories: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Progress:
    """The points of the last `SPAN_S` seconds."""

    def __init__(self, before: Before | None = None) -> None:
        self._before = before or Before()
        self._holds = False  # whether anything was held in the whole span
        self._points: deque[Point] = deque(maxlen=_KEEP)
        self._histories: dict[str, list[float]] = {}  # made since the last point, by lane

    def due(self, now: float) -> bool:
        """Return whether it is time for another point."""
        return not self._points or now - self._points[-1].at >= EVERY_S

    def add(self, point: Point) -> None:
        """Remember a point."""
        rates = {lane: round(rate, 2) for lane, rate in point.out_rates.items()}
        self._points.append(replace(point, out_rates=rates))
        self._holds = any(p.held for p in self._points)
        self._histories.clear()

    def out_history(self, lane: str) -> list[float]:
        """Return answer tokens a second of a lane, oldest first, one every `EVERY_S` seconds."""
        found = self._histories.get(lane)
        if found is None:
            now = [point.out_rates.get(lane, 0.0) for point in self._points]
            found = [*self._before.histories.get(lane, ()), *now][-_KEEP:]
            self._histories[lane] = found
        return found.copy()

    def finish_rate(self, key: str) -> float | None:
        """Return samples finished a second in a lane or dataset, while nobody held it."""
        grown, seconds = self._finished(key)
        before = self._before.rates.get(key)
        if before is None:
            return grown / seconds if seconds >= _LEAST_S and grown > 0 else None
        weight = _BEFORE_S * max(0.0, 1 - seconds / SPAN_S)
        rate = (max(0, grown) + before * weight) / (seconds + weight)
        return rate if rate > 0 else None

    def _finished(self, key: str) -> tuple[int, float]:
        """Return how many were finished, in how many seconds, while nobody held the key."""
        if not self._holds and self._points:
            first, last = self._points[0], self._points[-1]
            return last.finished.get(key, 0) - first.finished.get(key, 0), last.at - first.at
        grown, seconds = 0, 0.0
        for a, b in pairwise(self._points):
            if key not in a.held:
                grown += b.finished.get(key, 0) - a.finished.get(key, 0)
                seconds += b.at - a.at
        return grown, seconds

    def extract_rate(self) -> float | None:
        """Return samples extracted a second."""
        return self._rate(lambda point: point.extracted)

    def shard_token_rate(self) -> float | None:
        """Return tokens put into shards a second."""
        return self._rate(lambda point: point.shard_tokens)

    def shard_byte_rate(self) -> float | None:
        """Return bytes of shards written a second."""
        return self._rate(lambda point: point.shard_bytes)

    def _rate(self, value: Callable[[Point], int]) -> float | None:
        """Return the mean growth a second over the points; None when nothing grew."""
        if len(self._points) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        first, last = self._points[0], self._points[-1]
        grown, seconds = value(last) - value(first), last.at - first.at
        return grown / seconds if seconds >= _LEAST_S and grown > 0 else None


def time_left(n: int, rate: float | None) -> float | None:
    """Return the seconds that `n` more take; 0 when there are none, None when unknown."""
    if n == 0:
        return 0.0
    return n / rate if rate else None
