"""Who is at the other end of the socket, and who may be.

Guarantee: only root and the daemon's own user get past `refuse_strangers`; the kernel says who
they are (SO_PEERCRED), nothing that the caller sends is believed.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

_UCRED = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that called."""

    pid: int
    uid: int


def peer_of(request: web.Request) -> Peer | None:
    """Return the calling process, or None when the kernel does not say."""
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Peer(pid, uid)


def uid_of(request: web.Request) -> int:
    """Return the caller's user id, -1 when unknown."""
    peer = peer_of(request)
    return peer.uid if peer is not None else -1


@web.middleware
async def refuse_strangers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 403 to every user but root and the daemon's own."""
    peer = peer_of(request)
    if peer is None or peer.uid not in (0, os.geteuid()):
        who = "an unknown process" if peer is None else f"user {peer.uid}"
        body = {
            "error": {
                "class": "AuthError",
                "message": f"{who} may not control this daemon: use its own user, or root",
            }
        }
        return web.json_response(body, status=web.HTTPForbidden.status_code)
    return await handler(request)
