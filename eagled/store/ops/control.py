"""What an operator changes: lanes, datasets, settings, retries, rejections, undo.

Guarantee: each change and its event are one transaction; lane and dataset changes keep what they
replaced, so that the newest one can be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from eagled.errors import UsageError
from eagled.printable import printable
from eagled.store.ops.base import Op, Tx, write_event
from eagled.store.records import DatasetRow, LaneRow
from eagled.types import EventKind, Mode

CHANGE_SLICE = 200  # samples an operator's command changes in one transaction


def lane_row(row: tuple[Any, ...]) -> LaneRow:
    """Return a lane from the columns of `lane_rows`."""
    _, name, place, context, limit, paused, share = row[:7]
    return LaneRow(name, place, context, limit, bool(paused), share)


def dataset_row(row: tuple[Any, ...]) -> DatasetRow:
    """Return a dataset from the columns of `dataset_rows`."""
    (
        number, name, priority, paused, mode, key, n_rows, kept, rejected, complete, limit, share,
    ) = row[:12]  # fmt: skip
    return DatasetRow(
        number,
        name,
        priority,
        bool(paused),
        Mode(mode),
        key,
        n_rows,
        kept,
        rejected,
        bool(complete),
        limit,
        share or 1,
    )


def _one(tx: Tx, query: str, what: str, name: str) -> tuple[Any, ...]:
    rows = tx.db.rows(query, {"name": name})
    if not rows:
        raise UsageError(f"no {what} is called {name!r}")
    return rows[0]


def _word(*, paused: bool) -> str:
    return "paused" if paused else "running"


@dataclass(frozen=True, slots=True)
class SetLane(Op[LaneRow]):
    """Pause, resume, limit or weigh a lane; None leaves a field as it is.

    A `share` of 0 gives the configuration's back.
    """

    name: str
    paused: bool | None
    limit: int | None
    uid: int
    share: float | None = None

    def apply(self, tx: Tx) -> LaneRow:
        """Change it, with an event if anything changed."""
        before = _one(tx, "lane_by_name", "lane", self.name)
        old = lane_row(before)
        undo = {
            "name": self.name,
            "paused": int(old.paused),
            "live_limit": before[7],
            "live_share": old.share,
        }
        params = dict(undo)
        if self.paused is not None:
            params["paused"] = int(self.paused)
        if self.limit is not None:
            params["live_limit"] = self.limit
        if self.share is not None:
            params["live_share"] = self.share or None
        tx.db.run("set_lane", params)
        new = lane_row(_one(tx, "lane_by_name", "lane", self.name))
        if new != old:
            detail = f"{_lane_words(old)} -> {_lane_words(new)}"
            _changed(tx, EventKind.LANE_CHANGED, self.name, detail, self.uid, undo)
        return new


def _lane_words(row: LaneRow) -> str:
    share = f", share {row.share:g}" if row.share is not None else ""
    return f"{_word(paused=row.paused)}, limit {row.limit}{share}"


@dataclass(frozen=True, slots=True)
class SetDataset(Op[DatasetRow]):
    """Pause, resume, prioritise, limit or weigh a dataset; None leaves a field as it is.

    A `limit` of 0 takes its limit away.
    """

    name: str
    paused: bool | None
    priority: int | None
    uid: int
    limit: int | None = None
    share: int | None = None

    def apply(self, tx: Tx) -> DatasetRow:
        """Change it, with an event if anything changed."""
        before = _one(tx, "dataset_by_name", "dataset", self.name)
        old = dataset_row(before)
        undo = {
            "name": self.name,
            "paused": int(old.paused),
            "live_priority": before[12],
            "live_limit": before[10],
            "live_share": before[11],
        }
        params = dict(undo)
        if self.paused is not None:
            params["paused"] = int(self.paused)
        if self.priority is not None:
            params["live_priority"] = self.priority
        if self.limit is not None:
            params["live_limit"] = self.limit or None
        if self.share is not None:
            params["live_share"] = self.share
        tx.db.run("set_dataset", params)
        new = dataset_row(_one(tx, "dataset_by_name", "dataset", self.name))
        if new != old:
            detail = f"{_dataset_words(old)} -> {_dataset_words(new)}"
            _changed(tx, EventKind.DATASET_CHANGED, self.name, detail, self.uid, undo)
        return new


def _dataset_words(row: DatasetRow) -> str:
    limit = f", limit {row.limit}" if row.limit is not None else ""
    share = f", share {row.share}" if row.share != 1 else ""
    return f"{_word(paused=row.paused)}, priority {row.priority}{limit}{share}"


def _changed(
    tx: Tx, kind: EventKind, name: str, detail: str, uid: int, undo: dict[str, Any]
) -> None:
    write_event(tx, kind, name, detail, uid, orjson.dumps(undo).decode())


@dataclass(frozen=True, slots=True)
class SetSetting(Op[None]):
    """Store one live setting; a `quiet` one is the daemon's own and makes no event."""

    key: str
    value: str
    uid: int
    quiet: bool = False

    def apply(self, tx: Tx) -> None:
        """Store it, with an event unless it is a quiet one."""
        before = next((v for k, v in tx.db.rows("settings") if k == self.key), "")
        params = {"key": self.key, "value": self.value, "uid": self.uid, "now": tx.now_ms}
        tx.db.run("set_setting", params)
        if self.quiet:
            return
        detail = printable(self.value)
        by_hand = self.uid >= 0 and before != self.value
        undo = orjson.dumps({"key": self.key, "value": before}).decode() if by_hand else None
        write_event(tx, EventKind.SETTING_CHANGED, printable(self.key), detail, self.uid, undo)


@dataclass(frozen=True, slots=True)
class AddEvent(Op[int]):
    """Append an event."""

    kind: EventKind
    subject: str
    detail: str
    uid: int

    def apply(self, tx: Tx) -> int:
        """Return its number."""
        return write_event(tx, self.kind, printable(self.subject), printable(self.detail), self.uid)
