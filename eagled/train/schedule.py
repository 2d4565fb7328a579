"""The learning rate: linear warm-up, then a cosine to a floor; a function of the step only."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """A whole run's learning rate.

    Attributes:
        peak: highest rate.
        total: optimiser steps of the run.
        warmup: steps of the rise.
        floor: share of the peak that the last step has.
    """

    peak: float
    total: int
    warmup: int
    floor: float = 0.0

    def rate(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.total - 1 - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.peak * (self.floor + (1 - self.floor) * cosine)
