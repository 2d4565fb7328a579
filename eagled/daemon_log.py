"""Where the daemon's log goes: stderr, with priorities when the journal reads it."""

from __future__ import annotations

import logging
import os
import sys

from eagled.printable import printable

_PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
_LINE_CHARS = 2000


class _Formatter(logging.Formatter):
    """One safe line a record, tracebacks as they are; `<N>` in front for the journal."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__("%(message)s" if journal else "%(asctime)s %(levelname)s %(message)s")
        self._journal = journal

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line with nothing in it that a terminal would act upon."""
        record.message = printable(record.message, _LINE_CHARS)
        line = super().formatMessage(record)
        return f"<{_PRIORITIES.get(record.levelno, 6)}>{line}" if self._journal else line


def set_up_logging() -> None:
    """Send the log to stderr; EAGLED_DEBUG=1 includes debug lines of eagled."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(journal="JOURNAL_STREAM" in os.environ))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    if os.environ.get("EAGLED_DEBUG"):
        logging.getLogger("eagled").setLevel(logging.DEBUG)
