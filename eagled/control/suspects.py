"""Samples in whose hands a worker died: tried alone, and given up when it happens again.

Guarantee: one sample that kills every worker (memory, a crash in a tokenizer or a kernel) costs
`MOST_DEATHS` of them, not the run; samples that were only in the same batch are not given up,
because each gets a worker to itself first. Price: kept in memory, so a new daemon counts anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
MOST_DEATHS = 3


class Suspects:
    """Counts the deaths that happened over a sample since the last worker survived it."""

    def __init__(self) -> None:
        self._deaths: Counter[int] = Counter()

    def charge(self, samples: Iterable[int]) -> None:
        """A worker died with these in its hands."""
        self._deaths.update(samples)

    def clear(self, samples: Iterable[int]) -> None:
        """A worker survived these, or they are settled."""
        for sample in samples:
            self._deaths.pop(sample, None)

    def waiting(self) -> list[int]:
        """Return those that are to be tried alone, the most suspect first."""
        return [sample for sample, n in self._deaths.most_common() if n < MOST_DEATHS]

    def is_guilty(self, sample: int) -> bool:
        """Return whether it is to be given up."""
        return self._deaths[sample] >= MOST_DEATHS

    def why(self, sample: int) -> str:
        """Return why it is given up, in words."""
        return f"{self._deaths[sample]} workers in a row ended while they had it in hand"

    def alone(self, jobs: Sequence[T], sample_of: Callable[[T], int]) -> Sequence[T]:
        """Return the first suspect by itself, or everything if there is none."""
        return next(([job] for job in jobs if sample_of(job) in self._deaths), jobs)
