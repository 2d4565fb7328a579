"""What is known of a candidate: plain data that is stored as JSON and printed.

Guarantee: every text that came from outside is printable here; a number that is not known is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

FACTS_VERSION = 1  # raise it when a fact changes its meaning: cached ones are then asked again


class Problem(StrEnum):
    """Why a candidate could not be looked at."""

    GATED = "gated"
    GONE = "gone"
    NO_FILES = "no_files"
    EMPTY = "empty"
    NO_READER = "no_reader"
    BROKEN = "broken"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    UNREACHABLE = "unreachable"
    NOT_CACHED = "not_cached"


PASSING = frozenset(
    {Problem.TIMEOUT, Problem.RATE_LIMITED, Problem.UNREACHABLE, Problem.NOT_CACHED}
)  # asked again by the next run


@dataclass(frozen=True, slots=True)
class Found:
    """A dataset that a source named.

    Attributes:
        source: hub id, or path of a file or folder.
        local: whether it is a path.
        licence: what the catalogue says of it; None asks the card.
        config: configuration of the hub dataset, where the caller has chosen one.
        split: the same of the split.
    """

    source: str
    local: bool = False
    licence: str | None = None
    config: str | None = None
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out about one dataset.

    Attributes:
        source: hub id or path.
        local: whether it is a path.
        categories: names of those it was found for.
        problem: why the rest is missing; empty when it is not.
        detail: more about the problem.
        notes: what went wrong beside that (a broken viewer, a card that says something else).
        files: the data files, where the card names others than there are.
        rows_from: card, viewer, files or estimated.
        licence_flags: missing, non-commercial, share-alike, conflict, gated, unknown.
        readers: how many sampled rows each reader knows by their columns.
        sampled: rows looked at, of which `kept`; `rejected` by reason.
        unit: of `lengths`: tokens (of the target) or characters.
        lengths: [length of a first prompt, how many] in ascending order.
        lanes: sampled prompts by lane; without a tokenizer empty.
        kept_share: of the rows that prep would keep.
        turns_mean: samples that one kept row makes; an agent run counts as one.
        prompt_mean: tokens of a sample's prompt (assumed from characters where `unit` says so).
        answer_mean: the same of the answers that the rows have; None where they have none.
        tools: share of kept rows with calls or declared tools; `reasoning`, `multi_turn` likewise.
        native: rows, card, name, or empty: what says that the answers are the target's.
        swapped: the prompts seem to stand in the answer column.
        languages: kept rows by language of the first question.
        overlap: share of its sampled prompts found in the sample of another dataset.
    """

    source: str
    local: bool = False
    categories: Sequence[str] = ()
    problem: str = ""
    detail: str = ""
    notes: Sequence[str] = ()
    revision: str | None = None
    config: str | None = None
    split: str | None = None
    files: Sequence[str] = ()
    rows: int | None = None
    rows_from: str = ""
    size_bytes: int | None = None
    licence: str | None = None
    licence_flags: Sequence[str] = ()
    gated: bool = False
    modified: str | None = None
    downloads: int | None = None
    columns: Sequence[str] = ()
    readers: Mapping[str, int] = field(default_factory=dict)
    sampled: int = 0
    kept: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    unit: str = "characters"
    lengths: Sequence[Sequence[int]] = ()
    lanes: Mapping[str, int] = field(default_factory=dict)
    kept_share: float = 0.0
    turns_mean: float = 1.0
    prompt_mean: float | None = None
    answer_mean: float | None = None
    tools: float = 0.0
    reasoning: float = 0.0
    multi_turn: float = 0.0
    trajectory: bool = False
    native: str = ""
    native_detail: str = ""
    swapped: bool = False
    languages: Mapping[str, int] = field(default_factory=dict)
    overlap: Mapping[str, float] = field(default_factory=dict)

    @property
    def reader(self) -> str:
        """The reader that most of the sampled rows show; empty if none does."""
        return max(self.readers, key=lambda name: self.readers[name], default="")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**dataclasses.asdict(self), "reader": self.reader}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Facts:
        """Return what `to_json` wrote."""
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: _frozen(v) for k, v in value.items() if k in names})


def _frozen(value: Any) -> Any:  # noqa: ANN401 - JSON
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
