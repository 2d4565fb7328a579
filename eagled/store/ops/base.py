"""What every operation of the writer has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

import orjson

from eagled.store.executor import Executor
from eagled.store.records import Ack
from eagled.types import EventKind, Fence

R = TypeVar("R")
KEEP_EVENTS = 20_000
KEEP_FAILURES = 50_000
_PRUNE_EVERY = 256  # rows between two prunings; each is then one short range delete


@dataclass(slots=True)
class Tx:
    """One transaction of the writer.

    `now_ms` is the wall clock, for what is shown; `due_ms` is the wall clock of the start plus
    monotonic time since, for waits, so that a clock that jumps neither hurries nor stalls one.
    `turns` remembers per lane which dataset was served last. `acks` go out after COMMIT only.
    """

    db: Executor
    now_ms: int
    due_ms: int
    epoch: int
    turns: dict[str, int]
    acks: list[Ack] = field(default_factory=list)


class Op(ABC, Generic[R]):
    """A request to the writer."""

    order: ClassVar[int] = 1
    """Place in a transaction: answers first (0), claims last (2), the rest as they came."""
    weight: int = 1
    """Rows it touches, roughly; bounds the size of a transaction."""

    @abstractmethod
    def apply(self, tx: Tx) -> R:
        """Do it and return what the caller gets after COMMIT."""

    def orphaned(self, result: R) -> Op[Any] | None:  # noqa: ARG002 - most results bind nobody
        """Return what undoes `result` if its caller is gone; None if it can stand."""
        return None

    @classmethod
    def apply_all(cls, tx: Tx, ops: Sequence[Self]) -> list[R]:
        """Do several of one kind; overridden where that is cheaper together."""
        return [op.apply(tx) for op in ops]


def fences_json(fences: Sequence[Fence]) -> str:
    """Return fences as the JSON that `live_fences` and `live_extracts` read."""
    return orjson.dumps([(f.sample_id, f.attempt, f.epoch) for f in fences]).decode()


def live_rows(
    tx: Tx, query: str, fences: Sequence[Fence]
) -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """Return the rows whose fence holds, by (sample, attempt, epoch)."""
    rows = tx.db.rows(query, {"fences": fences_json(fences)})
    return {(row[0], row[1], row[2]): row[3:] for row in rows}


def fence_key(fence: Fence) -> tuple[int, int, int]:
    """Return the key of `live_rows`."""
    return (fence.sample_id, fence.attempt, fence.epoch)


def write_event(
    tx: Tx, kind: EventKind, subject: str, detail: str, uid: int, undo: str | None = None
) -> int:
    """Append an event, prune old ones now and then, and return its number."""
    params = {"now": tx.now_ms, "kind": kind.value, "subject": subject, "detail": detail}
    seq = int(tx.db.rows("insert_event", params | {"uid": uid, "undo": undo})[0][0])
    if seq % _PRUNE_EVERY == 0:
        tx.db.run("prune_events", {"upto": seq - KEEP_EVENTS})
    return seq


def write_failure(tx: Tx, fence: Fence, kind: str, detail: str) -> None:
    """Append to the log of failed attempts and prune it now and then."""
    tx.db.run("insert_failure", (fence.sample_id, fence.attempt, tx.now_ms, kind, detail))
    if fence.sample_id % _PRUNE_EVERY == 0:
        tx.db.run("prune_failures", {"keep": KEEP_FAILURES})
