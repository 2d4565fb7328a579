"""Compare the shard folder with the database at start-up, from headers and sizes only.

Guarantee: no file is read beyond its header, and no file that is not `*.tmp` is changed. Price: a
few KiB of reads a file. Holes and flipped bits are found by `verify_shards`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eagled.artifacts import TMP_SUFFIX
from eagled.errors import ArtifactError
from eagled.shards.container import read_container
from eagled.shards.format import SHARD_SUFFIX


class KnownShard(Protocol):
    """What the scan needs of the database's record (`ShardRecord` and `ShardRow` have it)."""

    @property
    def file_bytes(self) -> int:
        """Size of the file when it was committed."""


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that cannot be used, and why; `known` if the database counts on it."""

    name: str
    cause: str
    known: bool


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What lies in the shard folder; names are relative to it, sorted.

    Attributes:
        good: known files that are there and whole by header and size.
        damaged: known files that are absent, torn or of another size (their members are to be
            requeued), and unknown files that are torn.
        unknown: complete files that the database does not know: finished but never committed,
            or copied there. To be deleted or set aside, never read.
        removed_tmp: leftovers of a crash that were removed.
        bytes_good: their size in all.
    """

    good: tuple[str, ...]
    damaged: tuple[BadFile, ...]
    unknown: tuple[str, ...]
    removed_tmp: tuple[str, ...]
    bytes_good: int


def scan_shards(folder: Path, known: Mapping[str, KnownShard]) -> ScanReport:
    """Remove leftovers in `folder` and say which shards can be used.

    Args:
        folder: the shard folder; a missing one is an empty one.
        known: the committed shards of the database by file name.
    """
    removed = remove_leftovers(folder)
    there = {p.name: p for p in sorted(folder.glob(f"*{SHARD_SUFFIX}"))}
    good: list[str] = []
    unknown: list[str] = []
    damaged: list[BadFile] = []
    for name in sorted({*there, *known}):
        cause = _cause(folder / name, known.get(name))
        if cause:
            damaged.append(BadFile(name, cause, name in known))
        else:
            (good if name in known else unknown).append(name)
    total = sum(known[name].file_bytes for name in good)
    return ScanReport(tuple(good), tuple(damaged), tuple(unknown), removed, total)


def remove_leftovers(folder: Path, owner: str = "") -> tuple[str, ...]:
    """Remove the `*.tmp` of a crash and return their names; of one writer if `owner` is given."""
    pattern = f"open-{owner}.*{TMP_SUFFIX}" if owner else f"*{TMP_SUFFIX}"
    removed = []
    for path in sorted(folder.glob(pattern)):
        path.unlink(missing_ok=True)
        removed.append(path.name)
    return tuple(removed)


def _cause(path: Path, record: KnownShard | None) -> str:
    """Return what is wrong with the file, or nothing."""
    if not path.exists():
        return f"{path.name}: the file is gone"
    try:
        size = read_container(path).file_bytes
    except ArtifactError as exc:
        return str(exc)
    if record is not None and size != record.file_bytes:
        return f"{path.name}: {size} bytes, {record.file_bytes} were committed"
    return ""
