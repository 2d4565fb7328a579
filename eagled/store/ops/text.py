"""Verdicts of the text worker: accept or reject an answer, and queue the turn that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagled.errors import UsageError
from eagled.printable import printable
from eagled.store.ops.base import Op, Tx
from eagled.types import OutputReason, TextVerdict


@dataclass(frozen=True, slots=True)
class Settlement:
    """A verdict with the lane of its next prompt, decided before the writer sees it."""

    verdict: TextVerdict
    lane: str | None


@dataclass(frozen=True, slots=True)
class SettleText(Op[int]):
    """Apply verdicts whose answer still waits for one."""

    settlements: tuple[Settlement, ...]

    @property
    def weight(self) -> int:  # type: ignore[override]  # a property where the base has a default
        """Return the rows it may touch."""
        return 3 * len(self.settlements)

    def apply(self, tx: Tx) -> int:
        """Return how many verdicts counted; the others are stale."""
        return sum(_settle(tx, s) for s in self.settlements)


def _settle(tx: Tx, settlement: Settlement) -> bool:
    verdict = settlement.verdict
    who = {"id": verdict.sample_id, "now": tx.now_ms}
    known = {"id": verdict.sample_id, "attempt": verdict.attempt}
    if not tx.db.rows("unchecked_sample", known):
        return False
    if verdict.reason is not None:
        why = {"reason": verdict.reason, "detail": printable(verdict.detail)}
        tx.db.run("reject_text", who | why)
        tx.db.run("cancel_later", who)
        return True
    tx.db.run("accept_text", who)
    following = tx.db.rows("next_turn", {"id": verdict.sample_id})
    if following:
        _settle_next(tx, settlement, int(following[0][0]))
    return True


def _settle_next(tx: Tx, settlement: Settlement, successor: int) -> None:
    verdict, lane = settlement.verdict, settlement.lane
    who: dict[str, Any] = {"id": successor, "now": tx.now_ms}
    prompt = verdict.next_prompt
    if prompt is not None and lane is not None:
        if not any(row[1] == lane for row in tx.db.rows("lane_rows")):
            raise UsageError(f"lane {lane!r} is not known")
        params = who | {"lane": lane, "n": prompt.n, "crc": prompt.crc}
        if tx.db.run("queue_next", params):
            tx.db.run("insert_prompt", (successor, prompt.z))
        return
    if prompt is not None:
        reason, detail = OutputReason.NEXT_TURN_TOO_LONG.value, f"{prompt.n} tokens, no lane fits"
    else:
        reason = verdict.next_reason or OutputReason.NEXT_TURN_TEMPLATE.value
        detail = printable(verdict.detail)
    if tx.db.run("refuse_next", who | {"reason": reason, "detail": detail}):
        tx.db.run("cancel_later", who)
