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
from eagled.types import STATE_OF_CODE, EventKind, Mode, OutputReason, SampleState

CHANGE_SLICE = 200  # samples an operator's command changes in one transaction


def lane_row(row: tuple[Any, ...]) -> LaneRow:
    """Return a lane from the columns of `lane_rows`."""
    _, name, place, context, limit, paused = row[:6]
    return LaneRow(name, place, context, limit, bool(paused))


def dataset_row(row: tuple[Any, ...]) -> DatasetRow:
    """Return a dataset from the columns of `dataset_rows`."""
    number, name, priority, paused, mode, key, n_rows, kept, rejected, complete = row[:10]
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
    """Pause, resume or limit a lane; None leaves a field as it is."""

    name: str
    paused: bool | None
    limit: int | None
    uid: int

    def apply(self, tx: Tx) -> LaneRow:
        """Change it, with an event if anything changed."""
        before = _one(tx, "lane_by_name", "lane", self.name)
        old = lane_row(before)
        paused = old.paused if self.paused is None else self.paused
        limit = before[6] if self.limit is None else self.limit
        params = {"name": self.name, "paused": int(paused), "live_limit": limit}
        tx.db.run("set_lane", params)
        new = lane_row(_one(tx, "lane_by_name", "lane", self.name))
        if new != old:
            detail = (
                f"{_word(paused=old.paused)}, limit {old.limit} -> "
                f"{_word(paused=new.paused)}, limit {new.limit}"
            )
            undo = params | {"paused": int(old.paused), "live_limit": before[6]}
            _changed(tx, EventKind.LANE_CHANGED, self.name, detail, self.uid, undo)
        return new


@dataclass(frozen=True, slots=True)
class SetDataset(Op[DatasetRow]):
    """Pause, resume or prioritise a dataset; None leaves a field as it is."""

    name: str
    paused: bool | None
    priority: int | None
    uid: int

    def apply(self, tx: Tx) -> DatasetRow:
        """Change it, with an event if anything changed."""
        before = _one(tx, "dataset_by_name", "dataset", self.name)
        old = dataset_row(before)
        paused = old.paused if self.paused is None else self.paused
        priority = before[10] if self.priority is None else self.priority
        params = {"name": self.name, "paused": int(paused), "live_priority": priority}
        tx.db.run("set_dataset", params)
        new = dataset_row(_one(tx, "dataset_by_name", "dataset", self.name))
        if new != old:
            detail = (
                f"{_word(paused=old.paused)}, priority {old.priority} -> "
                f"{_word(paused=new.paused)}, priority {new.priority}"
            )
            undo = params | {"paused": int(old.paused), "live_priority": before[10]}
            _changed(tx, EventKind.DATASET_CHANGED, self.name, detail, self.uid, undo)
        return new


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
        params = {"key": self.key, "value": self.value, "uid": self.uid, "now": tx.now_ms}
        tx.db.run("set_setting", params)
        if self.quiet:
            return
        detail = printable(self.value)
        write_event(tx, EventKind.SETTING_CHANGED, printable(self.key), detail, self.uid)


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


@dataclass(frozen=True, slots=True)
class Undo(Op[str | None]):
    """Take the newest undoable change back."""

    uid: int

    def apply(self, tx: Tx) -> str | None:
        """Return what was taken back; None if there is nothing."""
        rows = tx.db.rows("last_undoable")
        if not rows:
            return None
        seq, kind, subject, detail, undo = rows[0]
        query = "set_lane" if kind == EventKind.LANE_CHANGED else "set_dataset"
        tx.db.run(query, orjson.loads(undo))
        tx.db.run("mark_undone", {"seq": seq})
        what = f"{subject}: {detail}"
        write_event(tx, EventKind.UNDONE, subject, what, self.uid)
        return what


@dataclass(frozen=True, slots=True)
class RetrySamples(Op[int]):
    """Queue given-up samples again, charges forgiven; at most 200."""

    ids: tuple[int, ...]
    weight: int = CHANGE_SLICE

    def apply(self, tx: Tx) -> int:
        """Return how many can be tried again."""
        return sum(_retry(tx, sample) for sample in self.ids)


def _retry(tx: Tx, sample: int) -> bool:
    rows = tx.db.rows("sample_for_change", {"id": sample})
    if not rows:
        return False
    who = {"id": sample, "now": tx.now_ms}
    state, n_prompt = STATE_OF_CODE[rows[0][1]], rows[0][2]
    if state is SampleState.RETRY_WAIT:
        return bool(tx.db.run("wake_one", who))
    if state not in {SampleState.FAILED, SampleState.REJECTED}:
        return False
    if n_prompt is None:
        return _wait_again(tx, who)
    done = bool(tx.db.run("retry_states", who))
    if not done:
        done = bool(tx.db.run("retry_sample", who))
        if done:
            tx.db.run("delete_answer", {"id": sample})
            tx.db.run("revive_later", who)
    return done


def _wait_again(tx: Tx, who: dict[str, int]) -> bool:
    """Let a turn without a prompt wait again, and have its predecessor's text worked off again."""
    before = tx.db.rows("previous_turn", {"id": who["id"]})
    if not before or STATE_OF_CODE[before[0][1]] is not SampleState.GENERATED:
        return False
    tx.db.run("wait_again", who)
    tx.db.run("revive_later", who)
    tx.db.run("uncheck", {"id": before[0][0], "now": who["now"]})
    return True


@dataclass(frozen=True, slots=True)
class RejectSamples(Op[int]):
    """Leave samples out on an operator's word; at most 200."""

    ids: tuple[int, ...]
    detail: str
    weight: int = CHANGE_SLICE

    def apply(self, tx: Tx) -> int:
        """Return how many changed; those in flight or given up already do not."""
        return sum(self._reject(tx, sample) for sample in self.ids)

    def _reject(self, tx: Tx, sample: int) -> bool:
        who = {"id": sample, "now": tx.now_ms}
        why = {"reason": OutputReason.OPERATOR.value, "detail": printable(self.detail)}
        if not tx.db.run("reject_sample", who | why):
            return False
        tx.db.run("cancel_later", who)
        return True
