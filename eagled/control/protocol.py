"""What client and server of the control socket agree on: version, headers, paths, errors.

Guarantee: an `EagledError` raised in the daemon arrives at the caller as the same class with the
same message and exit code. Standard library and orjson only: `eagled status` must start fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagled import errors
from eagled.errors import EagledError, UnreachableError, UsageError

API_VERSION = 1
API_HEADER = "Eagled-Api"
IDEMPOTENCY_HEADER = "Idempotency-Key"
BASE_URL = "http://eagled"  # the host part is never looked up: the connection is the socket
MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux is 108 with its terminating zero
CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 60.0  # the longest a control call may take; merge and claims name their own
MAX_CONNECTIONS = 256  # at once; 64 text workers have three each, the rest is for people
MAX_SCRAPERS = 16  # connections to the metrics port at once
CLAIM_WAIT_S = 20.0  # longest the daemon holds a claim open when there is no work


def start_hint(socket: Path) -> str:
    """Return what to do when nobody answers on `socket`."""
    return (
        f"no daemon answers on {socket}; start it with `eagled run` "
        "(or `systemctl start eagled@NAME`), or name its configuration with --config"
    )


def unreachable(socket: Path, exc: BaseException | None = None) -> UnreachableError:
    """Return the error for a socket on which nobody answers."""
    if isinstance(exc, PermissionError):
        return UnreachableError(
            f"{socket} belongs to another user: run the command as the daemon's user or as root"
        )
    return UnreachableError(start_hint(socket))


def check_socket_path(socket: Path) -> Path:
    """Return `socket` if a unix socket can have that path.

    Raises:
        UsageError: if it is longer than the system allows.
    """
    size = len(bytes(socket))
    if size > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"the socket path {socket} has {size} bytes, a unix socket can have "
            f"{MAX_SOCKET_PATH_BYTES}: set daemon.socket to a shorter path, such as one below /run"
        )
    return socket


def error_to_wire(exc: EagledError) -> dict[str, Any]:
    """Return the body of a reply that carries an error."""
    return {"error": {"class": type(exc).__name__, "message": str(exc)}}


def error_from_wire(body: object, status: int) -> EagledError:
    """Return the error that a reply with a status of 400 or more stands for."""
    about = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(about, Mapping):
        return UnreachableError(f"the control socket answered {status} with no explanation")
    message = str(about.get("message", f"the daemon answered {status}"))
    kind = getattr(errors, str(about.get("class", "")), None)
    if isinstance(kind, type) and issubclass(kind, EagledError):
        return _rebuild(kind, message)
    return EagledError(message)


def _rebuild(kind: type[EagledError], message: str) -> EagledError:
    """Return an error of class `kind` with this very message, whatever its constructor wants."""
    exc = kind.__new__(kind)
    Exception.__init__(exc, message)
    return exc


def check_version(theirs: str | None) -> None:
    """Refuse a caller of another protocol version; one that names none is taken as ours.

    Raises:
        UsageError: naming both versions.
    """
    if theirs is not None and theirs != str(API_VERSION):
        raise UsageError(
            f"the daemon speaks control API {API_VERSION}, the caller speaks {theirs[:20]!r}: "
            "use the same version of eagled on both sides"
        )
