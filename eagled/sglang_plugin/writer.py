"""The writer process: takes rows out of the ring and makes files of them.

Guarantee: a file has its final name only when every row is in it, its header is written and, with
`fsync=file`, it is on the disk; a request without all of its rows leaves a note that says why and
no file. A part of the ring is given back when its bytes are written. When the scheduler is gone,
files in work are removed. Price: a checksum and one copy into the page cache per byte, on threads
of this process, which shares no interpreter lock with SGLang. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from eagled.sglang_plugin import wire
from eagled.sglang_plugin.ring import Releaser, Ring
from eagled.sglang_plugin.spoolfile import (
    DATA_START,
    TEMP_SUFFIX,
    FileFacts,
    failed_path,
    final_path,
    header,
)

_log = logging.getLogger("eagled.capture.writer")
_CLOSING_MAX = 64  # files waiting for their fsync; more, and the ring fills, as it should
_BF16_BYTES = 2
_WRITE_BACK_BYTES = 2 << 20  # 200 requests leave at most 400 MB to their fsyncs
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE


class CaptureFile:
    """One request's file while it grows; used by one thread at a time.

    With `sync` the disk is set to work while rows still come, so that the fsync at the end finds
    little left: many requests that end together would else wait for all of their bytes at once.
    """

    def __init__(self, spool: Path, rid: str, reserve_bytes: int, *, sync: bool = False) -> None:
        self._sync = sync
        self._started = 0  # bytes whose way to the disk has begun
        self.spool = spool
        self.rid = rid
        self.nbytes = 0
        self.crc = 0
        self.error = ""
        self._temp = spool / f"{rid}.{os.getpid()}{TEMP_SUFFIX}"
        self._fd = -1
        with self._noting():
            check_room(spool, reserve_bytes)
            self._fd = os.open(self._temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)

    def write(self, rows: memoryview) -> None:
        """Append rows; does nothing once the file has failed."""
        if self.error:
            return
        with self._noting():
            write_all(self._fd, rows, DATA_START + self.nbytes)
            self.crc = zlib.crc32(rows, self.crc)
            self.nbytes += len(rows)
            if self._sync and self.nbytes - self._started >= _WRITE_BACK_BYTES:
                start_write_back(self._fd, DATA_START + self._started, self.nbytes - self._started)
                self._started = self.nbytes

    def reset(self) -> None:
        """Forget the rows; they are computed again from the first one on."""
        self.nbytes = self.crc = self._started = 0

    def complete(self, facts: FileFacts, ids: bytes) -> None:
        """Give the file its final name, or leave a note why it has none."""
        row_bytes = facts.width * _BF16_BYTES
        rows = self.nbytes / row_bytes
        if not self.error and rows != facts.rows_expected:
            self.error = _count_message(rows, facts)
        if not self.error:
            with self._noting():
                write_all(self._fd, memoryview(ids), DATA_START + self.nbytes)
                os.ftruncate(self._fd, DATA_START + self.nbytes + len(ids))
                head = header(facts, int(rows), ids, self.crc)
                write_all(self._fd, memoryview(head), 0)
                if self._sync:
                    os.fsync(self._fd)
                self._temp.rename(final_path(self.spool, self.rid))
        self.drop(self.error)

    def drop(self, reason: str) -> None:
        """Close; with a reason, remove what there is and leave a note."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._temp.unlink(missing_ok=True)
        if reason:
            leave_note(self.spool, self.rid, reason)

    @contextlib.contextmanager
    def _noting(self) -> Any:
        try:
            yield
        except (OSError, ValueError) as exc:
            self.error = f"{type(exc).__name__}: {exc}"


def _count_message(rows: float, facts: FileFacts) -> str:
    message = (
        f"{rows:g} rows captured, {facts.rows_expected} expected for {facts.prompt_tokens} prompt "
        f"and {facts.output_tokens} answer tokens"
    )
    few = rows < facts.rows_expected
    return message + ("; is a prefix cache on, or did chunks go missing?" if few else "")


def check_room(spool: Path, reserve_bytes: int) -> None:
    """Raise OSError if less than the reserve is free."""
    stat = os.statvfs(spool)
    free = stat.f_bavail * stat.f_frsize
    if free < reserve_bytes:
        raise OSError(f"spool full: {free >> 20} MiB free, {reserve_bytes >> 20} MiB are reserved")


def write_all(fd: int, data: memoryview, position: int) -> None:
    """Write all of `data` at `position`."""
    while data:
        done = os.pwrite(fd, data, position)
        data, position = data[done:], position + done


def start_write_back(fd: int, offset: int, nbytes: int) -> None:
    """Begin to write a range to the disk without waiting for it; where it cannot, do nothing."""
    if _LIBC is not None:
        _LIBC.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _RANGE_WRITE)


