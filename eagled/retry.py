"""How long to wait before something is tried again.

Guarantee: every function is pure; chance and time come in as arguments. A wait is never longer
than the `max_s` given, whatever a server asks for.
"""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime
from typing import Protocol

_MAX_DOUBLINGS = 32  # 2^32 times any base is over every sensible maximum


class Random(Protocol):
    """The one method of `random.Random` that is needed here."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


def full_jitter(failures: int, base_s: float, max_s: float, rng: Random) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row.

    Uniform between 0 and min(`max_s`, `base_s` * 2^(failures - 1)): many clients that failed
    together do not come back together.
    """
    doublings = min(max(failures - 1, 0), _MAX_DOUBLINGS)
    return float(rng.random() * min(max_s, base_s * 2.0**doublings))


def parse_retry_after(value: str | None, now_ms: int, max_s: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, cut to [0, `max_s`].

    Both forms of RFC 9110 are read (seconds, HTTP date); anything else is None.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now_ms / 1000
        except (ValueError, TypeError, OverflowError):
            return None
    if not math.isfinite(seconds):
        return None
    return min(max(seconds, 0.0), max_s)
