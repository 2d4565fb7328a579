"""The control socket: born with mode 0600, open to root, the daemon's own user and one group.

Guarantee: nobody else can connect at any moment (the mode is set before the name exists, and
widened to 0660 only for a configured group); a stale socket file is removed only by the holder of
the state directory's lock, who calls this. Price: a TCP port for Prometheus, if configured, serves
/metrics and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from eagled.artifacts import disk_error
from eagled.control.calls import REPLIES, Replies, speak
from eagled.control.context import CONTROL, Control
from eagled.control.gate import Gate
from eagled.control.peers import Access, doorkeeper
from eagled.control.protocol import MAX_CONNECTIONS, MAX_SCRAPERS, check_socket_path
from eagled.control.routes import add_routes, metrics
from eagled.control.work import add_work_routes
from eagled.errors import ConfigError, EagledError

MAX_BODY_BYTES = 256 << 20  # verdicts of one batch carry whole prompts
STOP_S = 1.0  # open calls and streams at shutdown
_SOCKET_MODE = 0o600
_GROUP_MODE = 0o660
_NOBODY_ELSE = Access()


def build_app(control: Control, access: Access, gate: Gate) -> web.Application:
    """Return the application that answers on the socket."""
    middlewares = [gate.count, doorkeeper(access), speak]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app[CONTROL] = control
    app[REPLIES] = Replies()
    add_routes(app)
    add_work_routes(app)
    return app


@asynccontextmanager
async def serve_control(
    control: Control, path: Path, metrics_port: int = 0, access: Access = _NOBODY_ELSE
) -> AsyncIterator[None]:
    """Answer on the unix socket `path`, and metrics on 127.0.0.1 if a port is given.

    The caller holds the lock of the state directory: what lies at `path` is stale.

    Raises:
        UsageError: if the path is too long for a unix socket.
        ConfigError: if the path is not a socket, or the port is taken.
        EagledError: if the socket cannot be given to the group (the daemon's user must be in it).
        DiskError: if the folder cannot be written.
    """
    sock = bind_socket(path, access)
    gate = Gate(MAX_CONNECTIONS)
    try:
        async with (
            _listening(build_app(control, access, gate), gate, sock),
            _metrics_site(control, metrics_port),
        ):
            yield
    finally:
        sock.close()
        _remove(path)


@asynccontextmanager
async def _listening(app: web.Application, gate: Gate, sock: sockets.socket) -> AsyncIterator[None]:
    """Serve an application on a bound socket."""
    runner = web.AppRunner(app, shutdown_timeout=STOP_S, access_log=None)
    try:
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - setup has made it
        listener = await gate.listen(runner.server, sock)
        try:
            yield
        finally:
            listener.close()
    finally:
        await runner.cleanup()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def bind_socket(path: Path, access: Access = _NOBODY_ELSE) -> sockets.socket:
    """Return a bound socket that only the owner, and the group of `access`, can connect to."""
    check_socket_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_socket():
            raise ConfigError(f"daemon.socket: {path} is there and is no socket; choose another")
        path.unlink(missing_ok=True)
        sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_CLOEXEC)
        os.fchmod(sock.fileno(), _SOCKET_MODE)  # before bind: the name is born with this mode
        sock.bind(str(path))
        if access.gid is not None:
            os.chown(path, -1, access.gid)
            path.chmod(_GROUP_MODE)
    except OSError as exc:
        raise disk_error(exc, path) or EagledError(f"cannot listen on {path}: {exc}") from exc
    return sock


@asynccontextmanager
async def _metrics_site(control: Control, port: int) -> AsyncIterator[None]:
    if not port:
        yield
        return
    gate = Gate(MAX_SCRAPERS)
    app = web.Application(middlewares=[gate.count])
    app[CONTROL] = control
    app.router.add_get("/metrics", metrics)
    with sockets.socket() as sock:
        sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as exc:
            raise ConfigError(f"daemon.metrics_port = {port}: {exc.strerror}") from exc
        async with _listening(app, gate, sock):
            yield
