"""What the two tables of the first screen show: lanes and datasets, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from eagled.tui.lines import Column, Line, Span, choose, head_line, row_line
from eagled.tui.model import Dataset, Lane, add, sum_counts
from eagled.tui.text import MISSING, bar, count, duration, rate, spark

PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane with its rate history.

    `waits` are the fields whose change is on its way; `held`: everything stands still.
    """

    lane: Lane
    series: tuple[float, ...]
    critical: bool = False
    waits: frozenset[str] = field(default_factory=frozenset)
    held: bool = False


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A dataset; `waits` and `held` as in `LaneRow`."""

    dataset: Dataset
    waits: frozenset[str] = field(default_factory=frozenset)
    held: bool = False


@dataclass(frozen=True, slots=True)
class TableText:
    """A table as lines: the titles, one line a row with its key, and a sum below (or None)."""

    head: Line
    rows: tuple[tuple[str, Line], ...]
    foot: Line | None = None


def _share(done: float | None, total: float | None) -> float | None:
    return None if done is None or not total else done / total


def limit_text(limit: float | None) -> str:
    """Return a lane's limit; 0 means the server's own maximum."""
    return "max" if limit == 0 else count(limit)


def _run_limit(row: LaneRow, _: int) -> Span:
    limit = "…" if "limit" in row.waits else limit_text(row.lane.limit)
    return f"{count(row.lane.in_flight)}/{limit}", ""


def _fault(value: float | None) -> Span:
    return count(value), "bad" if value else "dim"


def _rejected(value: float | None) -> Span:
    return count(value), "warn" if value else "dim"


def _lane_eta(row: LaneRow, _: int) -> Span:
    lane = row.lane
    if "paused" in row.waits:
        return "… ", "warn"
    if lane.paused:
        return f"{PAUSED} ", "warn"
    if not lane.eta_s and lane.counts.open == 0 and lane.counts.done:
        return "done ", "ok"
    if row.held:
        return f"{MISSING} ", "dim"
    return duration(lane.eta_s) + ("◂" if row.critical else " "), "bold" if row.critical else ""


LANE_COLUMNS: tuple[Column[LaneRow], ...] = (
    Column("LANE", 6, lambda r, _: (r.lane.label, "bold"), grow=4, right=False),
    Column("RUN/LIM", 7, _run_limit),
    Column("QUEUED", 6, lambda r, _: (count(r.lane.counts.queued), ""), grow=2),
    Column("DONE", 6, lambda r, _: (count(r.lane.counts.done), ""), grow=2),
    Column("RETRY", 5, lambda r, _: (count(r.lane.counts.retry_wait), "dim"), rank=8),
    Column("FAIL", 4, lambda r, _: _fault(r.lane.counts.failed)),
    Column("REJ", 4, lambda r, _: _rejected(r.lane.counts.rejected), rank=7),
    Column("IN/s", 5, lambda r, _: (rate(r.lane.in_rate), ""), rank=3),
    Column("OUT/s", 5, lambda r, _: (rate(r.lane.out_rate), ""), rank=1),
    Column("p50", 5, lambda r, _: (duration(r.lane.p50_s), ""), rank=4),
    Column("p95", 5, lambda r, _: (duration(r.lane.p95_s), ""), rank=5),
    Column("TREND", 8, lambda r, w: (spark(r.series, w), "spark"), rank=6, grow=40, right=False),
    Column("ETA ", 7, _lane_eta),
)


def _state(row: DatasetRow, _: int) -> Span:
    dataset = row.dataset
    if "paused" in row.waits:
        return "…", "warn"
    if dataset.paused:
        return PAUSED, "warn"
    if dataset.counts.open == 0 and dataset.counts.done:
        return "done", "ok"
    if dataset.complete is False:
        return "filling", ""
    if dataset.counts.generating:
        return "run", ""
    return "queued" if dataset.counts.open else MISSING, "dim"


def _progress(row: DatasetRow, width: int) -> Span:
    counts = row.dataset.counts
    ended = add(counts.done, counts.failed, counts.rejected, counts.cancelled)
    return bar(_share(ended, counts.total), width), "bar"


def _done_total(row: DatasetRow, _: int) -> Span:
    counts = row.dataset.counts
    return f"{count(counts.done)}/{count(counts.total)}", ""


def _priority(row: DatasetRow, _: int) -> Span:
    return ("…" if "priority" in row.waits else count(row.dataset.priority)), "dim"


def _dataset_eta(row: DatasetRow, _: int) -> Span:
    if row.dataset.paused or row.held or row.dataset.counts.open == 0:
        return MISSING, "dim"
    return duration(row.dataset.eta_s), ""


DATASET_COLUMNS: tuple[Column[DatasetRow], ...] = (
    Column("DATASET", 12, lambda r, _: (r.dataset.label, "bold"), grow=24, right=False),
    Column("MODE", 10, lambda r, _: (r.dataset.mode or MISSING, "dim"), rank=7, right=False),
    Column("STATE", 7, _state, right=False),
    Column("PRIO", 4, _priority, rank=4),
    Column("DONE/TOTAL", 15, _done_total),
    Column("PROGRESS", 10, _progress, rank=3, grow=30, right=False),
    Column("EXTRACTED", 9, lambda r, _: (count(r.dataset.counts.extracted), ""), rank=6),
    Column("FAIL", 4, lambda r, _: _fault(r.dataset.counts.failed)),
    Column("REJ", 4, lambda r, _: _rejected(r.dataset.counts.rejected), rank=5),
    Column("ETA", 6, _dataset_eta, rank=2),
)


def lane_table(rows: Sequence[LaneRow], width: int) -> TableText:
    """Return the lanes in `width` cells."""
    sized = choose(LANE_COLUMNS, width - 1)
    lines = tuple((r.lane.key, row_line(sized, r)) for r in rows)
    foot = row_line(sized, _lane_total(rows)) if len(rows) > 1 else None
    return TableText(head_line(sized), lines, foot)


def _lane_total(rows: Sequence[LaneRow]) -> LaneRow:
    lanes = [r.lane for r in rows]
    counts = sum_counts(lane.counts for lane in lanes)
    etas = [lane.eta_s for lane in lanes if lane.eta_s is not None and not lane.paused]
    no_limit = any(lane.limit in (None, 0) for lane in lanes)
    total = Lane(
        key="",
        label="TOTAL",
        paused=None,
        limit=None if no_limit else add(*(lane.limit for lane in lanes)),
        in_flight=add(*(lane.in_flight for lane in lanes)),
        context=None,
        counts=counts,
        out_rate=add(*(lane.out_rate for lane in lanes)),
        in_rate=add(*(lane.in_rate for lane in lanes)),
        p50_s=None,
        p95_s=None,
        eta_s=max(etas, default=None),
        history=(),
    )
    return LaneRow(total, sum_series([r.series for r in rows]), held=any(r.held for r in rows))


def sum_series(series: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the sum of series that all end now; a shorter one counts as zero before it began."""
    return _sum_series(tuple(map(tuple, series)))


@lru_cache(maxsize=8)  # asked for several times a tick
def _sum_series(series: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    longest = max((len(s) for s in series), default=0)
    padded = [[0.0] * (longest - len(s)) + list(s) for s in series]
    return tuple(sum(column) for column in zip(*padded, strict=True))


def dataset_table(rows: Sequence[DatasetRow], width: int) -> TableText:
    """Return the datasets in `width` cells."""
    sized = choose(DATASET_COLUMNS, width - 1)
    lines = tuple((r.dataset.key, row_line(sized, r)) for r in rows)
    return TableText(head_line(sized), lines)
