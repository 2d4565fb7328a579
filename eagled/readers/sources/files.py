"""Open what `datasets.source` names: a file, a folder, or a hub id."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO, cast

from eagled.artifacts import sha256_file
from eagled.config import DatasetConfig
from eagled.errors import ConfigError, DiskError, UnreachableError
from eagled.readers.sources import hub
from eagled.readers.sources.array import is_spread, read_array, read_objects
from eagled.readers.sources.base import SourceRow
from eagled.readers.sources.lines import read_lines
from eagled.readers.sources.packed import BUFFER_BYTES, DAMAGED, unpacked
from eagled.readers.sources.parquet import read_parquet
from eagled.readers.sources.remote import RemoteFile
from eagled.types import RowReason

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_PARQUET = (".parquet",)
_JSON = (".jsonl", ".ndjson", ".json")
_PACKED = ("", ".gz", ".zst")
SUFFIXES = (*_PARQUET, *(kind + pack for kind in _JSON for pack in _PACKED))
_HEAD_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source; without files, `datasets` reads it.

    `identity` names its exact content: file names with SHA-256, or the hub's commit.
    """

    dataset: DatasetConfig
    files: tuple[tuple[str, Path | RemoteFile], ...]
    identity: Mapping[str, str] = field(default_factory=dict)

    def rows(self, skip: int = 0) -> Iterator[SourceRow]:
        """Yield every row behind the first `skip`, file by file in their order.

        Skipping is cheap where the file allows it: Parquet row groups are not read, JSON lines are
        not parsed.

        Raises:
            UnreachableError: if the hub stops answering; the message says after how many rows.
            ArtifactError: if a file cannot be read.
        """
        done = skip
        try:
            for row in self._rows(skip):
                yield row
                done += 1
        except UnreachableError as exc:
            raise hub.stopped(self.dataset, exc, done) from exc

    def _rows(self, skip: int) -> Iterator[SourceRow]:
        if not self.files:
            yield from hub.read_hub(self.dataset, self.identity["revision"], skip)
        left = skip
        for name, file in self.files:
            rows = yield from _read_file(name, file, left)
            left = max(0, left - rows)


def open_source(dataset: DatasetConfig, *, identify: bool = True) -> Source:
    """Return the source of a dataset, its content already identified (unless told not to).

    Raises:
        ConfigError: if there is nothing to read.
        UnreachableError: if it is on the hub and the hub does not answer.
    """
    path = Path(dataset.source)
    if not path.exists() and _HUB_ID.match(dataset.source):
        return _open_hub(dataset)
    files = _files_of(dataset, path)
    try:
        identity = {name: sha256_file(file) for name, file in files} if identify else {}
    except OSError as exc:
        raise DiskError(f"dataset {dataset.name!r}: {exc}; check its files and rights") from exc
    return Source(dataset, files, identity)


def _open_hub(dataset: DatasetConfig) -> Source:
    revision = hub.resolve_revision(dataset)
    wanted = {"hub": dataset.source, "config": dataset.config or "", "split": dataset.split}
    identity = {**wanted, "revision": revision}
    if dataset.files:
        identity["files"] = " ".join(dataset.files)
    files = hub.hub_files(dataset, revision)
    if not all(file.name.endswith(SUFFIXES) for file in files):
        if dataset.files:
            raise ConfigError(_unreadable(dataset))
        files = ()
    return Source(dataset, tuple((file.name, file) for file in files), identity)


def _files_of(dataset: DatasetConfig, path: Path) -> tuple[tuple[str, Path], ...]:
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and _is_data(p, path))
    else:
        raise ConfigError(f"dataset {dataset.name!r}: source {dataset.source!r} does not exist")
    root = path if path.is_dir() else path.parent
    named = [(file.relative_to(root).as_posix(), file) for file in found]
    if dataset.files:
        named = [item for item in named if any(fnmatch(item[0], p) for p in dataset.files)]
    if not named or not all(name.endswith(SUFFIXES) for name, _ in named):
        raise ConfigError(_unreadable(dataset))
    return tuple(named)


def _unreadable(dataset: DatasetConfig) -> str:
    among = f" matching {', '.join(dataset.files)}" if dataset.files else ""
    return (
        f"dataset {dataset.name!r}: {dataset.source!r} has no file{among} that can be read; "
        f"accepted: {', '.join(SUFFIXES)}"
    )


def _is_data(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and file.name.endswith(SUFFIXES)


def _read_file(name: str, file: Path | RemoteFile, skip: int) -> Generator[SourceRow, None, int]:
    """Yield a file's rows behind the first `skip`; return how many there are in all."""
    if name.endswith(_PARQUET):
        if isinstance(file, Path):
            return (yield from read_parquet(file, name, skip))
        with file.open() as stream:
            return (yield from read_parquet(stream, name, skip))
    with file.open() if isinstance(file, RemoteFile) else file.open("rb", BUFFER_BYTES) as stream:
        if name.endswith(_JSON):
            return (yield from _read_json(stream, name, skip))
        return (yield from _read_packed(stream, name, skip))


def _read_packed(stream: BinaryIO, name: str, skip: int) -> Generator[SourceRow, None, int]:
    """Yield the rows of a compressed file; where it is damaged, that is one faulty row."""
    rows, last = 0, -1
    try:
        with unpacked(stream, name) as plain:
            for row in _read_json(plain, name, 0):
                rows, last = rows + 1, row.number
                if rows > skip:
                    yield row
    except DAMAGED as exc:
        rows += 1
        if rows > skip:
            detail = f"the compressed file is damaged or ends early: {exc}"
            yield SourceRow(name, last + 1, None, RowReason.BAD_ENCODING, detail)
    return rows


def _read_json(stream: BinaryIO, name: str, skip: int) -> Generator[SourceRow, None, int]:
    """Yield the rows of an array, of JSON lines, or of objects over several lines each."""
    head = cast("io.BufferedReader", stream).peek(_HEAD_BYTES).removeprefix(_BOM)
    if is_spread(head) and not head.lstrip().startswith(b"["):
        return (yield from read_objects(stream, name, skip))
    if head.lstrip().startswith(b"["):
        return (yield from read_array(stream, name, skip))
    return (yield from read_lines(stream, name, skip))
