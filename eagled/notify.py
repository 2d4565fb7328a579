"""Messages to systemd: READY, STATUS, STOPPING, WATCHDOG, EXTEND_TIMEOUT_USEC.

Guarantee: nothing here blocks, raises or lets a text add a field of its own; without systemd every
call does nothing. Status texts are sent at most every `STATUS_EVERY_S` seconds, because a flood of
them stalls PID 1. The variables are taken out of the environment so that workers cannot use them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Self

from eagled.clock import Clock, SystemClock
from eagled.printable import printable

logger = logging.getLogger(__name__)
STATUS_EVERY_S = 2.0
_STATUS_CHARS = 200
_US = 1_000_000


class Notifier:
    """Speaks to the service manager that started this process, if one did.

    Attributes:
        watchdog_s: seconds after which systemd kills a silent service; None when it does not.
    """

    def __init__(
        self, address: str | None, watchdog_s: float | None, clock: Clock | None = None
    ) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._clock = clock or SystemClock()
        self._status = ""
        self._status_at = -STATUS_EVERY_S

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] | None = None) -> Self:
        """Take NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment."""
        environ = os.environ if environ is None else environ
        address = environ.pop("NOTIFY_SOCKET", None)
        period_us = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        watchdog_s = int(period_us) / _US if period_us.isdecimal() and ours else None
        return cls(address or None, watchdog_s or None)

    def ready(self, status: str) -> None:
        """Say that start-up is over."""
        self._send("READY=1", _status_field(status))

    def stopping(self, status: str) -> None:
        """Say that shutdown has begun."""
        self._send("STOPPING=1", _status_field(status))

    def status(self, text: str) -> None:
        """Show a line in `systemctl status`, if it changed and not too often."""
        now = self._clock.monotonic()
        if text == self._status or now - self._status_at < STATUS_EVERY_S:
            return
        self._status, self._status_at = text, now
        self._send(_status_field(text))

    def watchdog(self) -> None:
        """Say that everything moves."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Ask for more time while starting or stopping."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * _US)}")

    def _send(self, *fields: str) -> None:
        if self._address is None:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(0)
                sock.sendto("\n".join(fields).encode(), name)
        except OSError as exc:
            logger.debug("cannot notify systemd error=%s", exc)


def _status_field(text: str) -> str:
    return f"STATUS={printable(text, _STATUS_CHARS)}"
