"""The door of the control socket: how many may be connected at once, and who has to go for another.

Guarantee: callers that only hold connections open cannot use up the daemon's open files, nor keep
an operator out: beyond the limit the connection that has been open longest without a call in hand
makes room. When no file is left all the same, that is one line a second (asyncio by itself tries
again as often as the backlog is long, with a traceback each).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket as sockets
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

logger = logging.getLogger(__name__)
_ONE_AT_A_TIME = 1  # accepted before the loop turns again; see the guarantee
_BACKLOG = 128
_NO_FILES = (errno.EMFILE, errno.ENFILE)


class Gate:
    """Lets at most `most` connections in at once, and knows which have a call in hand."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: dict[web.RequestHandler, int] = {}  # connection -> calls in hand

    async def listen(self, server: web.Server, sock: sockets.socket) -> asyncio.Server:
        """Accept connections on a bound socket for `server`."""

        def new_connection() -> web.RequestHandler:
            self._make_room(server)
            return server()

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_one_line_for_no_files)
        listener = await loop.create_server(new_connection, sock=sock, backlog=_ONE_AT_A_TIME)
        sock.listen(_BACKLOG)
        return listener

    def _make_room(self, server: web.Server) -> None:
        found = [c for c in server.connections if c.transport and not c.transport.is_closing()]
        if len(found) < self._most:
            return
        oldest = next((c for c in found if c not in self._busy), found[0])
        logger.warning("connections=%d of most=%d: the oldest is closed", len(found), self._most)
        if oldest.transport is not None:
            oldest.transport.abort()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Know which connections have a call in hand."""
        connection = request.protocol
        self._busy[connection] = self._busy.get(connection, 0) + 1
        try:
            return await handler(request)
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]


def _one_line_for_no_files(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NO_FILES:
        logger.error("no open file is left for a control connection: %s", error.strerror)
    else:
        loop.default_exception_handler(context)
