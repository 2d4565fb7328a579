"""The status document: what the daemon knows, as JSON for people and programs.

Guarantee: every key below is always there; a number that is not known is null. Every field is
described in docs/status.md (a test compares the two); the terminal UI reads it in `tui/model.py`.
Raise `API_VERSION` when a field changes its meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from eagled.clock import iso_utc
from eagled.control.protocol import API_VERSION
from eagled.disk import DiskView
from eagled.progress import EVERY_S, SPAN_S, Before, Progress, time_left
from eagled.store.records import CounterRow, DatasetRow, LaneRow
from eagled.types import SampleState
from eagled.workers.generation.admission import LaneAdmission
from eagled.workers.generation.rates import LaneMetrics

State = SampleState
OPEN_STATES = (State.WAITING, State.QUEUED, State.GENERATING, State.RETRY_WAIT)
ANSWERED_STATES = (State.GENERATED, State.EXTRACTING, State.EXTRACTED)
_WORD_OF = {state: state.value for state in State}
Tally = dict[str, int]  # samples by the word of their state
_NO_SAMPLES: Tally = dict.fromkeys(_WORD_OF.values(), 0)
_TO_EXTRACT = (*OPEN_STATES, State.GENERATED, State.EXTRACTING)


@dataclass(frozen=True, slots=True)
class ServerView:
    """One endpoint; what its load endpoint does not say is None."""

    url: str
    state: str
    version: str | None
    model: str | None
    in_flight: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    gen_tok_per_s: float | None
    faults: int
    error: str | None
    leaving: bool = False
    budget_tokens: int | None = None
    free_tokens: int | None = None
    used_tokens: int | None = None
    total_tokens: int | None = None
    admission: str | None = None
    retractions: int = 0
    could_run: int | None = None


@dataclass(frozen=True, slots=True)
class ShardTotals:
    """All shards that count."""

    shards: int
    samples: int
    tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ExtractionView:
    """What extraction does: `state` is off, paused, waiting or running; `reason` says why."""

    state: str
    reason: str
    paused: bool
    workers: int
    pending_tokens: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something a person should look at; `level` is info, warn or error."""

    kind: str
    level: str
    text: str
    since_ms: int
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a status document is made of.

    Attributes:
        run: name of the run.
        version: of eagled.
        at_ms: UTC milliseconds of this document.
        started_ms: UTC milliseconds at which the daemon started.
        phase: what the run does, in one word.
        oldest_running_s: seconds that the oldest request has been at a server.
        held_text: answers in the hands of text workers.
    """

    run: str
    version: str
    at_ms: int
    started_ms: int
    phase: str
    pid: int
    epoch: int
    counters: Sequence[CounterRow]
    lanes: Sequence[LaneRow]
    lane_metrics: Mapping[str, LaneMetrics]
    datasets: Sequence[DatasetRow]
    servers: Sequence[ServerView]
    shards: ShardTotals
    extraction: ExtractionView
    disk: DiskView | None
    alarms: Sequence[Alarm]
    oldest_running_s: float | None
    held_text: int
    stale_completions: int
    queue_depth: int
    workers: Mapping[str, int]
    admission: Mapping[str, LaneAdmission] = field(default_factory=dict)


def build_status(facts: Facts, progress: Progress) -> dict[str, Any]:
    """Return the document of this moment."""
    lanes, datasets = _tallies(facts.counters)
    left = sum(_of(states, _TO_EXTRACT) for states in datasets.values())
    return {
        "api": API_VERSION,
        "run": facts.run,
        "version": facts.version,
        "pid": facts.pid,
        "epoch": facts.epoch,
        "at_ms": facts.at_ms,
        "started_ms": facts.started_ms,
        "uptime_s": round((facts.at_ms - facts.started_ms) / 1000, 1),
        "phase": facts.phase,
        "lanes": {
            r.name: _lane(r, lanes.get(r.name, _NO_SAMPLES), facts, progress) for r in facts.lanes
        },
        "datasets": {
            r.name: _dataset(r, datasets.get(r.name, _NO_SAMPLES), progress) for r in facts.datasets
        },
        "servers": [asdict(server) for server in facts.servers],
        "extraction": _extraction(facts, progress, left),
        "disk": _disk(facts.disk),
        "text": {"in_hand": facts.held_text},
        "store": {
            "queue_depth": facts.queue_depth,
            "stale_completions": facts.stale_completions,
        },
        "workers": dict(facts.workers),
        "oldest_running_s": _rounded(facts.oldest_running_s),
        "alarms": [asdict(alarm) for alarm in facts.alarms],
    }


def finished_of(counters: Iterable[CounterRow]) -> Counter[str]:
    """Return how many samples are over with generation, by lane and by dataset."""
    out: Counter[str] = Counter()
    for row in counters:
        if row.state not in OPEN_STATES:
            out[f"dataset:{row.dataset}"] += row.n
            if row.lane is not None:
                out[f"lane:{row.lane}"] += row.n
    return out


def held_of(
    lanes: Iterable[LaneRow], datasets: Iterable[DatasetRow], *, everything: bool
) -> frozenset[str]:
    """Return the lanes and datasets that an operator holds, by the keys of `finished_of`."""
    rows = [(f"lane:{row.name}", row.paused) for row in lanes]
    rows += [(f"dataset:{row.name}", row.paused) for row in datasets]
    return frozenset(key for key, paused in rows if paused or everything)


def before_of(snapshot: Path, now_ms: int) -> Before:
    """Return what the last document of the life before tells of it; blocking.

    Nothing when there is no document that can be read, or only one of a clock that is ahead.
    """
    try:
        document = orjson.loads(snapshot.read_bytes())
        rows = {f"{kind}:{name}": row for kind in ("lane", "dataset")
                for name, row in document[f"{kind}s"].items()}  # fmt: skip
        found = {key: _rate_told(row) for key, row in rows.items()}
        away_s = (now_ms - document["at_ms"]) / 1000
        histories = {n: _history_told(lane, away_s) for n, lane in document["lanes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Before()
    rates = {key: rate for key, rate in found.items() if rate is not None}
    return Before(rates, histories) if away_s >= 0 else Before()


def _history_told(row: Mapping[str, Any], away_s: float) -> list[float]:
    """Return a lane's history with zeros for the time since."""
    told = [float(v) for v in row["history"]]
    return [*told, *[0.0] * round(min(away_s, SPAN_S) / EVERY_S)] if any(told) else []


