"""Open what `datasets.source` names: a file, a folder, or a hub id."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from eagled.artifacts import sha256_file
from eagled.config import DatasetConfig
from eagled.errors import ConfigError, DiskError
from eagled.readers.sources import hub
from eagled.readers.sources.array import read_array
from eagled.readers.sources.base import SourceRow
from eagled.readers.sources.lines import read_lines
from eagled.readers.sources.parquet import read_parquet
from eagled.types import RowReason

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_PARQUET = (".parquet",)
_JSON = (".jsonl", ".ndjson", ".json")
_PACKED = ("", ".gz", ".zst")
SUFFIXES = (*_PARQUET, *(kind + pack for kind in _JSON for pack in _PACKED))
_HEAD_BYTES = 4096
_BUFFER_BYTES = 1 << 20
_PACKED_BYTES = 1 << 16  # one step of decompression; bounds what a hostile file can expand to


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source.

    `identity` names its exact content: file names with SHA-256, or the hub's commit.
    """

    dataset: DatasetConfig
    files: tuple[tuple[str, Path], ...]
    identity: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[SourceRow]:
        """Yield every row, file by file in the order of their names."""
        if not self.files:
            yield from hub.read_hub(self.dataset, self.identity["revision"])
        for name, path in self.files:
            yield from _read_file(name, path)


def open_source(dataset: DatasetConfig, *, identify: bool = True) -> Source:
    """Return the source of a dataset, its content already identified (unless told not to).

    Raises:
        ConfigError: if there is nothing to read.
        UnreachableError: if it is on the hub and the hub does not answer.
    """
    path = Path(dataset.source)
    if not path.exists() and _HUB_ID.match(dataset.source):
        wanted = {"hub": dataset.source, "config": dataset.config or "", "split": dataset.split}
        return Source(dataset, (), {**wanted, "revision": hub.resolve_revision(dataset)})
    files = _files_of(dataset, path)
    try:
        identity = {name: sha256_file(file) for name, file in files} if identify else {}
    except OSError as exc:
        raise DiskError(f"dataset {dataset.name!r}: {exc}; check its files and rights") from exc
    return Source(dataset, files, identity)


def _files_of(dataset: DatasetConfig, path: Path) -> tuple[tuple[str, Path], ...]:
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and _is_data(p, path))
    else:
        raise ConfigError(f"dataset {dataset.name!r}: source {dataset.source!r} does not exist")
    if not found or not all(file.name.endswith(SUFFIXES) for file in found):
        raise ConfigError(
            f"dataset {dataset.name!r}: {dataset.source!r} has no file that can be read; "
            f"accepted: {', '.join(SUFFIXES)}"
        )
    root = path if path.is_dir() else path.parent
    return tuple((file.relative_to(root).as_posix(), file) for file in found)


def _is_data(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and file.name.endswith(SUFFIXES)


def _read_file(name: str, path: Path) -> Iterator[SourceRow]:
    if path.name.endswith(_PARQUET):
        yield from read_parquet(path, name)
        return
    last = -1
    try:
        with _unpacked(path) as stream:
            for row in _read_json(stream, name):
                last = row.number
                yield row
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as exc:
        detail = f"the compressed file is damaged or ends early: {exc}"
        yield SourceRow(name, last + 1, None, RowReason.BAD_ENCODING, detail)


def _read_json(stream: BinaryIO, name: str) -> Iterator[SourceRow]:
    """Yield the rows of an array or of JSON lines, told apart by the first character."""
    head = cast("io.BufferedReader", stream).peek(_HEAD_BYTES)
    is_array = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    yield from read_array(stream, name) if is_array else read_lines(stream, name)


class _ZstdFrames(io.RawIOBase):
    """Plain bytes of a zstd file; `EOFError` where it ends inside a frame.

    (The library's own stream reader takes a cut file for a whole one.)
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: WriteableBuffer) -> int:
        view = memoryview(target).cast("B")
        while not self._plain:
            if not self._fill():
                return 0
        n = min(len(view), len(self._plain))
        view[:n], self._plain = self._plain[:n], self._plain[n:]
        return n

    def _fill(self) -> bool:
        self._packed = self._packed or self._file.read(_PACKED_BYTES)
        if not self._packed:
            if self._frame is not None:
                raise EOFError("the file ends inside a zstd frame")
            return False
        self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
        self._plain = memoryview(self._frame.decompress(self._packed))
        self._packed = b""
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
        return True


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file that may be gzip or zstd as a peekable stream of its plain bytes."""
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        if path.suffix == ".gz":
            with gzip.open(file, "rb") as plain:
                yield cast("BinaryIO", io.BufferedReader(plain, _BUFFER_BYTES))
        elif path.suffix == ".zst":
            yield cast("BinaryIO", io.BufferedReader(_ZstdFrames(file), _BUFFER_BYTES))
        else:
            yield file
