"""What an operator does to samples: retry, reject, move to another lane, and all of it taken back.

Guarantee: each slice of a change, what it replaced and the event that tells of it are durable
together, so a crash in the middle leaves a change that can be taken back as far as it came. Taking
back touches only samples of which nothing has come since; the others are counted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from eagled.errors import UsageError
from eagled.printable import printable
from eagled.store.ops.base import KEEP_EVENTS, Op, Tx, write_event
from eagled.store.ops.control import CHANGE_SLICE
from eagled.types import STATE_CODE, STATE_OF_CODE, EventKind, OutputReason, SampleState

SAMPLES_UNDO = '{"samples":true}'
RETRIED_FROM = (SampleState.RETRY_WAIT, SampleState.FAILED, SampleState.REJECTED)
REJECTED_FROM = (
    SampleState.QUEUED, SampleState.RETRY_WAIT, SampleState.GENERATED, SampleState.EXTRACTED,
    SampleState.WAITING,
)  # fmt: skip
MOVED_FROM = (SampleState.QUEUED, SampleState.RETRY_WAIT)
_QUEUED = STATE_CODE[SampleState.QUEUED]
_GENERATED = STATE_CODE[SampleState.GENERATED]
_RESTORED = {  # where a rejected sample goes back to, by where it was
    SampleState.RETRY_WAIT: _QUEUED,
    SampleState.EXTRACTED: _GENERATED,
}


@dataclass(frozen=True, slots=True)
class Slice:
    """What one slice did: samples changed, and the event's number (0: nothing changed yet)."""

    n: int
    seq: int


@dataclass(frozen=True, slots=True)
class ChangeSamples(Op[Slice]):
    """Change at most 200 samples on an operator's word.

    `seq` is the event of an earlier slice of the same change; 0 begins one.
    """

    ids: tuple[int, ...]
    subject: str
    uid: int
    seq: int
    weight: int = CHANGE_SLICE
    kind: ClassVar[EventKind]

    def apply(self, tx: Tx) -> Slice:
        """Change what can be, keep what it was, and tell of it once."""
        n, seq = 0, self.seq
        for sample in self.ids:
            rows = tx.db.rows("sample_for_change", {"id": sample})
            if not rows or not self.change(tx, rows[0]):
                continue
            n += 1
            seq = seq or write_event(tx, self.kind, self.subject, "begun", self.uid, SAMPLES_UNDO)
            _keep(tx, seq, rows[0])
        return Slice(n, seq)

    @abstractmethod
    def change(self, tx: Tx, row: tuple[Any, ...]) -> bool:
        """Change one sample; return whether it was one that can be."""


def _keep(tx: Tx, seq: int, row: tuple[Any, ...]) -> None:
    sample, state, _, reason, lane, attempt, failures, checked, detail = row
    old = {"state": state, "lane_id": lane, "attempt": attempt, "failures": failures}
    why = {"checked": checked, "reason": reason, "detail": detail}
    tx.db.run("keep_old", {"seq": seq, "id": sample, **old, **why})


@dataclass(frozen=True, slots=True)
class RetrySamples(ChangeSamples):
    """Queue given-up samples again, charges forgiven; end waits of retries."""

    kind: ClassVar[EventKind] = EventKind.SAMPLES_RETRIED

    def change(self, tx: Tx, row: tuple[Any, ...]) -> bool:
        """Queue one again."""
        who = {"id": row[0], "now": tx.now_ms}
        state, n_prompt = STATE_OF_CODE[row[1]], row[2]
        if state is SampleState.RETRY_WAIT:
            return bool(tx.db.run("wake_one", who))
        if state not in RETRIED_FROM:
            return False
        if n_prompt is None:
            return _wait_again(tx, who)
        if tx.db.run("retry_states", who):
            return True
        if not tx.db.run("retry_sample", who):
            return False
        tx.db.run("delete_answer", {"id": row[0]})
        tx.db.run("revive_later", who)
        return True


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
class RejectSamples(ChangeSamples):
    """Leave samples out; those in flight or given up already do not change."""

    detail: str = ""
    kind: ClassVar[EventKind] = EventKind.SAMPLES_REJECTED

    def change(self, tx: Tx, row: tuple[Any, ...]) -> bool:
        """Leave one out, and what would follow on it."""
        who = {"id": row[0], "now": tx.now_ms}
        why = {"reason": OutputReason.OPERATOR.value, "detail": printable(self.detail)}
        if not tx.db.run("reject_sample", who | why):
            return False
        tx.db.run("cancel_later", who)
        return True


