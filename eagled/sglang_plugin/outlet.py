"""The scheduler's end of the writer: the pinned ring, the process, and what happens if it dies.

Guarantee: a send never raises; a writer that died is replaced (a few times), and everything that
it had in work belongs to an older `generation`. Waiting for room is bounded and pointless waits
are not begun. Price: pinned host memory of `capacity` bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from eagled.sglang_plugin import wire
from eagled.sglang_plugin.ring import ALIGN, Allocator, Region, Ring
from eagled.sglang_plugin.settings import CaptureSettings

_log = logging.getLogger(__name__)
_RING_BATCHES = 6  # of the largest batch: two are in flight, the rest lets the disk take a breath
_RING_MIN_BYTES = 64 << 20
_POLL_S = 0.0005
_RESTARTS_MAX = 3


def ring_capacity(settings: CaptureSettings, batch_bytes: int) -> int:
    """Return the ring's size for batches of up to `batch_bytes`."""
    wanted = settings.ring_bytes or max(_RING_BATCHES * batch_bytes, _RING_MIN_BYTES)
    return -(-wanted // ALIGN) * ALIGN


class Outlet:
    """The way of rows and messages to the writer process.

    Attributes:
        generation: of the writer process; what an older one had in work is lost.
    """

    def __init__(self, settings: CaptureSettings, capacity: int) -> None:
        self._settings = settings
        self._capacity = capacity
        self._sent_end = 0
        self._stalled_at = -1
        self.generation = 0
        self._start()

    def _start(self) -> None:
        self.ring = Ring.create(self._capacity)
        self._allocator = Allocator(self.ring)
        self.memory = torch.frombuffer(self.ring.data, dtype=torch.uint8)  # [capacity]
        _pin(self.memory)
        self._sock, other = socket.socketpair()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._process = subprocess.Popen(
            self._command(self.ring.fd, other.fileno()),
            pass_fds=(self.ring.fd, other.fileno()),
            env=os.environ | {"PYTHONPATH": _python_path()},
        )
        other.close()
        self._sent_end, self._stalled_at = 0, -1
        _log.info("capture writer pid=%d ring_mib=%d", self._process.pid, self._capacity >> 20)

    def _command(self, ring_fd: int, socket_fd: int) -> list[str]:
        settings = self._settings
        numbers = {
            "--ring-fd": ring_fd,
            "--socket-fd": socket_fd,
            "--capacity": self._capacity,
            "--threads": settings.writers,
            "--reserve-bytes": settings.reserve_bytes,
        }
        return [
            *(sys.executable, "-m", "eagled.sglang_plugin.writer"),
            *(text for name, value in numbers.items() for text in (name, str(value))),
            *("--spool", str(settings.spool)),
            *(["--sync"] if settings.fsync == "file" else []),
        ]

    def send(self, *message: object) -> None:
        """Send a message; if the writer is gone, replace it and lose the message."""
        if self.generation > _RESTARTS_MAX:
            return
        try:
            wire.send(self._sock, *message)
        except OSError:
            self._replace()

    def send_rows(self, region: Region, parts: list[tuple[int, int, int]]) -> None:
        """Hand a region on; the writer gives it back when the parts are written."""
        self._sent_end = region.end
        self.send("data", region.end, parts)

    def reserve(self, nbytes: int) -> Region | None:
        """Return a region, after a wait if the ring is full; None if that did not help."""
        region = self._allocator.allocate(nbytes)
        if region is None and self._stalled_at != self.ring.freed:
            region = self._wait_for_room(nbytes)
        self._stalled_at = -1 if region else self.ring.freed
        return region

    def _wait_for_room(self, nbytes: int) -> Region | None:
        deadline = time.monotonic() + self._settings.stall_s
        while time.monotonic() < deadline and self.ring.freed < self._sent_end:
            if self._process.poll() is not None:
                self._replace()
            if region := self._allocator.allocate(nbytes):
                return region
            time.sleep(_POLL_S)
        return self._allocator.allocate(nbytes)

    def _replace(self) -> None:
        self.generation += 1
        code = self._process.poll()
        _log.error("capture writer died code=%s restarts=%d", code, self.generation)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a copy may still run into the old ring
        _unpin(self.memory)
        del self.memory
        self.ring.close()
        self._sock.close()
        if self.generation <= _RESTARTS_MAX:
            self._start()

    def close(self) -> None:
        """End the writer after all that was sent; for tests, a server just exits."""
        with contextlib.suppress(OSError):
            self._sock.close()
        self._process.wait()


def _python_path() -> str:
    """Return a path on which the writer finds this package, wherever it was imported from."""
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH", ""))))


def _pin(memory: torch.Tensor) -> None:
    """Make the ring a direct target of GPU copies."""
    if not torch.cuda.is_available():
        return
    code = _cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(code) != 0:
        _log.warning(
            "capture ring is not pinned (CUDA error %s): copies will hold up the scheduler; "
            "raise the limit of locked memory or lower EAGLED_CAPTURE_RING_MB",
            int(code),
        )


def _unpin(memory: torch.Tensor) -> None:
    if torch.cuda.is_available():
        _cudart().cudaHostUnregister(memory.data_ptr())


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call] # as torch ships it
