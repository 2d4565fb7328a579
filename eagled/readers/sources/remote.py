"""A file on the hub as a file that can seek, read in ranges.

Guarantee: whoever reads sees the file's exact bytes or an error; a connection that breaks, or a
server that stops for a while, is waited for and then continued at the same byte. Memory is one
block. Price: one request a block.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import sleep as _sleep
from typing import TYPE_CHECKING

from eagled.errors import UnreachableError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_log = logging.getLogger(__name__)
BLOCK_BYTES = 8 << 20
WAITS_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # between tries of one block; a hub restart takes less
TIMEOUT_S = 30.0
_PARTIAL, _SERVER_FAULT, _TOO_MANY = 206, 500, 429
_NOT_FOUND = (404, 410)
_REFUSED = (401, 403, 451)


class RemoteGoneError(UnreachableError):
    """The hub no longer serves a file of the dataset, or refuses it."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a pinned revision; `size` in bytes.

    Who only looks at its beginning reads smaller blocks, waits less, and may raise in `check`,
    which is called before each try and while a block arrives.
    """

    name: str
    url: str
    size: int
    block_bytes: int = 0
    waits_s: tuple[float, ...] | None = None
    check: Callable[[], None] | None = None

    def open(self) -> io.BufferedReader:
        """Return the file as a stream that can seek."""
        return io.BufferedReader(_Ranges(self), 1 << 16)


class _Ranges(io.RawIOBase):
    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._at = 0
        self._start = 0
        self._block = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, target: WriteableBuffer) -> int:
        view = memoryview(target).cast("B")
        if self._at >= self._file.size or not len(view):
            return 0
        if not self._start <= self._at < self._start + len(self._block):
            self._fetch()
        found = self._block[self._at - self._start :][: len(view)]
        view[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _fetch(self) -> None:
        """Read the block that begins here, however often that takes."""
        end = min(self._at + (self._file.block_bytes or BLOCK_BYTES), self._file.size)
        waits_s = WAITS_S if self._file.waits_s is None else self._file.waits_s
        fault: Exception | None = None
        for wait_s in (0.0, *waits_s):
            if self._file.check is not None:
                self._file.check()
            if wait_s:
                _log.warning("hub: %s; going on in %s s file=%s", fault, wait_s, self._file.name)
                _sleep(wait_s)
            try:
                self._block, self._start = _get(self._file, self._at, end), self._at
            except RemoteGoneError:
                raise
            except Exception as exc:  # noqa: BLE001 - the HTTP library changes its exceptions between releases
                fault = exc
            else:
                return
        raise UnreachableError(
            f"the hub stopped at byte {self._at} of {self._file.size} of {self._file.name}: {fault}"
        ) from fault


def _checked(chunks: Iterator[bytes], check: Callable[[], None]) -> bytes:
    parts = []
    for chunk in chunks:
        check()
        parts.append(chunk)
    return b"".join(parts)


def _get(file: RemoteFile, start: int, end: int) -> bytes:
    """Return bytes `start` to `end`.

    Raises:
        RemoteGoneError: if trying again is no use.
        ConnectionError: if it is.
    """
    from huggingface_hub import get_session
    from huggingface_hub.utils._headers import build_hf_headers  # where type checkers see it

    headers = {**build_hf_headers(), "range": f"bytes={start}-{end - 1}"}
    with get_session().stream("GET", file.url, headers=headers, timeout=TIMEOUT_S) as reply:
        status = reply.status_code
        if status in (*_NOT_FOUND, *_REFUSED):
            what = "is gone" if status in _NOT_FOUND else "is refused"
            raise RemoteGoneError(f"{file.name} {what} (HTTP {status})")
        if status >= _SERVER_FAULT or status == _TOO_MANY:
            raise ConnectionError(f"HTTP {status}")
        whole = start == 0 and end == file.size
        if status != _PARTIAL and not whole:
            raise RemoteGoneError(f"{file.name}: HTTP {status} instead of a part of the file")
        data = reply.read() if file.check is None else _checked(reply.iter_bytes(), file.check)
    if len(data) != end - start:
        raise ConnectionError(f"{len(data)} bytes instead of {end - start}")
    return bytes(data)
