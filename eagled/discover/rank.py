"""Which candidates are better: a score out of parts that are shown, and who asks the same.

The score only orders; it is no quality of answers, which nobody can see from the first rows.
Guarantee: of two datasets that share questions the lower one is marked, what the configuration has
already stands above all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagled.discover import licence
from eagled.discover.categories import Category
from eagled.discover.facts import Facts
from eagled.discover.native import CARD, ROWS
from eagled.discover.overlap import Overlap
from eagled.discover.search import Candidate

_KEPT, _ROWS, _KNOWN, _WANTED = 40.0, 15.0, 15.0, 20.0  # most points of each part
_LICENCE_COST: Mapping[str, float] = {
    licence.NON_COMMERCIAL: 25.0, licence.CONFLICT: 25.0, licence.MISSING: 8.0,
    licence.UNKNOWN: 8.0, licence.GATED: 5.0, licence.SHARE_ALIKE: 2.0,
}  # fmt: skip
_FULL = 1e6  # rows, downloads: more are no better
_SHOWN_OVERLAP = 0.02


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its points; `flaw` says why it cannot be used, empty if it can."""

    facts: Facts
    score: float
    flaw: str


def rank(
    candidates: Sequence[Candidate],
    categories: Sequence[Category],
    have: Sequence[str],
    scratch: Path,
    threshold: float,
) -> list[Ranked]:
    """Return the candidates in order, each with the earlier ones whose questions it has.

    Args:
        candidates: what was found.
        categories: for what is wanted of whom.
        have: sources of the configured mix; they stand first.
        scratch: file for signatures; it is removed.
        threshold: similarity from which two questions are the same.
    """
    wanted = {c.name: c for c in categories}
    order = sorted(candidates, key=lambda c: _place(c.facts, wanted, have))
    overlap = Overlap(scratch, threshold)
    try:
        out = []
        for candidate in order:
            shares = overlap.add(candidate.facts.source, candidate.marks())
            shown = {name: round(s, 4) for name, s in shares.items()
                     if s >= _SHOWN_OVERLAP and name != candidate.facts.source}  # fmt: skip
            facts = dataclasses.replace(candidate.facts, overlap=shown)
            out.append(Ranked(facts, round(score_of(facts, wanted), 1), flaw_of(facts)))
        return out
    finally:
        overlap.close()


def _place(
    facts: Facts, wanted: Mapping[str, Category], have: Sequence[str]
) -> tuple[bool, bool, float, str]:
    return (
        facts.source not in have, bool(flaw_of(facts)), -score_of(facts, wanted), facts.source
    )  # fmt: skip


def flaw_of(facts: Facts) -> str:
    """Return why a dataset cannot be used, empty if it can."""
    if facts.problem:
        return f"{facts.problem}: {facts.detail}"
    if facts.swapped:
        return "the prompts seem to stand in the answer column"
    if not facts.kept:
        reasons = ", ".join(facts.rejected)
        return f"no row of the sample is kept ({reasons})"
    return ""


def score_of(facts: Facts, wanted: Mapping[str, Category]) -> float:
    """Return the points of a dataset: rows kept, how many, how well known, what is wanted."""
    size = math.log10(1 + (facts.rows or 0) * facts.kept_share) / math.log10(_FULL)
    known = math.log10(1 + (facts.downloads or 0)) / math.log10(_FULL)
    share = max((_wanted(facts, wanted[n]) for n in facts.categories if n in wanted), default=0.0)
    cost = max((_LICENCE_COST.get(flag, 0.0) for flag in facts.licence_flags), default=0.0)
    return (
        _KEPT * facts.kept_share + _ROWS * min(1.0, size) + _KNOWN * min(1.0, known)
        + _WANTED * share - cost
    )  # fmt: skip


def _wanted(facts: Facts, category: Category) -> float:
    """Return how far a dataset is what its category wants; half where that is all it says."""
    own = facts.native in (ROWS, CARD)
    claimed = 1.0 if own else 0.5 if facts.native else 0.0
    shares = {"tools": facts.tools, "reasoning": facts.reasoning, "native": claimed}
    named = facts.source in category.datasets
    return max(shares.get(category.want, 0.5), 0.5 * named)
