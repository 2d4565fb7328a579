"""The witness: a process of its own that writes down every acknowledgement the daemon gives.

It follows the event stream with acknowledgements, reconnects as soon as the daemon is back, and
appends one JSON line an acknowledgement. The daemon's death cannot take its file along.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path
from typing import BinaryIO

import orjson

from eagled.control.client import ControlClient
from eagled.errors import EagledError

_RECONNECT_S = 0.02


async def follow(socket: Path, out: BinaryIO) -> None:
    """Write acknowledgements until the stream ends."""
    async with ControlClient(socket) as client:
        async for event in client.events(after=1 << 60, follow=True, acks=True):
            if "ack" in event:
                out.write(orjson.dumps(event["ack"], option=orjson.OPT_APPEND_NEWLINE))
                out.flush()


async def watch(socket: Path, out: BinaryIO) -> None:
    """Follow for ever, across the daemon's deaths."""
    while True:
        # the daemon is down, or died in the middle of a line: that line was no ack
        with contextlib.suppress(EagledError, ValueError):
            await follow(socket, out)
        await asyncio.sleep(_RECONNECT_S)


def main() -> None:
    """Parse the arguments and watch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with args.out.open("ab") as out:
        asyncio.run(watch(args.socket, out))


if __name__ == "__main__":
    main()
