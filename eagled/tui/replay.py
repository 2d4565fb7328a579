"""A recorded run as a daemon that answers: what `eagled top --demo` looks at.

Guarantee: no socket, no daemon and no model; the same recording at the same time of the clock gives
the same answers. Times of day are moved to now, so that ages are right. What changes something is
counted like a dry run and then refused. The writer is `record.py`: keep in step.
Price: the packaged recording is read whole (see `load_recording`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from eagled.clock import Clock
from eagled.errors import ArtifactError, ContentError, UnreachableError, UsageError
from eagled.frames import unpack_frame
from eagled.tui.record import FORMAT

FIRST_ANSWERS_S = 20.0  # of the packaged recording: before it there is little to see
_LONG_AGO_MS = 1_000_000_000_000  # a number under a `_ms` key above it is a time of day
_MAX_BYTES = 256 << 20
_FILTERS = ("state", "dataset", "lane", "reason")
_Line = Mapping[str, Any]


def load_recording(path: Path | None = None) -> list[_Line]:
    """Return the lines of a recording; of the packaged one by default.

    Raises:
        ContentError: if it is no recording, or one of another format.
    """
    packed = path.read_bytes() if path else (files("eagled.tui") / "demo.jsonl.zst").read_bytes()
    try:
        head, *lines = map(orjson.loads, unpack_frame(packed, _MAX_BYTES).splitlines())
    except (ArtifactError, ValueError) as error:
        raise ContentError(f"{path}: is no recording of `eagled top`: {error}") from error
    if not isinstance(head, dict) or head.get("recording") != FORMAT or not lines:
        raise ContentError(f"{path}: is a recording of another format than {FORMAT}")
    return lines


class Replay:
    """A `StatusSource` over a recording; it begins anew when it has ended."""

    def __init__(self, lines: Sequence[_Line], clock: Clock, *, start_s: float = 0.0) -> None:
        """Begin to play.

        Args:
            lines: of a recording, in order.
            clock: what the recording's time goes by.
            start_s: second of the recording to begin at.
        """
        self._clock = clock
        self._start = start_s
        self._began = clock.monotonic()
        self._told = [line for line in lines if "status" in line or "down" in line]
        self._times = [line["t"] for line in self._told]
        self._events = [(line["t"], row) for line in lines for row in line.get("events", ())]
        self._samples = [line for line in lines if "samples" in line]
        self._answers: dict[str, list[_Line]] = {}
        for line in lines:
            if "path" in line:
                self._answers.setdefault(_name(line["path"], line["query"]), []).append(line)
        self.span_s = float(self._times[-1]) + 1.0
        first = next(line for line in self._told if "status" in line)
        self._origin_ms = first["status"]["at_ms"] - round(first["t"] * 1000)

    def _now(self) -> tuple[int, float]:
        """Return how often the recording was over, and the second it is at."""
        played = self._start + self._clock.monotonic() - self._began
        return int(played // self.span_s), played % self.span_s

    def _moved(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Return an answer with its times of day moved to now."""
        now = self._now()[1]
        return _shifted(value, self._clock.now_ms() - self._origin_ms - round(now * 1000))

    async def status(self) -> Mapping[str, object]:
        """Return the status of this second.

        Raises:
            UnreachableError: if nobody answered then.
        """
        at = bisect_right(self._times, self._now()[1]) - 1
        line = self._told[max(at, 0)]
        if "down" in line:
            raise UnreachableError(f"the daemon was killed here on purpose: {line['down']}")
        moved: Mapping[str, object] = self._moved(line["status"])
        return moved

    async def events(self, after: int) -> Sequence[Mapping[str, object]]:
        """Return the events that have happened; their numbers rise from one play to the next."""
        rounds, now = self._now()
        last = max((row["seq"] for _, row in self._events), default=0)
        rows = [
            {**row, "seq": row["seq"] + turn * last}
            for turn in {max(rounds - 1, 0), rounds}
            for t, row in self._events
            if turn < rounds or t <= now
        ]
        fresh = [row for row in rows if row["seq"] > after]
        return list(map(self._moved, sorted(fresh, key=lambda row: int(row["seq"]))))

    async def get(self, path: str, query: Mapping[str, str | int]) -> object:
        """Return what the daemon answered last; an answer of later rather than none.

        Raises:
            UsageError: if the recording has no answer at all.
        """
        if path == "/v1/samples":
            return {"samples": list(map(self._moved, self._listed(query)))}
        found = self._answers.get(_name(path, query))
        if not found:
            raise UsageError("the recording has no answer to this")
        now = self._now()[1]
        line = next((x for x in reversed(found) if x["t"] <= now), found[0])
        return self._moved(line["reply"])

    def _listed(self, query: Mapping[str, str | int]) -> Iterator[_Line]:
        now = self._now()[1]
        rows: list[_Line] = next(
            (x["samples"] for x in reversed(self._samples) if x["t"] <= now), []
        )
        wanted = {name: query[name] for name in _FILTERS if name in query}
        left = int(query.get("limit", 50))
        for row in rows:
            fits = row["id"] > int(query.get("after", 0)) and wanted.items() <= row.items()
            if fits and left > 0:
                left -= 1
                yield row

    async def post(self, path: str, body: Mapping[str, object], *, key: str = "") -> object:
        """Count as a dry run does; change nothing.

        Raises:
            UsageError: for everything but a dry run.
        """
        del key  # nothing counts, so nothing counts twice
        if body.get("dry_run") is True:
            return {"n": await self._would(body), "dry_run": True}
        raise UsageError(f"this is a recording, nothing was changed ({path})")

    async def _would(self, body: Mapping[str, object]) -> int:
        named = body.get("samples")
        if isinstance(named, list):
            return len(named)
        causes: Any = await self.get("/v1/failures", {})
        return sum(c["n"] for c in causes["failures"] if c["cause"] == body.get("cause"))

    async def close(self) -> None:
        """Nothing is held."""


def _name(path: str, query: Mapping[str, str | int]) -> str:
    """Return what a question is found by; how much was asked for makes no difference."""
    pairs = sorted((k, str(v)) for k, v in query.items() if k not in ("limit", "brief"))
    return f"{path} {pairs}"


def _shifted(value: Any, by: int) -> Any:  # noqa: ANN401 - JSON
    """Return JSON with every time of day later by `by` milliseconds."""
    if isinstance(value, list):
        return [_shifted(item, by) for item in value] if _nested(value) else value
    if isinstance(value, Mapping):
        return {
            name: item + by if _is_time(name, item) else _shifted(item, by)
            for name, item in value.items()
        }
    return value


def _nested(value: Sequence[object]) -> bool:
    """Whether a list may hold times; lists of token ids are long and hold none."""
    return bool(value) and isinstance(value[0], list | Mapping)


def _is_time(name: str, value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (name.endswith("_ms") or name == "full_at")
        and value > _LONG_AGO_MS
    )
