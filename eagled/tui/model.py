"""The status document as frozen records.

`parse_status` is tolerant by design: the document comes from a daemon that may be older or newer.
A missing or odd value becomes None (shown as a dash), an unknown key is ignored, and no document
raises. Every text is made printable here, once; `key` keeps the exact name for the control API.
The document is produced by `eagled/status.py` and described in docs/status.md: keep in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from eagled.printable import printable

MAX_ROWS = 2000  # lanes, datasets or servers shown; a broken document must not fill the memory
MAX_ALARMS = 100
MAX_POINTS = 1000
HISTORY_STEP_S = 5.0  # between two points of a lane's history: `EVERY_S` of eagled/progress.py
NAME_CHARS = 200
TEXT_CHARS = 300
HELD_PHASES = frozenset({"paused", "draining"})  # an operator holds everything
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


STATES = tuple(Counts.__dataclass_fields__)
_BY_STATE = attrgetter(*STATES)


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum, state by state."""
    return Counts(*(add(*column) for column in zip(*map(_BY_STATE, counts), strict=True)))


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
    target: float | None = None
    target_reason: str | None = None
    share: float | None = None
    limit_costs: float | None = None


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
    """Something that a person should look at; `acknowledged` once one has."""

    level: str
    text: str
    since_ms: float | None
    kind: str = ""
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the run's event log; `uid` is the user who caused it, -1 for eagled itself."""

    seq: int
    at_ms: float | None
    kind: str
    text: str
    uid: int = -1
    subject: str = ""


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
    api: float | None = None
    version: str | None = None
    epoch: float | None = None

    @property
    def held(self) -> bool:
        """Whether an operator holds everything."""
        return self.phase in HELD_PHASES

    @property
    def totals(self) -> Counts:
        """Samples by state over all datasets, or over all lanes when no dataset is told."""
        return sum_counts(item.counts for item in self.datasets or self.lanes)


def add(*values: float | None) -> float | None:
    """Return the sum of what is known, None when nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def number_of(doc: Mapping[str, object], key: str) -> float | None:
    """Return a number of an object, None when it is none."""
    value = doc.get(key)
    if type(value) is float or type(value) is int:  # not bool; asked hundreds of times a tick
        return float(value) if abs(value) < _HUGE else None  # NaN compares false
    return None


def flag_of(doc: Mapping[str, object], key: str) -> bool | None:
    """Return a yes or no of an object, None when it is neither."""
    value = doc.get(key)
    return value if isinstance(value, bool) else None


def text_of(doc: Mapping[str, object], key: str, limit: int = TEXT_CHARS) -> str | None:
    """Return a text of an object, printable and at most `limit` long; None when it is none."""
    value = doc.get(key)
    return printable(value, limit) if isinstance(value, str) and value else None


def mapping_of(value: object) -> Mapping[str, object]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _entries(value: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield (name, entry) of a mapping by name, or of a list whose entries carry their name."""
    if isinstance(value, Mapping):
        pairs = [(str(k), mapping_of(v)) for k, v in list(value.items())[:MAX_ROWS]]
    elif isinstance(value, list):
        entries = [mapping_of(v) for v in value[:MAX_ROWS]]
        pairs = [(str(e.get("name") or e.get("url") or "?"), e) for e in entries]
    else:
        pairs = []
    seen: set[str] = set()
    for name, entry in pairs:
        if name not in seen:
            seen.add(name)
            yield name, entry


def _counts(doc: Mapping[str, object]) -> Counts:
    return Counts(*[number_of(doc, s) for s in STATES])


def _series(value: object) -> tuple[float, ...]:
    points = value[-MAX_POINTS:] if isinstance(value, list) else []
    # twelve lanes have thousands of points a tick
    if set(map(type, points)) == {float} and min(points) >= 0 and sum(points) < _HUGE:
        return tuple(points)
    return tuple(
        float(v) if v > 0 else 0.0 for v in points if type(v) in (float, int) and -_HUGE < v < _HUGE
    )


def _lane(name: str, doc: Mapping[str, object]) -> Lane:
    return Lane(
        key=name,
        label=printable(name, NAME_CHARS),
        paused=flag_of(doc, "paused"),
        limit=number_of(doc, "limit"),
        in_flight=number_of(doc, "in_flight"),
        context=number_of(doc, "context"),
        counts=_counts(doc),
        out_rate=number_of(doc, "out_tok_per_s"),
        in_rate=number_of(doc, "in_tok_per_s"),
        p50_s=number_of(doc, "p50_s"),
        p95_s=number_of(doc, "p95_s"),
        eta_s=number_of(doc, "eta_s"),
        history=_series(doc.get("history")),
        target=number_of(doc, "target"),
        target_reason=text_of(doc, "target_reason", limit=80),
        share=number_of(doc, "share"),
        limit_costs=number_of(doc, "limit_costs"),
    )


