"""Finished pieces of a dataset that is being prepared, so that a killed prep goes on.

A part is one file: 8 bytes (length of the header), a JSON header, named sections. The header holds
the counts of its rows and the SHA-256 of what follows it.

Guarantee: a part is there whole, synced and with its checksum right, or not at all; parts count
from 0 without a gap, and the first that is missing or damaged ends them. Price: one sync a part
(about 16 million characters of source), and the prepared data once more on disk while it is put
together.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from eagled.artifacts import atomic_file
from eagled.prepared import dump_line
from eagled.readers.sources import SourceRow
from eagled.types import RowReason
from eagled.workers.preparation.messages import Kept, Refused

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 256 << 20
_EXAMPLES = 3


@dataclass(slots=True)
class Counts:
    """What became of some rows: `rows = kept + rejected.total()`.

    `prompts` and `answers` count lengths in tokens; memory is bounded by the longest context.
    """

    rows: int = 0
    kept: int = 0
    turns: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    prompts: Counter[int] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def keep(self, kept: Kept) -> None:
        """Count a row that is kept."""
        self.rows += 1
        self.kept += 1
        self.turns += kept.turns
        self.flags.update(kept.flags)
        self.prompts.update(kept.prompts)
        self.answers.update(kept.answers)

    def refuse(self, row: SourceRow, refused: Refused) -> bytes:
        """Count a row that is left out and return its line of rejects.jsonl."""
        self.rows += 1
        self.rejected[refused.reason] += 1
        if len(self.examples) < _EXAMPLES:
            place = f"{row.file} row {row.number}"
            self.examples.append(f"{place}: {refused.reason}: {refused.detail}")
        line = {
            "file": row.file,
            "row": row.number,
            "source_id": refused.source_id,
            "reason": refused.reason,
            "detail": refused.detail,
        }
        return dump_line(line) + b"\n"

    def add(self, other: Counts) -> None:
        """Add what became of other rows."""
        self.rows += other.rows
        self.kept += other.kept
        self.turns += other.turns
        for name in ("rejected", "flags", "prompts", "answers"):
            getattr(self, name).update(getattr(other, name))
        self.examples = [*self.examples, *other.examples][:_EXAMPLES]

    def not_chosen(self, n: int) -> None:
        """Count rows that the choice by chance left out."""
        if n:
            self.rejected[RowReason.NOT_CHOSEN.value] += n

    def to_json(self) -> dict[str, Any]:
        """Return the counts for a part's header."""
        lengths = {name: sorted(getattr(self, name).items()) for name in ("prompts", "answers")}
        return {
            "rows": self.rows, "kept": self.kept, "turns": self.turns,
            "rejected": dict(self.rejected), "flags": dict(self.flags),
            "examples": self.examples, **lengths,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        """Return what `to_json` wrote."""
        return cls(
            rows=value["rows"],
            kept=value["kept"],
            turns=value["turns"],
            rejected=Counter(value["rejected"]),
            flags=Counter(value["flags"]),
            prompts=Counter(dict(map(tuple, value["prompts"]))),
            answers=Counter(dict(map(tuple, value["answers"]))),
            examples=list(value["examples"]),
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: its place, `last` if nothing follows, its sections by name."""

    path: Path
    number: int
    last: bool
    index: Mapping[str, tuple[int, int]]

    def section(self, name: str) -> bytes:
        """Return the bytes of a section."""
        start, size = self.index[name]
        return self.piece(start, size)

    def piece(self, start: int, size: int) -> bytes:
        """Return some bytes of the file."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)


Seen = Callable[[Part, Counts, Mapping[str, Any]], None]  # a part, its counts, its extras


class Parts:
    """The parts of one kind in a building folder, in order.

    `seen` is told each part that is there already; counts and extras are not kept, because those
    of the thousand parts of a long source would take more memory than all else.
    """

    def __init__(self, folder: Path, kind: str, seen: Seen) -> None:
        self._folder = folder
        self._kind = kind
        self.done: list[Part] = list(self._read_all(seen))

    @property
    def finished(self) -> bool:
        """Whether the last part is there."""
        return bool(self.done) and self.done[-1].last

    def write(
        self,
        counts: Counts,
        sections: Mapping[str, bytes],
        *,
        last: bool,
        extra: Mapping[str, Any] | None = None,
    ) -> Part:
        """Write the next part, durably.

        Raises:
            DiskError: if the disk is full or failing; the parts before it stay.
        """
        digest = hashlib.sha256()
        for data in sections.values():
            digest.update(data)
        header = {
            "counts": counts.to_json(),
            "last": last,
            "sections": {name: len(data) for name, data in sections.items()},
            "sha256": digest.hexdigest(),
            "extra": dict(extra or {}),
        }
        head = json.dumps(header, separators=(",", ":")).encode()
        path = self._path(len(self.done))
        with atomic_file(path) as file:
            file.write(_LENGTH.pack(len(head)))
            file.write(head)
            for data in sections.values():
                file.write(data)
        self.done.append(_part_of(path, len(self.done), header, _LENGTH.size + len(head)))
        return self.done[-1]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._kind}-{number:06}.part"

    def _read_all(self, seen: Seen) -> Iterator[Part]:
        """Yield the whole parts; what lies behind the first bad one is removed."""
        number = 0
        while (whole := _read_part(self._path(number), number)) is not None:
            part, counts, extra = whole
            number += 1
            seen(part, counts, extra)
            yield part
            if part.last:
                break
        for path in self._folder.glob(f"{self._kind}-*.part*"):
            found = re.fullmatch(rf"{self._kind}-(\d+)\.part", path.name)
            if found is None or int(found[1]) >= number:
                path.unlink()


def _read_part(path: Path, number: int) -> tuple[Part, Counts, Mapping[str, Any]] | None:
    """Return a part with its counts and extras, None if it is missing or not what was written."""
    try:
        with path.open("rb") as file:
            (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if size > _MAX_HEADER_BYTES:
                return None
            header = orjson.loads(file.read(size))
            digest = hashlib.sha256()
            while data := file.read(1 << 20):
                digest.update(data)
        if digest.hexdigest() != header["sha256"]:
            return None
        part = _part_of(path, number, header, _LENGTH.size + size)
        return part, Counts.from_json(header["counts"]), dict(header["extra"])
    except (OSError, struct.error, ValueError, KeyError, TypeError):
        return None


def _part_of(path: Path, number: int, header: Mapping[str, Any], start: int) -> Part:
    index = {}
    for name, size in header["sections"].items():
        index[name] = (start, size)
        start += size
    return Part(path, number, header["last"], index)