def _rate_told(row: Mapping[str, Any]) -> float | None:
    """Return the rate that a row's time left was made of."""
    eta_s, n = row["eta_s"], sum(row[state] for state in OPEN_STATES)
    return n / eta_s if eta_s and n > 0 and eta_s > 0 else None


def open_work(counters: Iterable[CounterRow]) -> tuple[int, int]:
    """Return how many samples wait for an answer, and how many answers wait for states."""
    counters = list(counters)
    return (
        _count(counters, OPEN_STATES),
        _count(counters, (State.GENERATED, State.EXTRACTING)),
    )


def _count(counters: Iterable[CounterRow], states: Iterable[SampleState]) -> int:
    wanted = set(states)
    return sum(row.n for row in counters if row.state in wanted)


def _tallies(
    counters: Iterable[CounterRow],
) -> tuple[Mapping[str | None, Tally], Mapping[str, Tally]]:
    """Return the samples of each lane and of each dataset by state, in one pass."""
    lanes: dict[str | None, Tally] = {}
    datasets: dict[str, Tally] = {}
    for row in counters:
        word, n = _WORD_OF[row.state], row.n
        lane = lanes.get(row.lane)
        if lane is None:
            lane = lanes[row.lane] = _NO_SAMPLES.copy()
        lane[word] += n
        dataset = datasets.get(row.dataset)
        if dataset is None:
            dataset = datasets[row.dataset] = _NO_SAMPLES.copy()
        dataset[word] += n
    return lanes, datasets


def _of(tally: Tally, states: Iterable[SampleState]) -> int:
    return sum(tally[state] for state in states)