def _dataset(name: str, doc: Mapping[str, object]) -> Dataset:
    return Dataset(
        key=name,
        label=printable(name, NAME_CHARS),
        paused=flag_of(doc, "paused"),
        priority=number_of(doc, "priority"),
        mode=text_of(doc, "mode", limit=20),
        complete=flag_of(doc, "complete"),
        counts=_counts(doc),
        eta_s=number_of(doc, "eta_s"),
    )


def _server(name: str, doc: Mapping[str, object]) -> Server:
    return Server(
        label=printable(name.removeprefix("http://"), NAME_CHARS),
        state=text_of(doc, "state", limit=20),
        in_flight=number_of(doc, "in_flight"),
        running=number_of(doc, "running"),
        waiting=number_of(doc, "waiting"),
        kv_share=number_of(doc, "kv_usage"),
        out_rate=number_of(doc, "gen_tok_per_s"),
        faults=number_of(doc, "faults"),
        note=text_of(doc, "error"),
    )


def _extraction(doc: Mapping[str, object]) -> Extraction:
    return Extraction(
        state=text_of(doc, "state", limit=40),
        paused=flag_of(doc, "paused"),
        workers=number_of(doc, "workers"),
        samples=number_of(doc, "samples"),
        shards=number_of(doc, "shards"),
        n_bytes=number_of(doc, "bytes"),
        bytes_per_token=number_of(doc, "bytes_per_token"),
        sample_rate=number_of(doc, "samples_per_s"),
        token_rate=number_of(doc, "tok_per_s"),
        eta_s=number_of(doc, "eta_s"),
        note=text_of(doc, "reason"),
    )


def _disk(doc: Mapping[str, object], at_ms: float | None) -> Disk:
    full_at = number_of(doc, "full_at")
    return Disk(
        used=number_of(doc, "used_bytes"),
        free=number_of(doc, "free_bytes"),
        budget=number_of(doc, "budget_bytes"),
        reserve=number_of(doc, "reserve_bytes"),
        to_come=number_of(doc, "projected_bytes"),
        full_s=None if full_at is None or at_ms is None else max(0.0, full_at - at_ms) / 1000,
        paused=flag_of(doc, "paused"),
        note=text_of(doc, "reason"),
    )


def _alarm(value: object) -> Alarm | None:
    doc = mapping_of(value)
    text = text_of(doc, "text") or text_of(doc, "kind")
    if text is None:
        return None
    level = (text_of(doc, "level", limit=10) or "warn").lower()
    kind = doc.get("kind")
    seen = flag_of(doc, "acknowledged") is True
    return Alarm(level, text, number_of(doc, "since_ms"), str(kind or ""), seen)


def _alarms(value: object) -> tuple[Alarm, ...]:
    items = value if isinstance(value, list) else []
    return tuple(a for a in map(_alarm, items[:MAX_ALARMS]) if a is not None)


def parse_event(row: object) -> Event | None:
    """Return an event of the log, None when it has no number."""
    doc = mapping_of(row)
    seq = number_of(doc, "seq")
    if seq is None:
        return None
    parts = (text_of(doc, "subject", limit=NAME_CHARS), text_of(doc, "detail"))
    text = printable("  ".join(p for p in parts if p), TEXT_CHARS)
    kind, uid = text_of(doc, "kind", limit=24) or "?", number_of(doc, "uid")
    who = -1 if uid is None else int(uid)
    return Event(int(seq), number_of(doc, "at_ms"), kind, text, who, parts[0] or "")


def parse_status(doc: object) -> Snapshot:
    """Return the snapshot that a status document holds; never raises for any JSON value."""
    top = mapping_of(doc)
    at_ms = number_of(top, "at_ms")
    return Snapshot(
        run=text_of(top, "run", limit=64),
        phase=text_of(top, "phase", limit=60),
        at_ms=at_ms,
        uptime_s=number_of(top, "uptime_s"),
        oldest_s=number_of(top, "oldest_running_s"),
        lanes=tuple(_lane(n, e) for n, e in _entries(top.get("lanes"))),
        datasets=tuple(_dataset(n, e) for n, e in _entries(top.get("datasets"))),
        servers=tuple(_server(n, e) for n, e in _entries(top.get("servers"))),
        extraction=_extraction(mapping_of(top["extraction"])) if top.get("extraction") else None,
        disk=_disk(mapping_of(top["disk"]), at_ms) if top.get("disk") else None,
        alarms=_alarms(top.get("alarms")),
        api=number_of(top, "api"),
        version=text_of(top, "version", limit=40),
        epoch=number_of(top, "epoch"),
    )
