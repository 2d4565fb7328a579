"""How far prep is: counts, speed and time left, told at most a few times a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

_SPAN_S = 30.0  # over which the speed is measured
_LEAST_S = 1.0
_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class PrepProgress:
    """Counts while a dataset is being prepared.

    Attributes:
        dataset: its name.
        rows: rows read and decided.
        kept: rows kept.
        rejected: rows left out, by reason.
        doing: "choosing" (first pass of a choice by chance) or "preparing".
        rows_per_s: over the last half minute; None while that is not known.
        left_s: seconds that this pass still takes; None while that is not known.
        ended: nothing follows.
    """

    dataset: str
    rows: int
    kept: int
    rejected: Mapping[str, int]
    doing: str = "preparing"
    rows_per_s: float | None = None
    left_s: float | None = None
    ended: bool = False


Progress = Callable[[PrepProgress], None]


class _Counts(Protocol):
    rows: int
    kept: int

    @property
    def rejected(self) -> Mapping[str, int]:
        """Rows left out, by reason."""


@dataclass(slots=True)
class Teller:
    """Reports one dataset's progress.

    Attributes:
        rows_expected: rows of the source, where they are known or estimated.
        kept_wanted: rows after which reading stops; 0 reads all.
    """

    dataset: str
    progress: Progress | None
    kept_wanted: int = 0
    rows_expected: int | None = None
    clock: Callable[[], float] = time.monotonic
    _points: deque[tuple[float, int, int]] = field(default_factory=deque)

    def due(self) -> bool:
        """Return whether somebody listens and it is time for another report."""
        if self.progress is None:
            return False
        return not self._points or self.clock() - self._points[-1][0] >= _EVERY_S

    def tell(self, counts: _Counts, doing: str = "preparing", *, ended: bool = False) -> None:
        """Report counts; speed and time left come from the reports of the last half minute."""
        if self.progress is None:
            return
        now = self.clock()
        if self._points and counts.rows < self._points[-1][1]:
            self._points.clear()  # another pass began
        self._points.append((now, counts.rows, counts.kept))
        while now - self._points[0][0] > _SPAN_S:
            self._points.popleft()
        rate, kept_rate = self._rates()
        self.progress(
            PrepProgress(
                self.dataset, counts.rows, counts.kept, dict(counts.rejected), doing, rate,
                self._left(counts, rate, kept_rate), ended,
            )
        )  # fmt: skip

    def _rates(self) -> tuple[float | None, float | None]:
        (t0, rows0, kept0), (t1, rows1, kept1) = self._points[0], self._points[-1]
        seconds = t1 - t0
        if seconds < _LEAST_S:
            return None, None
        return (rows1 - rows0) / seconds, (kept1 - kept0) / seconds

    def _left(self, counts: _Counts, rate: float | None, kept_rate: float | None) -> float | None:
        """Return the shorter of the times to the last row and to the last row that is wanted."""
        times = []
        if rate and self.rows_expected is not None:
            times.append(max(0, self.rows_expected - counts.rows) / rate)
        if kept_rate and self.kept_wanted:
            times.append(max(0, self.kept_wanted - counts.kept) / kept_rate)
        return min(times, default=None)
