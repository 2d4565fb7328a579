"""The status document as frozen records.

`parse_status` is tolerant by design: the document comes from a daemon that may be older or newer.
A missing or odd value becomes None (shown as a dash), an unknown key is ignored, and no document
raises. Every text is made printable here, once; `key` keeps the exact name for the control API.
The document is produced by `eagled/status.py` and described in docs/status.md: keep in step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagled.printable import printable

MAX_ROWS = 2000  # lanes, datasets or servers shown; a broken document must not fill the memory
MAX_ALARMS = 100
NAME_CHARS = 200
TEXT_CHARS = 300


@dataclass(frozen=True, slots=True)
class Counts:
    """Samples by state; None where the daemon does not say."""

    waiting: float | None = None
    queued: float | None = None
    generating: float | None = None
    retry_wait: float | None = None
    generated: float | None = None
    extracting: float | None = None
    extracted: float | None = None
    failed: float | None = None
    rejected: float | None = None
    cancelled: float | None = None

    @property
    def done(self) -> float | None:
        """Samples whose answer is safe: generated, extracting or extracted."""
        return add(self.generated, self.extracting, self.extracted)

    @property
    def total(self) -> float | None:
        """Samples in any state."""
        return add(self.open, self.done, self.failed, self.rejected, self.cancelled)

    @property
    def open(self) -> float | None:
        """Samples whose answer is still to come."""
        return add(self.waiting, self.queued, self.generating, self.retry_wait)

    def plus(self, other: Counts) -> Counts:
        """Return the sum, state by state."""
        return Counts(*(add(getattr(self, s), getattr(other, s)) for s in STATES))


STATES = tuple(Counts.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane; rates in tokens a second, times in seconds."""

    key: str
    label: str
    paused: bool | None
    limit: float | None
    in_flight: float | None
    context: float | None
    counts: Counts
    out_rate: float | None
    in_rate: float | None
    p50_s: float | None
    p95_s: float | None
    eta_s: float | None
    history: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset; `mode` is whose answers it trains on."""

    key: str
    label: str
    paused: bool | None
    priority: float | None
    mode: str | None
    complete: bool | None
    counts: Counts
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Server:
    """One endpoint; shares are 0 to 1, rates tokens a second."""

    label: str
    state: str | None
    running: float | None
    waiting: float | None
    kv_share: float | None
    hit_share: float | None
    out_rate: float | None
    limit: float | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Extraction:
    """The hidden states' side; rates a second."""

    state: str | None
    paused: bool | None
    workers: float | None
    samples: float | None
    shards: float | None
    n_bytes: float | None
    bytes_per_token: float | None
    sample_rate: float | None
    token_rate: float | None
    eta_s: float | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Disk:
    """The governor's numbers, in bytes; `full_s` is the time until the budget is used."""

    used: float | None
    free: float | None
    budget: float | None
    reserve: float | None
    projected: float | None
    full_s: float | None
    paused: bool | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a person should look at."""

    level: str
    text: str
    since_ms: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the run's event log."""

    seq: int
    at_ms: float | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One status document.

    `at_ms` is UTC milliseconds of when the daemon made it; `history_step_s` the seconds between
    two points of the lanes' histories, if the daemon keeps any.
    """

    run: str | None
    phase: str | None
    at_ms: float | None
    uptime_s: float | None
    history_step_s: float | None
    lanes: tuple[Lane, ...]
    datasets: tuple[Dataset, ...]
    servers: tuple[Server, ...]
    extraction: Extraction | None
    disk: Disk | None
    alarms: tuple[Alarm, ...]

    @property
    def totals(self) -> Counts:
        """Samples by state over all datasets, or over all lanes when no dataset is told."""
        total = Counts()
        for item in self.datasets or self.lanes:
            total = total.plus(item.counts)
        return total


def add(*values: float | None) -> float | None:
    """Return the sum of what is known, None when nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _number(doc: Mapping[str, object], *keys: str) -> float | None:
    for key in keys:
        value = doc.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value) if abs(value) < 1e300 else math.inf  # noqa: PLR2004 - float range
            if math.isfinite(number):
                return number
    return None