@dataclass(frozen=True, slots=True)
class MoveSamples(ChangeSamples):
    """Put samples that wait into another lane."""

    lane: str = ""
    kind: ClassVar[EventKind] = EventKind.SAMPLES_MOVED

    def change(self, tx: Tx, row: tuple[Any, ...]) -> bool:
        """Move one.

        Raises:
            UsageError: if there is no such lane.
        """
        rows = tx.db.rows("lane_number", {"name": self.lane})
        if not rows:
            raise UsageError(f"no lane is called {self.lane!r}")
        return bool(
            tx.db.run("move_sample", {"id": row[0], "lane_id": rows[0][0], "now": tx.now_ms})
        )


@dataclass(frozen=True, slots=True)
class FinishChange(Op[None]):
    """Say in its event what a change did."""

    seq: int
    detail: str

    def apply(self, tx: Tx) -> None:
        """Complete the event."""
        params = {"seq": self.seq, "detail": printable(self.detail), "undo": SAMPLES_UNDO}
        tx.db.run("finish_change", params)
        tx.db.run("prune_changed", {"upto": self.seq - KEEP_EVENTS})


@dataclass(frozen=True, slots=True)
class Undone:
    """One step of taking back: `what` was taken back, None if there is nothing; `more` follows."""

    what: str | None
    restored: int = 0
    kept: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Undo(Op[Undone]):
    """Take the newest undoable change back; of a change of samples, 200 of them."""

    uid: int
    weight: int = CHANGE_SLICE

    def apply(self, tx: Tx) -> Undone:
        """Return what was taken back."""
        rows = tx.db.rows("last_undoable")
        if not rows:
            return Undone(None)
        seq, kind, subject, detail, undo = rows[0]
        what = f"{subject}: {detail}"
        if undo == SAMPLES_UNDO:
            return self._samples(tx, seq, EventKind(kind), what)
        _restore(tx, EventKind(kind), orjson.loads(undo), self.uid)
        return self._done(tx, seq, subject, Undone(what))

    def _samples(self, tx: Tx, seq: int, kind: EventKind, what: str) -> Undone:
        rows = tx.db.rows("changed_by", {"seq": seq})
        restored = 0
        for row in rows:
            restored += _restore_sample(tx, kind, row)
            tx.db.run("drop_old", {"seq": seq, "id": row[0]})
        step = Undone(what, restored, len(rows) - restored, more=len(rows) == CHANGE_SLICE)
        return step if step.more else self._done(tx, seq, what.split(":", 1)[0], step)

    def _done(self, tx: Tx, seq: int, subject: str, step: Undone) -> Undone:
        tx.db.run("mark_undone", {"seq": seq})
        write_event(tx, EventKind.UNDONE, subject, str(step.what), self.uid)
        return step


def _restore(tx: Tx, kind: EventKind, before: dict[str, Any], uid: int) -> None:
    if kind is EventKind.SETTING_CHANGED:
        tx.db.run("set_setting", {**before, "uid": uid, "now": tx.now_ms})
        return
    query, absent = {
        EventKind.LANE_CHANGED: ("set_lane", {"live_share": None}),
        EventKind.DATASET_CHANGED: ("set_dataset", {"live_share": None, "live_limit": None}),
    }[kind]
    tx.db.run(query, absent | before)  # an event of an older version does not know them all


def _restore_sample(tx: Tx, kind: EventKind, row: tuple[Any, ...]) -> bool:
    sample, state, lane, attempt, failures, checked, reason, detail = row
    who = {"id": sample, "now": tx.now_ms}
    if kind is EventKind.SAMPLES_MOVED:
        return bool(tx.db.run("move_sample", {**who, "lane_id": lane}))
    if kind is EventKind.SAMPLES_REJECTED:
        target = _RESTORED.get(STATE_OF_CODE[state], state)
        done = bool(tx.db.run("unreject", {**who, "state": target, "checked": checked}))
        if done:
            tx.db.run("revive_later", who)
        return done
    if STATE_OF_CODE[state] is SampleState.RETRY_WAIT:
        return False
    old = {"state": state, "attempt": attempt, "failures": failures}
    done = bool(tx.db.run("unretry", {**who, **old, "reason": reason, "detail": detail}))
    if done:
        tx.db.run("cancel_later", who)
    return done
