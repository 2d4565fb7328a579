"""Blocking client of the control socket, for the command line: standard library and orjson only.

Guarantee: the same errors as `control.client.ControlClient`. Price: one connection a call.
aiohttp alone would double the start-up time of `eagled status`.
"""

from __future__ import annotations

import http.client
import socket as sockets
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from eagled.control.protocol import (
    API_HEADER,
    API_VERSION,
    CALL_TIMEOUT_S,
    IDEMPOTENCY_HEADER,
    check_socket_path,
    error_from_wire,
    unreachable,
)
from eagled.errors import UnreachableError


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("eagled", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def get(socket: Path, path: str, **query: str | int) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON answer of a read-only call.

    Raises:
        UnreachableError: if no daemon answers in time.
        EagledError: whatever the daemon raised.
    """
    return _call(socket, "GET", path + ("?" + urlencode(query) if query else ""))


def post(
    socket: Path,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON answer of a call that changes something.

    Raises:
        UnreachableError: if no daemon answers in time.
        EagledError: whatever the daemon raised.
    """
    return _call(socket, "POST", path, orjson.dumps(body or {}), timeout_s)


def events(socket: Path, after: int = 0, *, follow: bool = False) -> Iterator[dict[str, Any]]:
    """Yield events with a sequence number above `after`; with `follow` until the daemon goes.

    Raises:
        UnreachableError: if no daemon answers.
    """
    query = urlencode({"after": after, "follow": int(follow)})
    connection = _UnixConnection(check_socket_path(socket), None if follow else CALL_TIMEOUT_S)
    try:
        reply = _request(connection, "GET", f"/v1/events?{query}", None)
        while line := reply.readline():
            if line.strip():
                yield orjson.loads(line)
    except (OSError, http.client.HTTPException) as exc:
        raise unreachable(socket, exc) from exc
    finally:
        connection.close()


def _call(
    socket: Path,
    method: str,
    path: str,
    body: bytes | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Any:  # noqa: ANN401 - JSON
    connection = _UnixConnection(check_socket_path(socket), timeout_s)
    try:
        raw = _request(connection, method, path, body).read()
    except TimeoutError as exc:
        raise UnreachableError(
            f"the daemon on {socket} did not answer {path} within {timeout_s:g} s"
        ) from exc
    except (OSError, http.client.HTTPException) as exc:
        raise unreachable(socket, exc) from exc
    finally:
        connection.close()
    return _json(raw)


def _request(
    connection: _UnixConnection, method: str, path: str, body: bytes | None
) -> http.client.HTTPResponse:
    headers = {API_HEADER: str(API_VERSION)}
    if method == "POST":
        headers[IDEMPOTENCY_HEADER] = uuid.uuid4().hex
    connection.request(method, path, body=body, headers=headers)
    reply = connection.getresponse()
    if reply.status >= 400:  # noqa: PLR2004 - HTTP: errors start here
        raise error_from_wire(_json(reply.read()), reply.status)
    return reply


def _json(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
