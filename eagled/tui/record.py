"""Record what a daemon answers, so that `eagled top --demo` can show it without one.

`python -m eagled.tui.record --socket STATE/control.sock --out FILE.jsonl.zst` asks until it is
interrupted (or for `--seconds`), through the same socket and calls as the screen. `--name
FOLDER=OTHER` writes OTHER for a folder of this machine, wherever it stands. One JSON object a line,
in order of time: `t` is seconds since the beginning, and beside it stands `status`, `down` (why
nobody answered), `events`, `samples` (every row), or `path`, `query` and `reply` of another
question. The reader is `replay.py`: keep in step.
Price: every sample is listed and read once, so this is for runs of some hundred samples.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import zstandard

from eagled.artifacts import write_bytes
from eagled.errors import EagledError
from eagled.tui.desk import KNOBS
from eagled.tui.source import SocketSource, StatusSource

FORMAT = 1
EVERY_S = 1.0  # statuses
LOOK_EVERY_S = 5.0  # lists, causes, plans
_PAGE = 500
_LEVEL = 19
_READ = frozenset({"generated", "extracting", "extracted", "rejected", "failed"})


class Recorder:
    """Asks a source and keeps the answers; `lines` is the recording so far."""

    def __init__(self, source: StatusSource) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self._source = source
        self._began = time.monotonic()
        self._looked = float("-inf")
        self._last_event = 0
        self._kept: dict[str, object] = {}
        self._read: set[str] = set()

    async def run(self, stop: asyncio.Event, seconds: float) -> None:
        """Ask until `stop` is set or `seconds` are over."""
        while not stop.is_set() and self._now() < seconds:
            await self.ask()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await stop.wait()

    async def ask(self) -> None:
        """Ask once for everything that is due; a daemon that is away is part of the recording."""
        try:
            self._add(status=dict(await self._source.status()))
            await self._events()
            if time.monotonic() - self._looked >= LOOK_EVERY_S:
                self._looked = time.monotonic()
                await self._look()
        except EagledError as error:
            self._add(down=str(error))

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _add(self, **what: object) -> None:
        self.lines.append({"t": round(self._now(), 2), **what})

    async def _events(self) -> None:
        rows = await self._source.events(self._last_event)
        if rows:
            self._last_event = max(int(str(row["seq"])) for row in rows)
            self._add(events=list(rows))

    async def _look(self) -> None:
        rows = await self._samples()
        self._keep("samples", rows, {"samples": rows})
        for path in ("/v1/failures", "/v1/training", "/v1/plan/disk"):
            await self._get(path)
        for name, values in KNOBS.items():
            for value in filter(None, values):
                await self._get("/v1/plan/disk", **{name: value})
        for row in rows:
            if row["state"] in _READ and row["uid"] not in self._read:
                await self._sample(str(row["uid"]))

    async def _samples(self) -> Sequence[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        while True:
            after = rows[-1]["id"] if rows else 0
            reply: Any = await self._source.get("/v1/samples", {"after": after, "limit": _PAGE})
            rows += reply["samples"]
            if len(reply["samples"]) < _PAGE:
                return rows

    async def _sample(self, uid: str) -> None:
        text: Any = await self._source.get(f"/v1/samples/{uid}/text", {})
        if text.get("output") is not None:  # else the text worker is not there yet: ask later
            self._read.add(uid)
            await self._get(f"/v1/samples/{uid}")
            self._add(path=f"/v1/samples/{uid}/text", query={}, reply=text)

    async def _get(self, path: str, **query: str) -> None:
        reply = await self._source.get(path, query)
        self._keep(f"{path} {query}", reply, {"path": path, "query": query, "reply": reply})

    def _keep(self, name: str, reply: object, line: Mapping[str, object]) -> None:
        """Add an answer unless it is the one before."""
        if self._kept.get(name) != reply:
            self._kept[name] = reply
            self._add(**line)


def renamed(value: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """Return JSON in whose texts each folder of `names`, and what is in it, has its other name."""
    if isinstance(value, str):
        for folder, other in names.items():
            whole = rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])"
            value = re.sub(whole, other.replace("\\", r"\\"), value)
        return value
    if isinstance(value, list | tuple):
        return [renamed(item, names) for item in value]
    if isinstance(value, Mapping):
        return {name: renamed(item, names) for name, item in value.items()}
    return value


def pack(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a recording as it is stored."""
    head = {"recording": FORMAT}
    text = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in (head, *lines))
    return zstandard.ZstdCompressor(level=_LEVEL).compress(text)


async def record(socket: Path, seconds: float, names: Mapping[str, str]) -> bytes:
    """Return a recording of the daemon behind `socket`; SIGINT and SIGTERM end it too.

    `names` are folders and what they are called in it.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    source = SocketSource(socket)
    recorder = Recorder(source)
    try:
        await recorder.run(stop, seconds)
    finally:
        await source.close()
    return pack(renamed(recorder.lines, names))


def main() -> None:
    """Read the arguments, record, write the file."""
    parser = argparse.ArgumentParser(description="Record a run for `eagled top --demo`.")
    parser.add_argument("--socket", type=Path, required=True, help="the control socket")
    parser.add_argument("--out", type=Path, required=True, help="the recording to write")
    parser.add_argument("--seconds", type=float, default=86_400.0, help="record this long at most")
    parser.add_argument("--name", action="append", default=[], help="FOLDER=OTHER; repeatable")
    options = parser.parse_args()
    names = dict(pair.split("=", 1) for pair in options.name)
    write_bytes(options.out, asyncio.run(record(options.socket, options.seconds, names)))


if __name__ == "__main__":
    main()
