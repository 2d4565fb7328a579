"""A server that answers every request with the same bytes, as cheaply as Python can.

`python -m tests.servers.canned PORT N_PROMPT N_OUTPUT DELAY_S` prints its port. It is bare
`asyncio.Protocol`, so that it is never what a benchmark measures. A negative delay never answers
/generate. Each reply says N_PROMPT prompt tokens; send prompts of that length.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from tests.servers.wire import native_reply, response

VOCAB = 32_000
_LENGTH = b"content-length:"


def make_reply(n_prompt: int, n_output: int) -> bytes:
    """Return the bytes of the one reply: seeded ids, text of about four bytes an id."""
    rng = random.Random(1)  # noqa: S311 - a workload, not a secret
    ids = [rng.randrange(VOCAB) for _ in range(n_output)]
    reply = native_reply("r", n_prompt, ids)
    reply["text"] = "word" * n_output
    return response(200, json.dumps(reply, separators=(",", ":")).encode())


class Canned(asyncio.Protocol):
    """One connection."""

    def __init__(self, reply: bytes, delay_s: float) -> None:
        self._reply = reply
        self._delay_s = delay_s
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request as soon as it is whole."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            at = head.lower().find(_LENGTH)
            length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            whole = end + 4 + length
            if len(self._buffer) < whole:
                return
            del self._buffer[:whole]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/generate":
            if self._delay_s == 0:
                self._write(self._reply)
            elif self._delay_s > 0:
                asyncio.get_running_loop().call_later(self._delay_s, self._write, self._reply)
        elif path == b"/server_info":
            self._write(response(200, b'{"version": "canned", "context_length": 200000}'))
        elif path == b"/model_info":
            self._write(response(200, b'{"model_path": "canned"}'))
        else:
            self._write(response(404, b"{}"))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)


async def main(port: int, n_prompt: int, n_output: int, delay_s: float) -> None:
    """Serve until killed."""
    reply = make_reply(n_prompt, n_output)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: Canned(reply, delay_s), "127.0.0.1", port, backlog=1024
    )
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await listener.serve_forever()


if __name__ == "__main__":
    numbers = sys.argv[1:]
    asyncio.run(main(int(numbers[0]), int(numbers[1]), int(numbers[2]), float(numbers[3])))
