"""Read the safetensors container strictly and cheaply, without torch.

Guarantee: a `Container` describes a file that is whole as far as header and size can tell: every
byte after the header belongs to exactly one tensor. Price: one read of the header (some KiB).
What only the data can tell (holes, flipped bits) is `verify.py`'s work.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import orjson

from eagled.errors import ArtifactError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
LENGTH_BYTES = 8
METADATA_KEY = "__metadata__"
NUMPY_DTYPE: dict[str, str] = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I32": "<i4", "I64": "<i8", "U16": "<u2",
    "BF16": "<u2",  # numpy has no bfloat16: its bits
    "F8_E4M3": "u1",  # nor e4m3: its bits
    "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; `start` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Container:
    """The parsed header of a file whose size fits it."""

    path: Path
    file_bytes: int
    data_start: int
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    def require(self, names: Iterable[str]) -> None:
        """Raise unless every name is there.

        Raises:
            ArtifactError: listing the missing keys and those found.
        """
        missing = sorted(set(names) - set(self.tensors))
        if missing:
            found = ", ".join(sorted(self.tensors)) or "none"
            raise ArtifactError(f"{self.path}: missing tensor {', '.join(missing)}; found: {found}")


def read_container(path: Path) -> Container:
    """Return the header of `path`, checked against the file's size.

    Raises:
        ArtifactError: naming the file and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = _header_length(path, file.read(LENGTH_BYTES), size)
            header = _parse_json(path, file.read(length))
    except OSError as exc:
        raise ArtifactError(f"{path}: cannot be read: {exc.strerror}") from exc
    metadata = _metadata(path, header.pop(METADATA_KEY, {}))
    data_start = LENGTH_BYTES + length
    tensors = {name: _tensor(path, name, row, data_start) for name, row in header.items()}
    _check_cover(path, tensors, data_start, size)
    return Container(path, size, data_start, tensors, metadata)


def map_arrays(
    container: Container, names: Iterable[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Map tensors of the file read-only; bf16 comes as its u16 bits.

    The arrays keep the mapping alive; a file that is replaced by rename stays readable through it.

    Raises:
        ArtifactError: if a name is missing, a dtype is not known, or the file changed since.
    """
    wanted = list(container.tensors if names is None else names)
    container.require(wanted)
    view = _View(container)
    return {name: _array(container, name, view) for name in wanted}


class _View(mmap.mmap):
    """A mapping that can also be read from like a file; both end together."""

    fd: int

    def __new__(cls, container: Container) -> Self:
        """Map the file that `container` describes."""
        with contextlib.ExitStack() as undo:
            fd = os.open(container.path, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, fd)
            if os.fstat(fd).st_size != container.file_bytes:
                raise ArtifactError(f"{container.path}: changed while it was being opened")
            view = super().__new__(cls, fd, 0, access=mmap.ACCESS_READ)
            undo.pop_all()
        view.fd = fd
        return view

    def __init__(self, container: Container) -> None:
        """Nothing is left to do."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file with the mapping; `os` may be gone when a process ends."""
        if (fd := self.__dict__.pop("fd", None)) is not None:
            close(fd)


def prefetch(part: npt.NDArray[Any]) -> None:
    """Ask the system to read a part of a mapped array now, in one go, instead of page by page."""
    if (view := _view_of(part)) is not None:
        start = _offset(part, view)
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        view.madvise(mmap.MADV_WILLNEED, page, start - page + part.nbytes)


def copied(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of a contiguous part of a mapped array.

    It is read, not faulted in page by page: on a cold file that is twice as fast.
    """
    view = _view_of(part)
    if view is None:
        return part.copy()
    out = np.empty(part.shape, part.dtype)
    left, start = out.reshape(-1).view(np.uint8).data, _offset(part, view)
    while left:
        n = os.preadv(view.fd, [left], start)
        if not n:
            raise ArtifactError("a shard became shorter while it was open")
        left, start = left[n:], start + n
    return out


def _view_of(part: npt.NDArray[Any]) -> _View | None:
    base: Any = part
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    return mapped if isinstance(mapped, _View) and part.size else None


def _offset(part: npt.NDArray[Any], view: _View) -> int:
    """Return where in the file the part begins."""
    first: int = np.frombuffer(view, np.uint8, count=1).__array_interface__["data"][0]
    return int(part.__array_interface__["data"][0]) - first


def _array(container: Container, name: str, view: mmap.mmap) -> npt.NDArray[Any]:
    info = container.tensors[name]
    count = math.prod(info.shape)
    flat = np.frombuffer(view, NUMPY_DTYPE[info.dtype], count=count, offset=info.start)
    return flat.reshape(info.shape)


def _header_length(path: Path, prefix: bytes, size: int) -> int:
    if size == 0:
        raise ArtifactError(f"{path}: the file is empty")
    if len(prefix) < LENGTH_BYTES:
        raise ArtifactError(f"{path}: {size} bytes are too short for a header")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise ArtifactError(
            f"{path}: the header claims {length} bytes, more than {MAX_HEADER_BYTES}"
        )
    if LENGTH_BYTES + length > size:
        raise ArtifactError(
            f"{path}: cut inside the header: {LENGTH_BYTES + length} bytes needed, {size} there"
        )
    return length


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        holes = "; it holds zero bytes only" if not raw.strip(b"\0") else ""
        raise ArtifactError(f"{path}: the header is not JSON{holes}") from exc
    if not isinstance(header, dict):
        raise ArtifactError(f"{path}: the header is not a JSON object")
    return header


def _metadata(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ArtifactError(f"{path}: the header's metadata is not a map of strings")
    return value


def _tensor(path: Path, name: str, row: object, data_start: int) -> TensorInfo:
    """Return one entry of the header, its own numbers agreeing with each other."""
    match row:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]}:
            numbers = [*shape, start, end]
        case _:
            raise ArtifactError(f"{path}: tensor {name!r} lacks dtype, shape or offsets")
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ArtifactError(f"{path}: tensor {name!r} has a negative or non-integer size")
    if dtype not in NUMPY_DTYPE:
        raise ArtifactError(f"{path}: tensor {name!r} has dtype {dtype!r}, which is not known")
    want = math.prod(shape) * np.dtype(NUMPY_DTYPE[dtype]).itemsize
    if end - start != want:
        raise ArtifactError(
            f"{path}: tensor {name!r} {dtype}{shape} needs {want} bytes, its offsets span "
            f"{end - start}"
        )
    return TensorInfo(name, dtype, tuple(shape), data_start + start, data_start + end)


def _check_cover(path: Path, tensors: Mapping[str, TensorInfo], start: int, size: int) -> None:
    """Raise unless the tensors tile the rest of the file without overlap, gap or rest."""
    at = start
    for info in sorted(tensors.values(), key=lambda t: (t.start, t.end)):
        if info.start != at:
            kind = "overlaps its neighbour" if info.start < at else "leaves a gap before it"
            raise ArtifactError(f"{path}: tensor {info.name!r} {kind}")
        at = info.end
    if at > size:
        raise ArtifactError(f"{path}: cut: {at} bytes needed, {size} there")
    if at < size:
        raise ArtifactError(f"{path}: {size - at} bytes follow the last tensor")
