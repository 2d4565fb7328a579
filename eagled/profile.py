"""How long the prompts are; `cuts.py` says what that means for the lanes.

Guarantee: counted tokens of prepared prompts, never an estimate from characters. Quantiles are
exact for one dataset; over several they come from the joined histogram (the upper edge of a
bucket). Imports neither transformers nor datasets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json
from eagled.errors import ArtifactError
from eagled.prepared import PROFILE_NAME

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_FINE_TOKENS = 64  # bucket width below the knee
_COARSE_TOKENS = 1024
_KNEE_TOKENS = 8192
_ROUND_TOKENS = 500
_BAR_CHARS = 40
_SHOWN_BUCKETS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)


@dataclass(frozen=True, slots=True)
class LengthProfile:
    """Prompt lengths in tokens.

    Attributes:
        n: prompts.
        total: their tokens.
        quantiles: length by share of prompts that are at most as long.
        histogram: (upper edge, prompts) in ascending order; a prompt is in the first bucket whose
            edge is at least its length.
    """

    n: int
    total: int
    quantiles: Mapping[float, int]
    histogram: tuple[tuple[int, int], ...]

    def length_at(self, share: float) -> int:
        """Return the length (its bucket's edge) that a share of the prompts does not exceed."""
        return _edge_at(self.histogram, share * self.n)

    def to_json(self) -> dict[str, Any]:
        """Return the profile for `profile.json`."""
        return {
            "n": self.n,
            "total": self.total,
            "quantiles": {str(q): length for q, length in self.quantiles.items()},
            "histogram": [list(bucket) for bucket in self.histogram],
        }


def profile_of(lengths: Iterable[int]) -> LengthProfile:
    """Return the profile of prompt lengths in tokens; a `Counter` of lengths is counted as such."""
    exact = lengths if isinstance(lengths, Counter) else Counter(lengths)
    ordered = sorted(exact.items())
    counts: Counter[int] = Counter()
    for length, n in ordered:
        counts[_edge(length)] += n
    n = exact.total()
    total = sum(length * times for length, times in ordered)
    quantiles = {q: _edge_at(ordered, math.ceil(q * n)) for q in QUANTILES} if n else {}
    return LengthProfile(n, total, quantiles, tuple(sorted(counts.items())))


def read_profile(folder: Path) -> LengthProfile:
    """Return the prompt profile of a prepared dataset.

    Raises:
        ArtifactError: if there is none or it is not one of ours.
    """
    value = read_json(folder / PROFILE_NAME)
    try:
        prompts = value["prompt_tokens"]
        return LengthProfile(
            n=prompts["n"],
            total=prompts["total"],
            quantiles={float(q): length for q, length in prompts["quantiles"].items()},
            histogram=tuple((edge, count) for edge, count in prompts["histogram"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ArtifactError(f"{folder / PROFILE_NAME} is incomplete: {exc!r}") from exc


def join(profiles: Sequence[LengthProfile]) -> LengthProfile:
    """Return the profile of several datasets together."""
    counts: Counter[int] = Counter()
    for profile in profiles:
        counts.update(dict(profile.histogram))
    histogram = tuple(sorted(counts.items()))
    n = sum(profile.n for profile in profiles)
    quantiles = {q: _edge_at(histogram, q * n) for q in QUANTILES} if n else {}
    return LengthProfile(n, sum(profile.total for profile in profiles), quantiles, histogram)


def round_up(tokens: int) -> int:
    """Return a context as a person would set it: the next multiple of 500."""
    return -(-tokens // _ROUND_TOKENS) * _ROUND_TOKENS


def table(name: str, profile: LengthProfile) -> str:
    """Return a histogram and quantiles for a terminal."""
    shown = {str(q): length for q, length in profile.quantiles.items()}
    quantiles = "  ".join(f"p{float(q) * 100:g} {length:,}" for q, length in shown.items())
    lines = [f"{name}: {profile.n:,} prompts, {profile.total:,} tokens", f"  {quantiles}"]
    counts = _coarse(profile)
    most = max(counts.values(), default=1)
    for label, count in counts.items():
        bar = "█" * max(1, round(_BAR_CHARS * count / most)) if count else ""
        lines.append(f"  {label:>10} {count:>9,} {bar}")
    return "\n".join(lines)


def _coarse(profile: LengthProfile) -> dict[str, int]:
    """Sum the histogram up for the eye; empty ends are left out."""
    edges = [*_SHOWN_BUCKETS]
    counts = [0] * (len(edges) + 1)
    for edge, count in profile.histogram:
        counts[next((i for i, top in enumerate(edges) if edge <= top), len(edges))] += count
    used = [i for i, count in enumerate(counts) if count]
    labels = [f"≤ {top:,}" for top in edges] + [f"> {edges[-1]:,}"]
    span = range(used[0], used[-1] + 1) if used else range(0)
    return {labels[i]: counts[i] for i in span}


def bucket_start(edge: int) -> int:
    """Return the length above which a prompt falls into the bucket with this upper edge."""
    return edge - (_FINE_TOKENS if edge <= _KNEE_TOKENS else _COARSE_TOKENS)


def _edge(length: int) -> int:
    width = _FINE_TOKENS if length <= _KNEE_TOKENS else _COARSE_TOKENS
    return -(-length // width) * width


def _edge_at(histogram: Sequence[tuple[int, int]], rank: float) -> int:
    seen = 0
    for edge, count in histogram:
        seen += count
        if seen >= rank:
            return edge
    return histogram[-1][0]
