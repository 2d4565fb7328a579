"""The stamp file: a second witness of how far the database got.

Guarantee: at synchronous=FULL the stamp on disk is never ahead of the database, because it is
written only after COMMIT returned; so a database behind its stamp was put back, cut or lied to by
its disk. Price: one 30 us `pwrite` a commit, one fdatasync a second. Not seen by it: an older
database with a newer -wal left beside it, which `quick_check` finds.

File: two slots of 512 bytes, used in turn, so that a torn write leaves the other one.
"""

from __future__ import annotations

import logging
import os
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SLOT_BYTES = 512
_SLOTS = 2
_MAGIC = b"EGLSTAMP"
_VERSION = 1
_BODY = struct.Struct("<8sI16sQQq")  # magic, version, lineage, seq, epoch, wall ms
_CRC = struct.Struct("<I")
SYNC_INTERVAL_S = 1.0
_MODE = 0o600


@dataclass(frozen=True, slots=True)
class StampState:
    """What a slot says: which history, how far, in which start, when (UTC ms)."""

    lineage: bytes
    seq: int
    epoch: int
    at_ms: int


def pack_slot(state: StampState) -> bytes:
    """Return the 512 bytes of one slot."""
    body = _BODY.pack(_MAGIC, _VERSION, state.lineage, state.seq, state.epoch, state.at_ms)
    return (body + _CRC.pack(zlib.crc32(body))).ljust(SLOT_BYTES, b"\0")


def unpack_slot(raw: bytes) -> StampState | None:
    """Return what a slot holds, or None if it is not valid."""
    if len(raw) < _BODY.size + _CRC.size:
        return None
    body = raw[: _BODY.size]
    (crc,) = _CRC.unpack_from(raw, _BODY.size)
    magic, version, lineage, seq, epoch, at_ms = _BODY.unpack(body)
    if magic != _MAGIC or version != _VERSION or crc != zlib.crc32(body):
        return None
    return StampState(lineage, seq, epoch, at_ms)


def read_stamp(path: Path) -> StampState | None:
    """Return the highest valid slot; None if the file is absent or holds none."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    slots = (unpack_slot(raw[i * SLOT_BYTES : (i + 1) * SLOT_BYTES]) for i in range(_SLOTS))
    return max((s for s in slots if s is not None), key=lambda s: s.seq, default=None)


class Stamp:
    """The open stamp file of a running store.

    A write error raises nothing, since the commit it follows is durable: it sets `error`.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._slot = 0
        self._synced_at = time.monotonic()
        self.dirty = False
        self.error: str | None = None

    def write(self, state: StampState) -> None:
        """Record a commit that has returned; synced if the last sync is a second old."""
        try:
            os.pwrite(self._fd, pack_slot(state), self._slot * SLOT_BYTES)
        except OSError as exc:
            self._trouble(exc)
            return
        self._slot = 1 - self._slot
        self.dirty = True
        if time.monotonic() - self._synced_at >= SYNC_INTERVAL_S:
            self.sync()

    def write_both(self, state: StampState) -> None:
        """Overwrite both slots and sync: after a new lineage the old, higher seq must go."""
        self.write(state)
        self.write(state)
        self.sync()

    def sync(self) -> None:
        """Make the last write durable."""
        if not self.dirty:
            return
        try:
            os.fdatasync(self._fd)
        except OSError as exc:
            self._trouble(exc)
            return
        self.dirty = False
        self.error = None
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync and close."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    def _trouble(self, exc: OSError) -> None:
        if self.error is None:
            log.warning("the stamp file cannot be written: %s", exc)
        self.error = f"the stamp file cannot be written: {exc}"
