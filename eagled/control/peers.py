"""Who is at the other end of the socket, and what they may do.

Guarantee: only root, the daemon's own user and, when configured, one group get past `doorkeeper`,
the group with no more than it was given; the kernel says who calls (SO_PEERCRED, SO_PEERGROUPS),
nothing that the caller sends is believed.
"""

from __future__ import annotations

import array
import grp
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from eagled.errors import ConfigError

_UCRED = struct.Struct("3i")  # pid, uid, gid
_SO_PEERGROUPS = 59  # linux/socket.h; Python does not name it
_GROUPS_BYTES = 1024  # the most that Python asks for; a user in more than 256 groups has only one
_READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Access:
    """The group that may call, None for none, and whether it may change anything."""

    gid: int | None = None
    control: bool = False

    @classmethod
    def of_group(cls, name: str, may: str) -> Access:
        """Return the access of a group by its name; none for an empty name.

        Raises:
            ConfigError: if there is no such group on this machine.
        """
        if not name:
            return cls()
        try:
            return cls(grp.getgrnam(name).gr_gid, control=may == "control")
        except KeyError:
            raise ConfigError(f"daemon.group = {name!r}: no such group here") from None


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


def groups_of(request: web.Request) -> frozenset[int]:
    """Return the groups that the calling process was in when it connected."""
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return frozenset()
    _, _, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        raw = b""
    return frozenset({gid, *array.array("I", raw)})


def refusal(
    access: Access, peer: Peer | None, groups: Callable[[], frozenset[int]], verb: str
) -> str:
    """Return why a call is refused; empty when it may go on."""
    if peer is None:
        return "an unknown process may not call this daemon"
    if peer.uid in (0, os.geteuid()):
        return ""
    if access.gid is None or access.gid not in groups():
        return f"user {peer.uid} may not control this daemon: use its own user, or root"
    if not access.control and verb not in _READING:
        return f'user {peer.uid} may look but not change anything (daemon.group_may = "read")'
    return ""


def doorkeeper(access: Access) -> Middleware:
    """Return the middleware that answers 403 to whoever may not make the call."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = peer_of(request)
        why = refusal(access, peer, lambda: groups_of(request), request.method)
        if why:
            body = {"error": {"class": "AuthError", "message": why}}
            return web.json_response(body, status=web.HTTPForbidden.status_code)
        return await handler(request)

    return check
