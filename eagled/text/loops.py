"""Find a stretch of ids that repeats itself: the loop a model falls into.

Guarantee: a stretch counts if it repeats with one exact period of at most `period` tokens, is at
least `tokens` long and holds at least `repeats` whole periods; none that counts is missed, and the
one returned has its full extent. A table, code with alike lines or base64 differs somewhere in each
round and is none. Pure. Price: time in proportion to the length of the answer (periods are taken in
classes, and of each class windows are tried that every loop of it must contain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_REPEATS = 4  # with fewer, a window could not show the period of every loop that counts


@dataclass(frozen=True, slots=True)
class LoopRule:
    """What counts as a loop: longest period, shortest stretch in tokens, fewest rounds."""

    period: int
    tokens: int
    repeats: int = MIN_REPEATS

    def __post_init__(self) -> None:
        if self.period < 1 or self.tokens < 1 or self.repeats < MIN_REPEATS:
            raise ValueError(f"{self!r}: at least 1, 1 and {MIN_REPEATS}")


@dataclass(frozen=True, slots=True)
class Loop:
    """A repeating stretch: ids[start : start + length] with its shortest period."""

    start: int
    length: int
    period: int


def find_loop(ids: Sequence[int], rule: LoopRule) -> Loop | None:
    """Return a loop in `ids` that counts by `rule`, or None.

    A window of twice the longest period of a class, cut out of a loop of that class, shows the
    loop's own period (the theorem of Fine and Wilf), so its shortest period is enough.
    """
    shortest = 1
    while shortest <= rule.period:
        needed = max(rule.tokens, rule.repeats * shortest)
        if needed > len(ids):
            return None
        longest = min(rule.period, max(shortest, 3 * needed // 8))
        found = _in_class(ids, rule, longest, needed)
        if found is not None:
            return found
        shortest = longest + 1
    return None


def _in_class(ids: Sequence[int], rule: LoopRule, longest: int, needed: int) -> Loop | None:
    """Return a loop with a period of at most `longest`, at least `needed` tokens long."""
    window = 2 * longest  # at most 3/4 of `needed`, or half of it
    for start in range(0, len(ids) - window + 1, needed - window + 1):
        period = _period(ids, start, window)
        if period <= longest:
            found = _extended(ids, start, window, period)
            if found.length >= max(rule.tokens, rule.repeats * period):
                return found
    return None


def _period(ids: Sequence[int], start: int, length: int) -> int:
    """Return the shortest period of ids[start : start + length] (its length if it has none).

    By the failure function of Knuth, Morris and Pratt: linear in `length`.
    """
    border = [0] * length
    k = 0
    for i in range(1, length):
        here = ids[start + i]
        while k and ids[start + k] != here:
            k = border[k - 1]
        if ids[start + k] == here:
            k += 1
        border[i] = k
    return length - border[-1]


def _extended(ids: Sequence[int], start: int, length: int, period: int) -> Loop:
    """Return the whole stretch around a window that repeats with its period."""
    end = start + length
    while end < len(ids) and ids[end] == ids[end - period]:
        end += 1
    while start > 0 and ids[start - 1] == ids[start - 1 + period]:
        start -= 1
    return Loop(start, end - start, period)