def _lane(row: LaneRow, mine: Tally, facts: Facts, progress: Progress) -> dict[str, Any]:
    metrics = facts.lane_metrics.get(row.name)
    open_ = _of(mine, OPEN_STATES)
    return {
        **mine,
        "paused": row.paused,
        "limit": row.limit,
        "context": row.context,
        "in_flight": metrics.in_flight if metrics else 0,
        "out_tok_per_s": _rounded(metrics.out_tok_per_s if metrics else None),
        "in_tok_per_s": _rounded(metrics.in_tok_per_s if metrics else None),
        "p50_s": _rounded(metrics.p50_s if metrics else None),
        "p95_s": _rounded(metrics.p95_s if metrics else None),
        "eta_s": _rounded(time_left(open_, progress.finish_rate(f"lane:{row.name}"))),
        "history": progress.out_history(row.name),
        **_admission(facts.admission.get(row.name)),
    }


def _admission(found: LaneAdmission | None) -> dict[str, Any]:
    return {
        "target": found.target if found is not None else None,
        "target_reason": found.why if found is not None else None,
        "share": found.share if found is not None else None,
        "limit_costs": _rounded(found.limit_costs if found is not None else None, 4),
    }


def _dataset(row: DatasetRow, mine: Tally, progress: Progress) -> dict[str, Any]:
    open_ = _of(mine, OPEN_STATES)
    return {
        **mine,
        "total": sum(mine.values()),
        "done": _of(mine, ANSWERED_STATES),
        "priority": row.priority,
        "paused": row.paused,
        "mode": row.mode.value,
        "complete": row.complete,
        "rows": row.n_rows,
        "kept": row.n_kept,
        "rejected_rows": row.n_rejected,
        "eta_s": _rounded(time_left(open_, progress.finish_rate(f"dataset:{row.name}"))),
    }


def _extraction(facts: Facts, progress: Progress, left: int) -> dict[str, Any]:
    totals = facts.shards
    rate = progress.extract_rate()
    return {
        **asdict(facts.extraction),
        "samples": totals.samples,
        "shards": totals.shards,
        "tokens": totals.tokens,
        "bytes": totals.n_bytes,
        "bytes_per_token": _rounded(bytes_per_token(totals)),
        "samples_per_s": _rounded(rate, 3),
        "tok_per_s": _rounded(progress.shard_token_rate()),
        "eta_s": None if facts.extraction.state == "off" else _rounded(time_left(left, rate)),
    }


def bytes_per_token(totals: ShardTotals) -> float | None:
    """Return measured bytes a token; None before the first shard."""
    return totals.n_bytes / totals.tokens if totals.tokens else None


def tokens_left(counters: Iterable[CounterRow], totals: ShardTotals) -> int | None:
    """Return the tokens still to extract, by the mean of those that were; None before any."""
    left = _count(counters, _TO_EXTRACT)
    return round(left * totals.tokens / totals.samples) if totals.samples else None


def _disk(view: DiskView | None) -> dict[str, Any]:
    names = (
        "used_bytes", "free_bytes", "budget_bytes", "reserve_bytes", "projected_bytes",
        "own_bytes_per_s", "others_bytes_per_s",
    )  # fmt: skip
    if view is None:
        return {**dict.fromkeys(names), "full_at": None, "paused": False, "reason": ""}
    return {
        **{name: getattr(view, name) for name in names},
        "full_at": view.full_at_ms,
        "paused": view.paused,
        "reason": view.reason,
    }


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def status_line(document: Mapping[str, Any]) -> str:
    """Return one line for `systemctl status`."""
    lanes = document["lanes"].values()
    in_flight = sum(lane["in_flight"] for lane in lanes)
    queued = sum(lane["queued"] for lane in lanes)
    rate = sum(lane["out_tok_per_s"] or 0 for lane in lanes)
    alarms = f", {len(document['alarms'])} alarms" if document["alarms"] else ""
    at = iso_utc(document["at_ms"])[11:19]
    return (
        f"{document['phase']} at {at} UTC: {in_flight} in flight, {queued} queued, "
        f"{rate:.0f} tokens/s, {document['extraction']['shards']} shards{alarms}"
    )
