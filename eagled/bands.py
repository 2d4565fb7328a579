"""A table on disk from 32-bit marks to row numbers, for indexes that outgrow memory.

Guarantee: it takes a few megabytes of memory however many rows it holds; the rows of a mark come
back in the order in which they were put in; the same calls give the same rows. The file has no
name: its space is free again when the process ends, however it ends.
Price: one small read to look a mark up and one small write to add a row, both mostly in the
system's page cache; 12 to 25 bytes of disk a row, and half as much again while the table doubles.

Layout: little-endian u64 slots, `mark << 32 | row + 1`, 0 is free. A mark's search begins at its
top bits and goes to the right until a free slot; the file ends where the last row ends. Because
the top bits decide, a larger table has its rows in nearly the same order, so doubling is one pass
over both files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eagled.artifacts import disk_error

if TYPE_CHECKING:
    import numpy.typing as npt

SLOT_BYTES = 8
FULL = 0.65  # share of used slots at which the table doubles
_FIRST_BITS = 16
_MARK_BITS = 32
_LOOK_SLOTS = 16  # read at once; a search mostly ends within five
_BLOCK_BYTES = 1 << 20  # of the old table, while it doubles
_LOOK = struct.Struct(f"<{_LOOK_SLOTS}Q")
_SLOT = struct.Struct("<Q")
_ROW = 0xFFFFFFFF


class BandTable:
    """Rows by mark; `scratch` is where the file is made, and nothing is there afterwards.

    Raises (from every method):
        DiskError: if the disk is full or failing.
    """

    def __init__(self, scratch: Path) -> None:
        self._path = scratch
        self._bits = _FIRST_BITS
        self._file = nameless_file(scratch)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def size(self) -> int:
        """Places that marks begin at; a larger one than before makes known places void."""
        return 1 << self._bits

    @property
    def disk_bytes(self) -> int:
        """Size of the file; what was never written in it takes no room."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Give the space back."""
        os.close(self._file)

    def find(self, mark: int) -> tuple[int, list[int]]:
        """Return (the free place behind a mark's rows, its rows)."""
        rows: list[int] = []
        place = mark >> (_MARK_BITS - self._bits)
        while True:
            data = os.pread(self._file, _LOOK.size, place * SLOT_BYTES)
            for slot in _LOOK.unpack(data.ljust(_LOOK.size, b"\0")):
                if not slot:
                    return place, rows
                if slot >> _MARK_BITS == mark:
                    rows.append((slot & _ROW) - 1)
                place += 1

    def put(self, place: int, mark: int, row: int) -> None:
        """Put a row into the free place that `find` gave for its mark."""
        data = _SLOT.pack(mark << _MARK_BITS | row + 1)
        write_at(self._file, data, place * SLOT_BYTES, self._path)
        self._used += 1
        if self._used > FULL * self.size:
            self._grow()

    def _grow(self) -> None:
        """Copy all rows into a table of twice the size."""
        larger = nameless_file(self._path)
        try:
            self._copy(larger)
        except BaseException:
            os.close(larger)
            raise
        os.close(self._file)
        self._file, self._bits = larger, self._bits + 1

    def _copy(self, larger: int) -> None:
        free = 0  # the first place that is surely free
        for rows in self._in_order():
            first = rows >> np.uint64(2 * _MARK_BITS - self._bits - 1)
            order = np.arange(len(rows))
            start = np.maximum(first.astype(np.int64) - order, free)
            places = np.maximum.accumulate(start) + order
            free = int(places[-1]) + 1
            slots = np.zeros(free - places[0], dtype="<u8")
            slots[places - places[0]] = rows
            write_at(larger, slots.tobytes(), int(places[0]) * SLOT_BYTES, self._path)

    def _in_order(self) -> Iterator[npt.NDArray[np.uint64]]:
        """Yield the used slots, by mark and then by row.

        A row never stands to the left of its first place, nor behind a free slot on its right: so
        what stands between two free slots has to be sorted, and nothing else.
        """
        rest, at = b"", 0
        while data := os.pread(self._file, _BLOCK_BYTES, at):
            at += len(data)
            slots = np.frombuffer(rest + data, dtype="<u8")
            free = np.flatnonzero(slots == 0)
            end = int(free[-1]) if len(free) else 0
            rest = slots[end:].tobytes()
            yield from _used(slots[:end])
        yield from _used(np.frombuffer(rest, dtype="<u8"))


def _used(slots: npt.NDArray[np.uint64]) -> Iterator[npt.NDArray[np.uint64]]:
    rows = np.sort(slots[slots != 0])
    if len(rows):
        yield rows


def nameless_file(scratch: Path) -> int:
    """Return a new empty file that goes when it is closed.

    Raises:
        DiskError: if it cannot be made.
    """
    try:
        file = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        scratch.unlink()
    except OSError as exc:
        raise disk_error(exc, scratch) or exc from exc
    return file


def write_at(file: int, data: bytes, at: int, path: Path) -> None:
    """Write all of `data` at a place of an open file; `path` is what an error names.

    Raises:
        DiskError: if the disk is full or failing.
    """
    rest = memoryview(data)
    try:
        while rest:
            n = os.pwrite(file, rest, at)
            rest, at = rest[n:], at + n
    except OSError as exc:
        raise disk_error(exc, path) or exc from exc
