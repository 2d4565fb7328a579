"""Every request to the hub goes through here: time limits, pauses when it asks for them, a stop.

Works through the hooks of the client's own HTTP library (`huggingface_hub.set_client_factory`), so
the real client stays as it is. Guarantee: no request waits longer than `timeout_s` for a byte;
a 429 makes everybody wait as long as the hub says, within each one's own deadline.
Price: the client factory is global to the process while a gate is open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from eagled.errors import UnreachableError

_T = TypeVar("_T")
_TOO_MANY, _SERVER_FAULT = 429, 500
_PAUSE_S = 2.0  # where a 429 does not say how long
_LONGEST_PAUSE_S = 120.0


class HubFaultError(ConnectionError):
    """The hub answered with 429 or a server fault; `status` is its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the hub answers HTTP {status}")
        self.status = status


class HubLostError(ConnectionError):
    """There is no connection, or it broke."""


class TimeUpError(UnreachableError):
    """The time for this candidate is over, or everything was stopped."""


class Gate:
    """What all threads of one search share.

    Args:
        endpoint: of the hub; the token goes to this host only.
        timeout_s: longest wait for a byte.
        attempts: tries of one call.
        backoff_s: wait before the second try, then twice that, ...
        token: for gated datasets; None leaves it to the client's own rules.
        offline: no request leaves; the client is told so, and takes what its own cache has.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = 10.0,
        attempts: int = 3,
        backoff_s: float = 0.5,
        token: str | None = None,
        offline: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.attempts = attempts
        self.backoff_s = backoff_s
        self.calls = 0
        self.offline = offline
        self._token = token
        self._host = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open_at = 0.0
        self._local = threading.local()

    def stop(self) -> None:
        """Let every thread end at its next request or row."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether everything was told to end."""
        return self._stop.is_set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the hub's client work through this gate."""
        import huggingface_hub
        from huggingface_hub.utils._http import default_client_factory

        def client() -> Any:  # noqa: ANN401 - a client of the HTTP library that the hub's client uses
            made: Any = default_client_factory()
            hooks = made.event_hooks
            hooks["request"].append(self._before)
            hooks["response"].append(self._after)
            made.event_hooks = hooks
            made.send = self._sender(made.send)
            return made

        huggingface_hub.set_client_factory(client)
        try:
            yield
        finally:
            huggingface_hub.set_client_factory(default_client_factory)

    def _sender(self, send: Callable[..., _T]) -> Callable[..., _T]:
        """Give errors of the connection a class that the client does not wait for by itself."""

        def sent(*args: Any, **kwargs: Any) -> _T:  # noqa: ANN401 - as the HTTP library calls it
            try:
                return send(*args, **kwargs)
            except Exception as exc:
                if getattr(self._local, "patient", False) or not is_transport(exc):
                    raise
                raise HubLostError(str(exc) or type(exc).__name__) from exc

        return sent

    @contextmanager
    def within(self, seconds: float, *, patient: bool = False) -> Iterator[None]:
        """Give what this thread does so much time.

        Args:
            seconds: the time.
            patient: leave waiting for a lost connection to the client, which knows what it has.
        """
        self._local.deadline = time.monotonic() + seconds
        self._local.patient = patient
        try:
            yield
        finally:
            self._local.deadline = None
            self._local.patient = False

    @contextmanager
    def unasked(self) -> Iterator[None]:
        """Let what this thread does take only what the client's own cache has."""
        self._local.offline = True
        try:
            yield
        finally:
            self._local.offline = False

    def deadline_check(self) -> Callable[[], None]:
        """Return a check of this thread's deadline, for use in any thread."""
        deadline = getattr(self._local, "deadline", None)

        def check() -> None:
            if self._stop.is_set():
                raise TimeUpError("stopped")
            if deadline is not None and time.monotonic() > deadline:
                raise TimeUpError("the time for it is over")

        return check

    def check(self) -> None:
        """Raise if this thread's time is over."""
        self.deadline_check()()

    def ask(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call, tried again where that may help."""
        for attempt in range(self.attempts):
            try:
                return call()
            except UnreachableError:
                raise
            except Exception as exc:
                # the HTTP library changes its exception types between releases
                if attempt + 1 == self.attempts or not _may_pass(exc):
                    raise
                if status_of(exc) != _TOO_MANY:
                    self._stop.wait(self.backoff_s * 2**attempt)
        raise AssertionError("unreachable")

    def _before(self, request: Any) -> None:  # noqa: ANN401 - of the HTTP library
        if self.offline or getattr(self._local, "offline", False):
            from huggingface_hub.errors import OfflineModeIsEnabled

            raise OfflineModeIsEnabled("offline, as asked for")
        deadline = getattr(self._local, "deadline", None)
        self.check()
        wait_s = self._open_at - time.monotonic()
        if wait_s > 0:
            if deadline is not None and time.monotonic() + wait_s > deadline:
                raise TimeUpError(f"the hub wants a pause of {wait_s:.0f} s (HTTP 429)")
            self._stop.wait(wait_s)
            self.check()
        with self._lock:
            self.calls += 1
        request.extensions["timeout"] = dict.fromkeys(
            ("connect", "read", "write", "pool"), self.timeout_s
        )
        if self._token and request.url.netloc.decode() == self._host:
            request.headers["authorization"] = f"Bearer {self._token}"

    def _after(self, response: Any) -> None:  # noqa: ANN401 - of the HTTP library
        """Note a wish for a pause; raise here, so that the client does not wait by itself."""
        status = response.status_code
        if status == _TOO_MANY:
            try:
                wait_s = float(response.headers.get("retry-after", _PAUSE_S))
            except ValueError:  # a date
                wait_s = _PAUSE_S
            with self._lock:
                until = time.monotonic() + max(0.0, min(wait_s, _LONGEST_PAUSE_S))
                self._open_at = max(self._open_at, until)
        if status == _TOO_MANY or status >= _SERVER_FAULT:
            raise HubFaultError(status)


def status_of(exc: BaseException) -> int | None:
    """Return the HTTP status that an error carries."""
    if isinstance(exc, HubFaultError):
        return exc.status
    status = getattr(getattr(exc, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_transport(exc: BaseException) -> bool:
    """Say whether an error came from the connection, by the module of its class."""
    return type(exc).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


def _may_pass(exc: Exception) -> bool:
    if isinstance(exc, HubFaultError):
        return True
    return status_of(exc) is None and not isinstance(exc, ValueError | KeyError | TypeError)
