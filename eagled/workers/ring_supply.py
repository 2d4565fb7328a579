"""The daemon's ring of shards, as training takes from it.

Guarantee: the lease is renewed from a thread for as long as the supply is open, whatever the
trainer does meanwhile. A daemon that is away (it restarts) is waited for, `AWAY_S` at most; what
could not be released is released when it is back. Price: one small call every quarter lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from eagled.control import call
from eagled.errors import EagledError, UnreachableError
from eagled.train.supply import Leased, Outlook

_log = logging.getLogger(__name__)
AWAY_S = 120.0  # a daemon restarts in seconds; after this somebody has to look
_CALL_SLACK_S = 30.0
_MOST_RELEASED = 500  # names of one call
_AHEAD = ("queued", "waiting", "generating", "retry_wait", "generated", "extracting")


class RingSupply:
    """One consumer of the ring; a context manager that takes part while it is open."""

    def __init__(
        self, socket: Path, consumer: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket, self._consumer, self._clock = socket, consumer, clock
        self._heard = clock()
        self._back: list[str] = []  # learnt, and not released yet
        self._closed = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="eagled-lease", daemon=True)
        self._renew_s = 0.0
        self.cap_bytes = 0

    def __enter__(self) -> Self:
        """Register.

        Raises:
            UnreachableError: if no daemon answers.
            UsageError: if the run keeps its shards.
        """
        self._post("register")
        view = call.get(self._socket, "/v1/ring")
        self.cap_bytes, self._renew_s = int(view["cap_bytes"]), float(view["lease_s"]) / 4
        self._renewer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._renewer.join()

    def take(self, wait_s: float) -> Leased | None:
        """Return the next shard, oldest first; None if none came in time, or the daemon is away.

        Raises:
            UnreachableError: if it has been away for too long.
        """
        try:
            self._release_rest()
            found = self._post("lease", {"max": 1, "wait_s": wait_s}, wait_s)["shards"]
        except UnreachableError:
            if self._clock() - self._heard > AWAY_S:
                raise
            self._closed.wait(min(wait_s, 1.0))
            return None
        self._heard = self._clock()
        return _leased(found[0]) if found else None

    def outlook(self) -> Outlook:
        """Return what the daemon's extraction will do; nothing is known while it is away."""
        with suppress(UnreachableError):
            full = bool(call.get(self._socket, "/v1/ring")["full"])
            status = call.get(self._socket, "/v1/status")
            held = full or status["extraction"]["state"] == "paused"
            return Outlook(stream_over(status), full, held)
        return Outlook()

    def release(self, names: Sequence[str]) -> None:
        """Give shards back, now or when the daemon is there."""
        self._back += names
        with suppress(UnreachableError):
            self._release_rest()

    def leave(self) -> None:
        """End: this consumer is no longer waited for; if the daemon is away, once it is silent."""
        self.__exit__()  # a renewal would register it again
        try:
            self._release_rest()
            self._post("leave")
        except UnreachableError as exc:
            _log.warning("the ring was not left: %s", exc)

    def _release_rest(self) -> None:
        while part := self._back[:_MOST_RELEASED]:
            self._post("release", {"shards": part})
            del self._back[: len(part)]

    def _renew(self) -> None:
        while not self._closed.wait(self._renew_s):
            try:
                self._post("lease", {"max": 0})
            except EagledError as exc:
                _log.warning("the lease of %s was not renewed: %s", self._consumer, exc)

    def _post(self, what: str, body: Mapping[str, Any] | None = None, wait_s: float = 0.0) -> Any:  # noqa: ANN401 - JSON
        given = {"consumer": self._consumer, **(body or {})}
        timeout_s = wait_s + _CALL_SLACK_S
        return call.post(self._socket, f"/v1/ring/{what}", given, timeout_s=timeout_s)


def stream_over(status: Mapping[str, Any]) -> bool:
    """Return whether, by the status document, no sample can come to a shard any more.

    A daemon that is held ends nothing: what is queued there is still to come.
    """
    rows = status["datasets"].values()
    return bool(rows) and not any(row.get(word) for row in rows for word in _AHEAD)


def _leased(told: Mapping[str, Any]) -> Leased:
    return Leased(
        told["name"], told["path"], int(told["bytes"]), tuple(told["train"]),
        tuple(told["holdout"]),
    )  # fmt: skip
