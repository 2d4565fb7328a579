"""Log records to systemd's journal with fields of their own, by its native protocol.

Guarantee: nothing here raises or waits, and every value has gone through `printable`, so a field
holds no secret that is known and cannot begin another one. What `key=%s` stands for in a message
becomes the field `EAGLED_KEY`: `journalctl EAGLED_URL=…` finds it. The message itself stays whole,
so a reader without fields misses nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from eagled.printable import printable

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
INFO_PRIORITY = 6
_VALUE_CHARS = 2000
_SPEC = re.compile(r"(?:\b([a-z][a-z0-9_]*)=)?(%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])|%%")


def reads_stderr(environ: Mapping[str, str]) -> bool:
    """Return whether this process's stderr goes to the journal, and not to a file or a pipe."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return stat.S_ISSOCK(found.st_mode) and (device, inode) == (
        str(found.st_dev),
        str(found.st_ino),
    )


class JournalHandler(logging.Handler):
    """Sends each record as one datagram; what the journal does not take goes to `otherwise`."""

    def __init__(self, otherwise: logging.Handler, path: Path = JOURNAL_SOCKET) -> None:
        super().__init__()
        self._otherwise = otherwise
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(0)

    def emit(self, record: logging.LogRecord) -> None:
        """Send it."""
        try:
            fields = dict(record_fields(record, self.format(record)))
            self._socket.sendto(datagram(fields), str(self._path))
        except Exception:  # noqa: BLE001 - logging must not fail; stderr is read by the same journal
            self._otherwise.handle(record)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()


def record_fields(record: logging.LogRecord, message: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of a record; `message` is its whole text."""
    yield "MESSAGE", message
    yield "PRIORITY", str(PRIORITIES.get(record.levelno, INFO_PRIORITY))
    yield "SYSLOG_IDENTIFIER", "eagled"
    yield "LOGGER", record.name
    yield "CODE_FILE", record.pathname
    yield "CODE_LINE", str(record.lineno)
    yield "CODE_FUNC", record.funcName or ""
    for key, value in named_values(record):
        yield f"EAGLED_{key.upper()}", value


def named_values(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    """Yield what each `key=%s` of a record's format stands for."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return
    values = iter(record.args)
    for found in _SPEC.finditer(record.msg):
        if found[0] == "%%":
            continue
        value = next(values, None)
        if found[1]:
            with contextlib.suppress(TypeError, ValueError):  # the handler of the text says so
                yield found[1], printable(found[2] % (value,), _VALUE_CHARS)


def datagram(fields: Mapping[str, str]) -> bytes:
    """Return fields as the journal reads them: a value with line feeds has its length before it."""
    parts = []
    for key, value in fields.items():
        raw = value.encode("utf-8", "replace")
        if b"\n" in raw:
            parts.append(key.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n")
        else:
            parts.append(key.encode() + b"=" + raw + b"\n")
    return b"".join(parts)
