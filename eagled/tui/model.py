"""The status document as frozen records.

`parse_status` is tolerant by design: the document comes from a daemon that may be older or newer.
A missing or odd value becomes None (shown as a dash), an unknown key is ignored, and no document
raises. Every text is made printable here, once; `key` keeps the exact name for the control API.
The document is produced by `eagled/status.py` and described in docs/status.md: keep in step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagled.printable import printable

MAX_ROWS = 2000  # lanes, datasets or servers shown; a broken document must not fill the memory
MAX_ALARMS = 100
MAX_POINTS = 1000
HISTORY_STEP_S = 5.0  # between two points of a lane's history: `EVERY_S` of eagled/progress.py
NAME_CHARS = 200
TEXT_CHARS = 300
_HUGE = 1e300  # no count, size or time comes near; beyond it floats overflow


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
    """One endpoint; `in_flight` are our requests, `running` and `waiting` all that it has."""

    label: str
    state: str | None
    in_flight: float | None
    running: float | None
    waiting: float | None
    kv_share: float | None
    out_rate: float | None
    faults: float | None
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
    """The governor's numbers, in bytes.

    `to_come` is what the rest of the run will write, `full_s` the time until the room ends; None
    when that is not known, or when the work ends before.
    """

    used: float | None
    free: float | None
    budget: float | None
    reserve: float | None
    to_come: float | None
    full_s: float | None
    paused: bool | None
    note: str | None


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

    `at_ms` is UTC milliseconds of when the daemon made it; `oldest_s` how long the oldest request
    has been at a server.
    """

    run: str | None
    phase: str | None
    at_ms: float | None
    uptime_s: float | None
    oldest_s: float | None
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


def _number(doc: Mapping[str, object], key: str) -> float | None:
    value = doc.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _HUGE else None  # NaN compares false


def _flag(doc: Mapping[str, object], key: str) -> bool | None:
    value = doc.get(key)
    return value if isinstance(value, bool) else None


def _text(doc: Mapping[str, object], key: str, limit: int = TEXT_CHARS) -> str | None:
    value = doc.get(key)
    return printable(value, limit) if isinstance(value, str) and value else None


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
    return Counts(*(_number(doc, s) for s in STATES))


def _series(value: object) -> tuple[float, ...]:
    points = value[-MAX_POINTS:] if isinstance(value, list) else []
    numbers = (_number({"v": v}, "v") for v in points)
    return tuple(max(0.0, n) for n in numbers if n is not None)


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
        history=_series(doc.get("history")),
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


def _server(name: str, doc: Mapping[str, object]) -> Server:
    return Server(
        label=printable(name.removeprefix("http://"), NAME_CHARS),
        state=_text(doc, "state", limit=20),
        in_flight=_number(doc, "in_flight"),
        running=_number(doc, "running"),
        waiting=_number(doc, "waiting"),
        kv_share=_number(doc, "kv_usage"),
        out_rate=_number(doc, "gen_tok_per_s"),
        faults=_number(doc, "faults"),
        note=_text(doc, "error"),
    )


def _extraction(doc: Mapping[str, object]) -> Extraction:
    return Extraction(
        state=_text(doc, "state", limit=40),
        paused=_flag(doc, "paused"),
        workers=_number(doc, "workers"),
        samples=_number(doc, "samples"),
        shards=_number(doc, "shards"),
        n_bytes=_number(doc, "bytes"),
        bytes_per_token=_number(doc, "bytes_per_token"),
        sample_rate=_number(doc, "samples_per_s"),
        token_rate=_number(doc, "tok_per_s"),
        eta_s=_number(doc, "eta_s"),
        note=_text(doc, "reason"),
    )


def _disk(doc: Mapping[str, object], at_ms: float | None) -> Disk:
    full_at = _number(doc, "full_at")
    return Disk(
        used=_number(doc, "used_bytes"),
        free=_number(doc, "free_bytes"),
        budget=_number(doc, "budget_bytes"),
        reserve=_number(doc, "reserve_bytes"),
        to_come=_number(doc, "projected_bytes"),
        full_s=None if full_at is None or at_ms is None else max(0.0, full_at - at_ms) / 1000,
        paused=_flag(doc, "paused"),
        note=_text(doc, "reason"),
    )


def _alarm(value: object) -> Alarm | None:
    doc = _mapping(value)
    text = _text(doc, "text") or _text(doc, "kind")
    if text is None:
        return None
    level = (_text(doc, "level", limit=10) or "warn").lower()
    return Alarm(level, text, _number(doc, "since_ms"))


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
    at_ms = _number(top, "at_ms")
    return Snapshot(
        run=_text(top, "run", limit=64),
        phase=_text(top, "phase", limit=60),
        at_ms=at_ms,
        uptime_s=_number(top, "uptime_s"),
        oldest_s=_number(top, "oldest_running_s"),
        lanes=tuple(_lane(n, e) for n, e in _entries(top.get("lanes"))),
        datasets=tuple(_dataset(n, e) for n, e in _entries(top.get("datasets"))),
        servers=tuple(_server(n, e) for n, e in _entries(top.get("servers"))),
        extraction=_extraction(_mapping(top["extraction"])) if top.get("extraction") else None,
        disk=_disk(_mapping(top["disk"]), at_ms) if top.get("disk") else None,
        alarms=_alarms(top.get("alarms")),
    )
