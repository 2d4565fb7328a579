"""Plain bytes of a file that may be gzip or zstd.

Guarantee: a file that ends inside its packing raises one of `DAMAGED` behind what could be read;
memory is bounded whatever a hostile file expands to.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 1 << 20
_PACKED_BYTES = 1 << 10  # one step of decompression; gives 32 MB at the very most
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


@contextmanager
def unpacked(file: BinaryIO, name: str) -> Iterator[io.BufferedReader]:
    """Give the plain bytes of an open file, which stays the caller's, by its name's ending."""
    if name.endswith(".gz"):
        with gzip.open(file, "rb") as plain:
            yield io.BufferedReader(cast("io.RawIOBase", plain), BUFFER_BYTES)
    elif name.endswith(".zst"):
        yield io.BufferedReader(_ZstdFrames(file), BUFFER_BYTES)
    else:
        yield cast("io.BufferedReader", file)


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
