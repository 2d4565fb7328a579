"""What the prep process and its tokenising processes tell each other.

Every record is frozen and pickles; a chunk is a run of consecutive rows of the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagled.config import Config, DatasetConfig
from eagled.readers.sources import SourceRow


@dataclass(frozen=True, slots=True)
class Job:
    """One dataset to work on."""

    config: Config
    dataset: DatasetConfig


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What the tokenising side knows of the target, for the inputs and the manifest."""

    tokenizer_hash: str
    template_hash: str
    template: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of the source; `weight` is about their characters of text."""

    number: int
    rows: tuple[SourceRow, ...]
    weight: int

    def __str__(self) -> str:
        first, last = self.rows[0], self.rows[-1]
        return f"rows {first.number} of {first.file} to {last.number} of {last.file}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is left out."""

    reason: str
    detail: str
    source_id: str | None


@dataclass(frozen=True, slots=True)
class Passed:
    """A row that passed every rule that looks at it alone.

    `identity` is the question's 16 bytes; `signature` its MinHash, where one was wanted and made;
    `task` the 16 bytes of an agent run's task, where runs of one are limited.
    """

    identity: bytes
    signature: bytes | None
    source_id: str | None
    task: bytes | None = None


@dataclass(frozen=True, slots=True)
class Screened:
    """What became of each row of a chunk, in order."""

    number: int
    rows: tuple[Passed | Refused, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison with other rows says: rows to leave out, flags to add, by place."""

    refused: Mapping[int, Refused] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """A row with a line in the frame: turns, lengths in tokens, flags."""

    turns: int
    prompts: tuple[int, ...]
    answers: tuple[int, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The end of a chunk: every row kept or refused, and the kept lines as one zstd frame."""

    number: int
    rows: tuple[Kept | Refused, ...]
    frame: bytes