def _flag(doc: Mapping[str, object], *keys: str) -> bool | None:
    for key in keys:
        value = doc.get(key)
        if isinstance(value, bool):
            return value
    return None


def _text(doc: Mapping[str, object], *keys: str, limit: int = TEXT_CHARS) -> str | None:
    for key in keys:
        value = doc.get(key)
        if isinstance(value, str) and value:
            return printable(value, limit)
    return None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _entries(value: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield (name, entry) of a mapping by name, or of a list whose entries carry their name."""
    if isinstance(value, Mapping):
        pairs = [(str(k), _mapping(v)) for k, v in list(value.items())[:MAX_ROWS]]
    elif isinstance(value, list):
        entries = [_mapping(v) for v in value[:MAX_ROWS]]
        pairs = [(str(e.get("name") or e.get("url") or "?"), e) for e in entries]
    else:
        pairs = []
    seen: set[str] = set()
    for name, entry in pairs:
        if name not in seen:
            seen.add(name)
            yield name, entry


def _counts(doc: Mapping[str, object]) -> Counts:
    nested = _mapping(doc.get("counts") or doc.get("states") or doc.get("samples"))
    return Counts(*(_number(doc, s) if s in doc else _number(nested, s) for s in STATES))


def _series(doc: Mapping[str, object], *keys: str) -> tuple[float, ...]:
    for key in keys:
        value = doc.get(key)
        if isinstance(value, list):
            numbers = [_number({"v": v}, "v") for v in value[-1000:]]
            return tuple(max(0.0, n) for n in numbers if n is not None)
    return ()


def _lane(name: str, doc: Mapping[str, object]) -> Lane:
    return Lane(
        key=name,
        label=printable(name, NAME_CHARS),
        paused=_flag(doc, "paused"),
        limit=_number(doc, "limit"),
        in_flight=_number(doc, "in_flight"),
        context=_number(doc, "context"),
        counts=_counts(doc),
        out_rate=_number(doc, "out_tok_per_s"),
        in_rate=_number(doc, "in_tok_per_s"),
        p50_s=_number(doc, "p50_s"),
        p95_s=_number(doc, "p95_s"),
        eta_s=_number(doc, "eta_s"),
        history=_series(doc, "out_tok_per_s_history", "history"),
    )


def _dataset(name: str, doc: Mapping[str, object]) -> Dataset:
    return Dataset(
        key=name,
        label=printable(name, NAME_CHARS),
        paused=_flag(doc, "paused"),
        priority=_number(doc, "priority"),
        mode=_text(doc, "mode", limit=20),
        complete=_flag(doc, "complete"),
        counts=_counts(doc),
        eta_s=_number(doc, "eta_s"),
    )


def _server_state(doc: Mapping[str, object]) -> str | None:
    healthy = _flag(doc, "ok", "healthy", "up")
    word = _text(doc, "state", "status", limit=20)
    return word or (None if healthy is None else "ok" if healthy else "down")


def _server(name: str, doc: Mapping[str, object]) -> Server:
    load = _mapping(doc.get("load"))
    both = {**load, **doc}
    return Server(
        label=printable(name.removeprefix("http://"), NAME_CHARS),
        state=_server_state(doc),
        running=_number(both, "running", "num_running_reqs", "in_flight"),
        waiting=_number(both, "waiting", "queue", "num_waiting_reqs", "num_queue_reqs"),
        kv_share=_number(both, "kv_share", "kv_usage", "token_usage"),
        hit_share=_number(both, "cache_hit_rate", "hit_share"),
        out_rate=_number(both, "out_tok_per_s", "gen_tok_per_s", "gen_throughput"),
        limit=_number(both, "max_running", "max_running_requests", "limit", "max_in_flight"),
        note=_text(both, "error", "reason", "note", "detail", "model"),
    )


def _extraction(doc: Mapping[str, object]) -> Extraction:
    return Extraction(
        state=_text(doc, "state", "status", limit=40),
        paused=_flag(doc, "paused"),
        workers=_number(doc, "workers"),
        samples=_number(doc, "samples", "extracted", "n_samples"),
        shards=_number(doc, "shards", "n_shards"),
        n_bytes=_number(doc, "bytes", "shard_bytes", "file_bytes"),
        bytes_per_token=_number(doc, "bytes_per_token"),
        sample_rate=_number(doc, "samples_per_s"),
        token_rate=_number(doc, "tok_per_s", "tokens_per_s"),
        eta_s=_number(doc, "eta_s"),
        note=_text(doc, "reason", "note", "pause_reason", "error"),
    )


def _disk(doc: Mapping[str, object], at_ms: float | None) -> Disk:
    full_at = _number(doc, "full_at", "full_at_ms")
    full_s = _number(doc, "full_in_s", "full_s")
    if full_s is None and full_at is not None and at_ms is not None:
        full_s = max(0.0, (_as_ms(full_at) - at_ms) / 1000)
    return Disk(
        used=_number(doc, "used_bytes"),
        free=_number(doc, "free_bytes"),
        budget=_number(doc, "budget_bytes"),
        reserve=_number(doc, "reserve_bytes"),
        projected=_number(doc, "projected_bytes"),
        full_s=full_s,
        paused=_flag(doc, "paused"),
    )


def _as_ms(stamp: float) -> float:
    """Unix seconds or milliseconds as milliseconds; 1e11 s lies in the year 5138."""
    return stamp * 1000 if stamp < 1e11 else stamp  # noqa: PLR2004 - see above


def _alarm(value: object) -> Alarm | None:
    if isinstance(value, str):
        return Alarm("warn", printable(value, TEXT_CHARS), None)
    doc = _mapping(value)
    text = _text(doc, "text", "message", "detail", "name", "kind")
    if text is None:
        return None
    return Alarm(
        level=(_text(doc, "level", "severity", limit=10) or "warn").lower(),
        text=text,
        since_ms=_number(doc, "since_ms", "at_ms", "since"),
    )


def _alarms(value: object) -> tuple[Alarm, ...]:
    items = value if isinstance(value, list) else []
    return tuple(a for a in map(_alarm, items[:MAX_ALARMS]) if a is not None)


def parse_event(row: object) -> Event | None:
    """Return an event of the log, None when it has no number."""
    doc = _mapping(row)
    seq = _number(doc, "seq")
    if seq is None:
        return None
    parts = (_text(doc, "subject", limit=NAME_CHARS), _text(doc, "detail"))
    text = printable("  ".join(p for p in parts if p), TEXT_CHARS)
    return Event(int(seq), _number(doc, "at_ms"), _text(doc, "kind", limit=24) or "?", text)


def parse_status(doc: object) -> Snapshot:
    """Return the snapshot that a status document holds; never raises for any JSON value."""
    top = _mapping(doc)
    at_ms = _number(top, "at_ms", "now_ms", "as_of_ms")
    run = top.get("run")
    phase = top.get("phase")
    return Snapshot(
        run=_text(_mapping(run), "name", limit=64) or _text(top, "run", "name", limit=64),
        phase=_text(_mapping(phase), "name", "phase", limit=60) or _text(top, "phase", limit=60),
        at_ms=at_ms,
        uptime_s=_number(top, "uptime_s"),
        history_step_s=_number(top, "history_step_s"),
        lanes=tuple(_lane(n, e) for n, e in _entries(top.get("lanes"))),
        datasets=tuple(_dataset(n, e) for n, e in _entries(top.get("datasets"))),
        servers=tuple(_server(n, e) for n, e in _entries(top.get("servers"))),
        extraction=_extraction(_mapping(top["extraction"])) if top.get("extraction") else None,
        disk=_disk(_mapping(top["disk"]), at_ms) if top.get("disk") else None,
        alarms=_alarms(top.get("alarms")),
    )
