"""What a cap costs: the throughput that a server would have with more at once.

Guarantee: None where the batch sizes seen are too much alike to tell; never a guess. Pure state,
constant memory.

The time of a decode step grows about in a line with the batch. The line is fitted to what was
seen, old looks fading, so a batch of n makes n / (a + b n) tokens a second.
"""

from __future__ import annotations

from dataclasses import dataclass

FADE = 0.998  # of a look's weight from one to the next: about the last ten minutes
SPREAD = 0.05  # least standard deviation of the batch, as a share of it, that shows a line
LEAST = 20.0  # looks


@dataclass(slots=True)
class SpeedLine:
    """Decayed sums over (batch n, seconds of a step)."""

    count: float = 0.0
    n: float = 0.0
    s: float = 0.0
    nn: float = 0.0
    ns: float = 0.0

    def add(self, running: int, tok_per_s: float) -> None:
        """Take in one look."""
        if running <= 0 or tok_per_s <= 0:
            return
        step_s = running / tok_per_s
        self.count = FADE * self.count + 1
        self.n = FADE * self.n + running
        self.s = FADE * self.s + step_s
        self.nn = FADE * self.nn + running * running
        self.ns = FADE * self.ns + running * step_s

    def loss(self, now: float, more: float) -> float | None:
        """Return the share of throughput that a batch of `now` lacks beside one of `more`."""
        line = self._line()
        if line is None or more <= now:
            return 0.0 if more <= now else None
        a, b = line
        return max(0.0, 1.0 - (now / (a + b * now)) / (more / (a + b * more)))

    def _line(self) -> tuple[float, float] | None:
        if self.count < LEAST:
            return None
        mean_n, mean_s = self.n / self.count, self.s / self.count
        spread = self.nn / self.count - mean_n * mean_n
        if spread < (SPREAD * mean_n) ** 2:
            return None
        b = max(0.0, (self.ns / self.count - mean_n * mean_s) / spread)
        a = mean_s - b * mean_n
        return (a, b) if a > 0 else (0.0, mean_s / mean_n)