def _libc() -> ctypes.CDLL | None:
    """Return the C library if it has `sync_file_range` (Linux), which Python does not offer."""
    try:
        library = ctypes.CDLL(None)
        library.sync_file_range  # noqa: B018 - looked up, not called
    except (OSError, AttributeError):
        return None
    return library


_LIBC = _libc()


def leave_note(spool: Path, rid: str, reason: str) -> None:
    """Write the note of a failed capture, whole or not at all."""
    path = failed_path(spool, rid)
    temp = path.with_name(f"{path.name}.{os.getpid()}{TEMP_SUFFIX}")
    try:
        temp.write_text(json.dumps({"error": reason}), encoding="utf-8")
        temp.rename(path)
    except OSError:
        _log.exception("no note rid=%s reason=%s", rid, reason)


def remove_leftovers(spool: Path) -> int:
    """Remove temporary files of writers that are gone; return how many."""
    removed = 0
    for path in spool.glob(f"*.*{TEMP_SUFFIX}"):
        owner = path.name[: -len(TEMP_SUFFIX)].rpartition(".")[2]
        if owner.isdigit() and not _alive(int(owner)):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Writer:
    """Routes messages to threads; all messages of one capture go to the same thread."""

    def __init__(
        self, ring: Ring, spool: Path, *, sync: bool, threads: int, reserve_bytes: int
    ) -> None:
        self._ring = ring
        self._spool = spool
        self._sync = sync
        self._reserve_bytes = reserve_bytes
        self._releaser = Releaser(ring)
        self._lock = threading.Lock()  # of the releaser
        self._closing = threading.Semaphore(_CLOSING_MAX)
        self._closers = ThreadPoolExecutor(threads, "closer")
        self._queues: list[SimpleQueue[tuple[Any, ...] | None]] = [
            SimpleQueue() for _ in range(threads)
        ]
        self._threads = [threading.Thread(target=self._work, args=(q,)) for q in self._queues]

    def run(self, sock: socket.socket) -> None:
        """Work until the scheduler closes its end."""
        for thread in self._threads:
            thread.start()
        for message in wire.receive(sock):
            if message[0] == "data":
                self._route_data(message[1], message[2])
            else:
                self._queues[message[1] % len(self._queues)].put(message)
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        self._closers.shutdown()

    def _route_data(self, end: int, parts: list[tuple[int, int, int]]) -> None:
        by_thread: dict[int, list[tuple[int, int, int]]] = {}
        for part in parts:
            by_thread.setdefault(part[0] % len(self._queues), []).append(part)
        with self._lock:
            self._releaser.expect(end, len(by_thread))
        for index, mine in by_thread.items():
            self._queues[index].put(("data", end, mine))

    def _work(self, queue: SimpleQueue[tuple[Any, ...] | None]) -> None:
        files: dict[int, CaptureFile] = {}
        while (message := queue.get()) is not None:
            try:
                self._handle(files, message)
            except Exception:  # noqa: BLE001 - the edge of a thread: one capture fails, the others go on
                _log.exception("message failed kind=%s", message[0])
        for file in files.values():
            file.drop("")

    def _handle(self, files: dict[int, CaptureFile], message: tuple[Any, ...]) -> None:
        kind, key, *rest = message
        if kind == "data":
            self._write(files, key, rest[0])
        elif kind == "begin":
            files[key] = CaptureFile(self._spool, rest[0], self._reserve_bytes, sync=self._sync)
        elif kind == "reset":
            files[key].reset()
        elif kind == "finish":
            self._closing.acquire()
            self._closers.submit(self._finish, files.pop(key), *rest)
        elif kind == "drop":
            files.pop(key).drop(rest[0])

    def _write(
        self, files: dict[int, CaptureFile], end: int, parts: list[tuple[int, int, int]]
    ) -> None:
        try:
            for key, offset, nbytes in parts:
                files[key].write(self._ring.data[offset : offset + nbytes])
        finally:
            with self._lock:
                self._releaser.done(end)

    def _finish(self, file: CaptureFile, facts: dict[str, Any], ids: bytes) -> None:
        try:
            file.complete(FileFacts(**facts), ids)
        except Exception:  # noqa: BLE001 - the edge of a thread
            _log.exception("file not completed rid=%s", file.rid)
        finally:
            self._closing.release()


def main(arguments: list[str]) -> int:
    """Run the writer process; return its exit code."""
    parser = argparse.ArgumentParser()
    for name in ("--ring-fd", "--socket-fd", "--capacity", "--threads", "--reserve-bytes"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--sync", action="store_true")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ends with the scheduler, after what it sent
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    removed = remove_leftovers(given.spool)
    _log.info("writer ready spool=%s leftovers_removed=%d", given.spool, removed)
    writer = Writer(
        Ring(given.ring_fd, given.capacity),
        given.spool,
        sync=given.sync,
        threads=given.threads,
        reserve_bytes=given.reserve_bytes,
    )
    with socket.socket(fileno=given.socket_fd) as sock:
        writer.run(sock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
