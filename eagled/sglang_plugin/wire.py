"""Messages from the scheduler to its writer: length-prefixed marshal over a socket pair.

marshal, since it is the cheapest encoder of the standard library, and both ends are one Python.
A message is a tuple whose first item is its kind; the kinds and fields are in `MESSAGES`.
"""

from __future__ import annotations

import marshal
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<I")
MESSAGES = {
    "begin": "capture, rid",
    "data": "region end, [(capture, offset, nbytes), ...] in the order of the rows",
    "reset": "capture; all rows so far are void, they come again",
    "finish": "capture, facts of the file as a dict, ids as bytes",
    "drop": "capture, reason; an empty reason leaves no note",
}


def send(sock: socket.socket, *message: Any) -> None:
    """Send one message; blocks while the socket is full.

    Raises:
        OSError: if the writer is gone.
    """
    body = marshal.dumps(message)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket) -> Iterator[tuple[Any, ...]]:
    """Yield messages until the other end is closed."""
    with sock.makefile("rb") as stream:
        while len(prefix := stream.read(_LENGTH.size)) == _LENGTH.size:
            body = stream.read(_LENGTH.unpack(prefix)[0])
            yield marshal.loads(body)  # noqa: S302 - from our own parent, over a private socket
