"""Medians with their spread, the speed-up at each concurrency, and the verdict.

Guarantee: two sides are compared only if they were asked the same (prompts, template, sampling) at
the same concurrencies. A speed-up whose spread includes 1 is called even, not a gain.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any

from eagled.artifacts import require_same
from eagled.benchmark.acceptance import Speculation, total
from eagled.benchmark.measure import Pass

_TIMES = "\u00d7"


@dataclass(frozen=True, slots=True)
class Spread:
    """Lowest, median and highest of several runs."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return that of some values."""
        return cls(min(values), statistics.median(values), max(values))


@dataclass(frozen=True, slots=True)
class Side:
    """One server's measurement.

    Attributes:
        name: "plain", or the settings of speculation.
        digest: of the workload it was asked.
        server: what it said about itself.
        passes: in ascending order of concurrency.
        same_answers: greedy answers of the warm-up that are the plain server's, and how many were
            compared; None where nothing was.
        notes: what a reader has to know.
    """

    name: str
    digest: str
    server: Mapping[str, Any]
    passes: Sequence[Pass]
    same_answers: tuple[int, int] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def points(self) -> dict[int, list[Pass]]:
        """The passes by concurrency."""
        return {c: list(group) for c, group in groupby(self.passes, lambda p: p.concurrency)}

    def rate(self, concurrency: int) -> Spread:
        """Tokens a second."""
        return Spread.of([p.tok_per_s for p in self.points[concurrency]])

    @property
    def by_set(self) -> dict[str, Speculation]:
        """Verify steps by data set, over all passes."""
        names = sorted({name for p in self.passes for name in p.speculation})
        return {
            name: total(p.speculation[name] for p in self.passes if name in p.speculation)
            for name in names
        }

    @property
    def speculation(self) -> Speculation:
        """Verify steps of everything."""
        return total(self.by_set.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "name": self.name, "digest": self.digest, "server": dict(self.server),
            "passes": [p.to_dict() for p in self.passes], "notes": list(self.notes),
            "same_answers": list(self.same_answers) if self.same_answers else None,
            "accepted": {
                **self.speculation.to_dict(),
                "sets": {name: s.to_dict() for name, s in self.by_set.items()},
            },
        }  # fmt: skip

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Side:
        """Return what `to_dict` gave."""
        same = value["same_answers"]
        return cls(
            value["name"], value["digest"], value["server"],
            [Pass.from_dict(p) for p in value["passes"]],
            (same[0], same[1]) if same else None, tuple(value["notes"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gain:
    """Speed with the draft over speed without, at one concurrency.

    `ratio.low` is the draft's slowest run over the plain server's fastest.
    """

    concurrency: int
    ratio: Spread

    @property
    def is_gain(self) -> bool:
        """Whether even the worst pair of runs is faster."""
        return self.ratio.low > 1

    @property
    def is_even(self) -> bool:
        """Whether the spread includes no difference."""
        return self.ratio.low <= 1 <= self.ratio.high

    def __str__(self) -> str:
        return f"{self.ratio.median:.2f}{_TIMES} at C={self.concurrency}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        low, median, high = (round(x, 4) for x in (self.ratio.low, self.ratio.median,
                                                   self.ratio.high))  # fmt: skip
        return {"concurrency": self.concurrency, "ratio": median, "low": low, "high": high}


def gains(plain: Side, test: Side) -> list[Gain]:
    """Return the speed-up at each concurrency.

    Raises:
        ArtifactError: if the two were not asked the same.
    """
    require_same("the workload", plain.digest, test.digest, where=test.name)
    require_same("concurrencies", list(plain.points), list(test.points), where=test.name)
    found = []
    for concurrency in plain.points:
        ours, theirs = test.rate(concurrency), plain.rate(concurrency)
        ratio = Spread(ours.low / theirs.high, ours.median / theirs.median, ours.high / theirs.low)
        found.append(Gain(concurrency, ratio))
    return found


def verdict(found: Sequence[Gain]) -> str:
    """Say in one sentence at which concurrencies a draft is worth having."""
    once = all(g.ratio.low == g.ratio.high for g in found)
    return _judged(found) + ("; measured once, so the spread is not known" if once else "")


def _judged(found: Sequence[Gain]) -> str:
    shown = [found[0]] if len(found) == 1 else [found[0], _turn(found)]
    numbers = ", ".join(map(str, dict.fromkeys(shown)))
    up_to = [g.concurrency for g in takewhile(lambda g: g.is_gain, found)]
    good = [g.concurrency for g in found if g.is_gain]
    if len(good) == len(found):
        return f"{numbers}: faster at every concurrency that was measured"
    if up_to and up_to == good:
        return f"{numbers}: use up to C={up_to[-1]}"
    if good:
        return f"{numbers}: use at C={', '.join(map(str, good))} only"
    if all(g.is_even for g in found):
        return f"{numbers}: no difference beyond the spread of the runs"
    return f"{numbers}: no faster than without a draft at any concurrency; do not use it"


def _turn(found: Sequence[Gain]) -> Gain:
    """Return the first concurrency at which the draft is no gain any more, else the last one."""
    return next((g for g in found[1:] if not g.is_gain), found[-1])
