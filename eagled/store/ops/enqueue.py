"""Lanes, datasets and conversations enter the store.

Guarantee: a conversation is known by its uid, never by its place in a file, so adding the same
folder again, in any order or in part, adds nothing. What is missing is decided from the rows that
are there now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eagled.crashpoints import crash_point
from eagled.errors import ArtifactError, UsageError
from eagled.store.ops.base import Op, Tx
from eagled.store.records import AddResult, DatasetRecord, LaneRow, NewConversation, NewTurn
from eagled.types import STATE_CODE, Finish, OutputReason, SampleState

SLICE = 200  # conversations a transaction, so that claims slip in between


@dataclass(frozen=True, slots=True)
class SyncLanes(Op[None]):
    """Take the configuration's lanes over; what an operator set of them stays."""

    lanes: tuple[LaneRow, ...]

    def apply(self, tx: Tx) -> None:
        """Insert new lanes, update known ones, retire the others."""
        tx.db.run("unconfigure_lanes")
        for lane in self.lanes:
            tx.db.run("upsert_lane", asdict(lane) | {"paused": int(lane.paused)})


@dataclass(frozen=True, slots=True)
class MoveHomeless(Op[int]):
    """Give queued samples of lanes that left the configuration another lane."""

    lane_of: Callable[[int], str | None]

    def apply(self, tx: Tx) -> int:
        """Move up to 200 and return how many there were."""
        rows = tx.db.rows("homeless")
        for sample, n_prompt, _ in rows:
            lane = self.lane_of(n_prompt)
            if lane is not None:
                tx.db.run("move_lane", {"id": sample, "lane": lane, "now": tx.now_ms})
                continue
            params = {"id": sample, "now": tx.now_ms, "detail": f"{n_prompt} tokens, no lane fits"}
            tx.db.run("reject_sample", params | {"reason": OutputReason.TOO_LONG_FOR_SERVER.value})
            tx.db.run("cancel_later", {"id": sample, "now": tx.now_ms})
        return len(rows)


@dataclass(frozen=True, slots=True)
class AddDataset(Op[int]):
    """Register a prepared dataset and return its number."""

    record: DatasetRecord

    def apply(self, tx: Tx) -> int:
        """Insert it, or return the number it has.

        Raises:
            ArtifactError: if the name is taken by data of another preparation.
        """
        record = self.record
        known = tx.db.rows("dataset_by_name", {"name": record.name})
        if not known:
            params = asdict(record) | {"mode": record.mode.value}
            return int(tx.db.rows("insert_dataset", params)[0][0])
        number, _, _, _, _, prep_key = known[0][:6]
        if prep_key != record.prep_key:
            raise ArtifactError(
                f"dataset {record.name!r} is in the queue with preparation {prep_key!r}, the "
                f"folder has {record.prep_key!r}; give the new data another name"
            )
        tx.db.run("update_dataset_priority", {"id": number, "priority": record.priority})
        return int(number)


@dataclass(frozen=True, slots=True)
class FinishDataset(Op[None]):
    """Say that all conversations of a dataset are in."""

    dataset_id: int

    def apply(self, tx: Tx) -> None:
        """Mark it complete."""
        tx.db.run("finish_dataset", {"id": self.dataset_id})


@dataclass(slots=True)
class _Rows:
    """What one slice inserts."""

    next_conversation: int
    next_sample: int
    conversations: list[tuple[Any, ...]] = field(default_factory=list)
    samples: list[tuple[Any, ...]] = field(default_factory=list)
    prompts: list[tuple[int, bytes]] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    uids: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class AddConversations(Op[AddResult]):
    """Store one slice of conversations."""

    dataset_id: int
    items: tuple[NewConversation, ...]
    weight: int = SLICE

    def apply(self, tx: Tx) -> AddResult:
        """Insert what is new, with its turns and their payloads, and count the rest."""
        lanes = {row[1]: row[0] for row in tx.db.rows("lane_rows")}
        rows = _Rows(tx.db.rows("next_conversation_id")[0][0], tx.db.rows("next_sample_id")[0][0])
        known = duplicates = 0
        for item in self.items:
            if (holder := _holder(tx, item)) is not None or item.uid in rows.uids:
                same = holder is None or holder == self.dataset_id
                known += same
                duplicates += not same
            elif _held_elsewhere(tx, item, self.dataset_id, rows):
                duplicates += 1
            else:
                _collect(item, self.dataset_id, lanes, rows, tx.now_ms)
        tx.db.many("insert_conversation", rows.conversations)
        crash_point("mid_enqueue")
        tx.db.many("insert_sample", rows.samples)
        tx.db.many("insert_prompt", rows.prompts)
        tx.db.many("insert_answer", rows.answers)
        return AddResult(len(rows.conversations), known, duplicates)


def _holder(tx: Tx, item: NewConversation) -> int | None:
    found = tx.db.rows("conversation_by_uid", (item.uid,))
    return int(found[0][0]) if found else None


def _held_elsewhere(tx: Tx, item: NewConversation, dataset_id: int, rows: _Rows) -> bool:
    return (
        bool(tx.db.rows("dedup_elsewhere", (item.dedup, dataset_id)))
        or any(turn.uid in rows.uids for turn in item.turns)
        or any(tx.db.rows("sample_known", (turn.uid,)) for turn in item.turns)
    )


def _collect(
    item: NewConversation, dataset_id: int, lanes: dict[str, int], rows: _Rows, now_ms: int
) -> None:
    number = rows.next_conversation
    rows.next_conversation += 1
    rows.uids.add(item.uid)
    rows.conversations.append((number, item.uid, item.dedup, dataset_id, item.source_id, item.body))
    for turn in sorted(item.turns, key=lambda t: t.turn):
        sample = rows.next_sample
        rows.next_sample += 1
        rows.uids.add(turn.uid)
        columns = _start_columns(turn, lanes)
        rows.samples.append((sample, turn.uid, number, dataset_id, turn.turn, *columns, now_ms))
        if turn.prompt is not None:
            rows.prompts.append((sample, turn.prompt.z))
        if turn.output is not None:
            rows.answers.append((sample, turn.output.z))


def _start_columns(turn: NewTurn, lanes: dict[str, int]) -> tuple[Any, ...]:
    """Return lane_id, state, rank, n_prompt, prompt_crc, n_output, output_crc, finish, checked."""
    prompt, output = turn.prompt, turn.output
    if prompt is None:
        return (None, STATE_CODE[SampleState.WAITING], 0, None, None, None, None, None, 0)
    if output is not None:
        state = STATE_CODE[SampleState.GENERATED]
        ids = (prompt.n, prompt.crc, output.n, output.crc)
        return (None, state, 1, *ids, Finish.NATIVE.value, 1)
    if turn.lane not in lanes:
        raise UsageError(f"lane {turn.lane!r} is not known; lanes: {', '.join(lanes) or 'none'}")
    rank = 1 if turn.turn == 0 else 0
    queued = STATE_CODE[SampleState.QUEUED]
    return (lanes[turn.lane], queued, rank, prompt.n, prompt.crc, None, None, None, 0)


def slices(items: Sequence[NewConversation]) -> list[tuple[NewConversation, ...]]:
    """Return the items in runs of at most `SLICE`."""
    return [tuple(items[i : i + SLICE]) for i in range(0, len(items), SLICE)]
