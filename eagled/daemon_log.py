"""Where a process's log goes: stderr, or the journal with fields when systemd reads our stderr."""

from __future__ import annotations

import logging
import os
import sys

from eagled.journal import INFO_PRIORITY, PRIORITIES, JournalHandler, reads_stderr
from eagled.printable import printable

_LINE_CHARS = 2000


class LineFormatter(logging.Formatter):
    """One safe line a record, tracebacks below it; `<N>` in front for the journal's reader."""

    def __init__(self, text: str = "%(message)s", *, numbered: bool = False) -> None:
        super().__init__(text)
        self._numbered = numbered

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line with nothing in it that a terminal would act upon."""
        record.message = printable(record.message, _LINE_CHARS)
        line = super().formatMessage(record)
        number = PRIORITIES.get(record.levelno, INFO_PRIORITY)
        return f"<{number}>{line}" if self._numbered else line

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Return the traceback with what is secret or unsafe in it made visible."""
        return printable(super().formatException(ei), None, lines=True)  # type: ignore[arg-type] # logging's private type


def set_up_logging() -> None:
    """Send the log to stderr or the journal; EAGLED_DEBUG=1 includes debug lines of eagled."""
    plain = logging.StreamHandler(sys.stderr)
    handler: logging.Handler = plain
    if reads_stderr(os.environ):
        plain.setFormatter(LineFormatter(numbered=True))
        handler = JournalHandler(plain)
        handler.setFormatter(LineFormatter())
    else:
        plain.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    if os.environ.get("EAGLED_DEBUG"):
        logging.getLogger("eagled").setLevel(logging.DEBUG)
