"""Waits before another try."""

from __future__ import annotations

import random

import pytest

from eagled.retry import full_jitter, parse_retry_after

NOW_MS = 1_800_000_000_000  # 2027-01-15 08:00:00 UTC


class Fixed:
    """Chance that always says the same."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        """Return it."""
        return self._value


@pytest.mark.parametrize(
    ("failures", "most"), [(0, 2.0), (1, 2.0), (2, 4.0), (3, 8.0), (7, 100.0), (10**6, 100.0)]
)
def test_the_span_doubles_up_to_the_maximum(failures: int, most: float) -> None:
    """The longest possible wait is base * 2^(n-1), cut at the maximum; the shortest is 0."""
    assert full_jitter(failures, 2.0, 100.0, Fixed(1.0)) == most
    assert full_jitter(failures, 2.0, 100.0, Fixed(0.0)) == 0.0


def test_waits_are_spread_evenly() -> None:
    """The mean of many waits is half the span: full jitter, not half of it."""
    rng = random.Random(11)  # noqa: S311 - a seeded spread, not a secret
    waits = [full_jitter(1, 10.0, 100.0, rng) for _ in range(4000)]

    assert abs(sum(waits) / len(waits) - 5.0) < 0.2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("-3", 0.0),
        ("99999", 60.0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("Fri, 15 Jan 2027 08:00:20 GMT", 20.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
        ("Fri, 99 Jan 2027 08:00:20 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms(value: str | None, expected: float | None) -> None:
    """Seconds or a date; nonsense is None; never over the maximum, never negative."""
    assert parse_retry_after(value, NOW_MS, 60.0) == expected
