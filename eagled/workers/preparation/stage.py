"""What both passes of a preparation share: the dataset, the crew, the source, the progress."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagled.dedup import SIGNATURE_BYTES
from eagled.readers.sources import Source, SourceRow
from eagled.workers.preparation.crew import Crew
from eagled.workers.preparation.ledger import Ledger, Noted, pack_keys, unpack_keys
from eagled.workers.preparation.messages import Job
from eagled.workers.preparation.parts import Counts, Part
from eagled.workers.preparation.progress import Teller

PART_ROWS = 8192
PART_CHARS = 1 << 24  # some ten seconds of work; a killed prep does the open part again
_KEPT, _SIGNED, _RUN = 1, 2, 4  # bits of a question's mark in a part


@dataclass(frozen=True, slots=True)
class Stage:
    """One dataset on its way into `folder`, the one that is being built."""

    job: Job
    crew: Crew
    source: Source
    teller: Teller
    folder: Path

    def rows(self, *, skip: int) -> Iterator[SourceRow]:
        """Yield the source's rows behind the first `skip`, up to `read_rows`."""
        most = self.job.dataset.read_rows
        rows = self.source.rows(skip)
        return itertools.islice(rows, max(0, most - skip)) if most else rows


@dataclass(slots=True)
class Questions:
    """The questions of a part: keys, marks, signatures and runs, in the order of the rows."""

    keys: list[int] = field(default_factory=list)
    marks: bytearray = field(default_factory=bytearray)
    signatures: list[bytes] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    def add(self, noted: Noted, *, kept: bool) -> None:
        """Take in one question; `kept`: its row is in the result."""
        self.keys.append(noted.key)
        mark = (_KEPT if kept else 0) | (_SIGNED if noted.signature else 0)
        self.marks.append(mark | (0 if noted.run is None else _RUN))
        if noted.signature:
            self.signatures.append(noted.signature)
        if noted.run is not None:
            self.runs.append(noted.run)

    def sections(self) -> dict[str, bytes]:
        """Return the sections of a part."""
        return {
            "keys": pack_keys(self.keys),
            "marks": bytes(self.marks),
            "signatures": b"".join(self.signatures),
            "runs": pack_keys(self.runs),
        }

    @classmethod
    def of(cls, part: Part) -> Questions:
        """Return the questions of a part."""
        data = part.section("signatures")
        signatures = [
            data[start : start + SIGNATURE_BYTES] for start in range(0, len(data), SIGNATURE_BYTES)
        ]
        return cls(
            list(unpack_keys(part.section("keys"))),
            bytearray(part.section("marks")),
            signatures,
            list(unpack_keys(part.section("runs"))) if "runs" in part.index else [],
        )

    def each(self) -> Iterator[tuple[Noted, bool]]:
        """Yield each question, and whether its row was kept."""
        signatures, runs = iter(self.signatures), iter(self.runs)
        for key, mark in zip(self.keys, self.marks, strict=True):
            signature = next(signatures) if mark & _SIGNED else None
            run = next(runs) if mark & _RUN else None
            yield Noted(key, signature, run), bool(mark & _KEPT)


def remember(ledger: Ledger, part: Part) -> None:
    """Give a ledger the questions of a part that an earlier run finished."""
    for noted, _ in Questions.of(part).each():
        ledger.remember(noted)


@dataclass(slots=True)
class Size:
    """How much an open part holds."""

    rows: int = 0
    chars: int = 0

    def add(self, rows: int, chars: int) -> None:
        """Count a chunk."""
        self.rows += rows
        self.chars += chars

    @property
    def full(self) -> bool:
        """Whether the part should be closed."""
        return self.rows >= PART_ROWS or self.chars >= PART_CHARS


def total_of(*counts: Counts) -> Counts:
    """Return counts added up."""
    total = Counts()
    for item in counts:
        total.add(item)
    return total
