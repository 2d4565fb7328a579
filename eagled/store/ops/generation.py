"""Claims, answers, failures and retries of generation.

Guarantee: only the holder of (attempt, epoch) changes a sample; everything else is stale, changes
nothing and is counted by the caller. `attempt` rises at each claim and never falls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, ClassVar, Self

from eagled.printable import printable
from eagled.record import record
from eagled.store.ops.base import Op, Tx, fence_key, live_rows, write_failure
from eagled.store.records import Ack
from eagled.tokens import PackedIds
from eagled.types import STATE_CODE, Answer, Claim, Failure, Fence, SampleState

MAX_CLAIM = 512  # rows of one claim; keeps a transaction short
RETRY_CLAMP_MS = 3_600_000  # no back-off is longer; heals a wait stored under a wrong clock


@dataclass(frozen=True, slots=True)
class _Candidate:
    lane_id: int
    dataset_id: int
    dataset: str
    priority: int
    queued: int
    share: int
    limit: int | None
    generating: int

    @property
    def open(self) -> int:
        """Return how many may be claimed: those queued, within its own limit."""
        room = self.queued if self.limit is None else self.limit - self.generating
        return max(0, min(self.queued, room))


def share_out(queued: Sequence[int], n: int, weights: Sequence[int] = ()) -> list[int]:
    """Return how many of `n` places each queue gets when they take turns, first one first.

    A queue takes as many a turn as its weight says, one without weights.
    """
    shares = [0] * len(queued)
    left = min(n, sum(queued))
    while left:
        for i, have in enumerate(queued):
            taken = min(left, have - shares[i], weights[i] if weights else 1)
            shares[i] += taken
            left -= taken
    return shares


def _after(group: Sequence[_Candidate], last: int) -> list[_Candidate]:
    ordered = sorted(group, key=lambda c: c.dataset_id)
    return [c for c in ordered if c.dataset_id > last] + [
        c for c in ordered if c.dataset_id <= last
    ]


@record
class ClaimSamples(Op[list[Claim]]):
    """Take up to `n` queued samples of a lane."""

    lane: str
    n: int
    order: ClassVar[int] = 2

    @property
    def weight(self) -> int:  # type: ignore[override]  # a property where the base has a default
        """Return the rows it may touch."""
        return self.n

    def apply(self, tx: Tx) -> list[Claim]:
        """Claim for one caller."""
        return claim_lane(tx, self.lane, min(self.n, MAX_CLAIM))

    def orphaned(self, result: list[Claim]) -> Op[Any] | None:
        """Return what gives the claims back."""
        return GiveBack(tuple(claim.fence for claim in result)) if result else None

    @classmethod
    def apply_all(cls, tx: Tx, ops: Sequence[Self]) -> list[list[Claim]]:
        """Claim once a lane for all who wait, and deal the result out as they came."""
        wanted: dict[str, int] = defaultdict(int)
        for op in ops:
            wanted[op.lane] += min(op.n, MAX_CLAIM)
        taken = {lane: iter(claim_lane(tx, lane, n)) for lane, n in wanted.items()}
        return [[c for _, c in zip(range(min(op.n, MAX_CLAIM)), taken[op.lane])] for op in ops]  # noqa: B905 - the shorter one ends it


def claim_lane(tx: Tx, lane: str, n: int) -> list[Claim]:
    """Claim up to `n`: by dataset priority, equal priorities in turns."""
    rows = tx.db.rows("claim_candidates", {"lane": lane})
    found = [c for c in (_Candidate(*row) for row in rows) if c.open]
    claims: list[Claim] = []
    for priority in sorted({c.priority for c in found}, reverse=True):
        if len(claims) >= n:
            break
        group = _after([c for c in found if c.priority == priority], tx.turns.get(lane, 0))
        weights = [c.share for c in group]
        shares = share_out([c.open for c in group], n - len(claims), weights)
        batches = [_claim_from(tx, lane, c, k) for c, k in zip(group, shares, strict=True) if k]
        served = [c.dataset_id for c, k in zip(group, shares, strict=True) if k == max(shares)]
        if served:
            tx.turns[lane] = served[-1]
        claims += [c for c in chain.from_iterable(zip_longest(*batches)) if c is not None]
    return claims


def _claim_from(tx: Tx, lane: str, candidate: _Candidate, n: int) -> list[Claim]:
    rows = tx.db.rows(
        "claim",
        {
            "epoch": tx.epoch,
            "now": tx.now_ms,
            "lane_id": candidate.lane_id,
            "dataset_id": candidate.dataset_id,
            "n": n,
        },
    )
    rows.sort(key=lambda row: (row[0], row[1]))  # RETURNING promises no order
    return [_claim_of(tx, lane, candidate.dataset, row) for row in rows if _has_prompt(tx, row)]


def _has_prompt(tx: Tx, row: tuple[Any, ...]) -> bool:
    if row[-1] is not None:
        return True
    tx.db.run("fail_damaged", {"id": row[1], "now": tx.now_ms})
    tx.db.run("cancel_later", {"id": row[1], "now": tx.now_ms})
    return False


def _claim_of(tx: Tx, lane: str, dataset: str, row: tuple[Any, ...]) -> Claim:
    _, sample, uid, conversation, turn, attempt, failures, extended, n, crc, z = row
    fence = Fence(sample, attempt, tx.epoch)
    prompt = PackedIds(z, crc, n)
    partial = _partial_of(tx, sample) if extended else None
    times = extended if partial is not None else 0
    return Claim(fence, uid, dataset, lane, turn, conversation, prompt, failures, partial, times)


def _partial_of(tx: Tx, sample: int) -> PackedIds | None:
    """Return the answer so far; None if it is gone, and then the answer begins again."""
    rows = tx.db.rows("partial_of", {"id": sample})
    return PackedIds(*rows[0]) if rows else None


@record
class CompleteSample(Op[bool]):
    """Store an answer; False if the claim is no longer this caller's."""

    fence: Fence
    answer: Answer
    order: ClassVar[int] = 0

    def apply(self, tx: Tx) -> bool:
        """Store one answer."""
        return self.apply_all(tx, [self])[0]

    @classmethod
    def apply_all(cls, tx: Tx, ops: Sequence[Self]) -> list[bool]:
        """Store all answers whose fence holds, each fence once."""
        live = live_rows(tx, "live_fences", [op.fence for op in ops])
        done: list[bool] = []
        fresh: list[Self] = []
        for op in ops:
            row = live.pop(fence_key(op.fence), None)
            done.append(row is not None)
            if row is not None:
                fresh.append(op)
                tx.acks.append(op.ack(row[0]))
        tx.db.many("complete_sample", [op.columns(tx) for op in fresh])
        tx.db.many("insert_answer", [(op.fence.sample_id, op.answer.output.z) for op in fresh])
        return done

    def ack(self, uid: bytes) -> Ack:
        """Return what subscribers are told."""
        crc = self.answer.output.crc
        return Ack(SampleState.GENERATED, uid.hex(), self.fence.attempt, crc)

    def columns(self, tx: Tx) -> tuple[Any, ...]:
        """Return the parameters of `complete_sample`."""
        a = self.answer
        elapsed_ms = round(a.elapsed_s * 1000)
        server = a.server if a.server.isprintable() else printable(a.server)
        out = a.output
        ends = (a.finish.value, server, elapsed_ms, a.extended, tx.now_ms)
        return (out.n, out.crc, *ends, self.fence.sample_id)


@dataclass(frozen=True, slots=True)
class ExtendSample(Op[bool]):
    """Keep an answer that has no end yet, and queue its sample to be continued.

    `partial` holds all its ids so far, those of earlier requests included.
    """

    fence: Fence
    partial: PackedIds
    extended: int
    elapsed_s: float
    lane: str

    def apply(self, tx: Tx) -> bool:
        """Return whether the claim was still this caller's."""
        if fence_key(self.fence) not in live_rows(tx, "live_fences", [self.fence]):
            return False
        sample = self.fence.sample_id
        ids = {"n": self.partial.n, "crc": self.partial.crc, "z": self.partial.z}
        tx.db.run("keep_partial", {"id": sample, **ids})
        how = {"extended": self.extended, "elapsed_ms": round(self.elapsed_s * 1000)}
        tx.db.run("extend_sample", {"id": sample, "lane": self.lane, "now": tx.now_ms, **how})
        return True


@dataclass(frozen=True, slots=True)
class FailSample(Op[SampleState | None]):
    """Record a failed attempt: wait for the next one, or give up."""

    fence: Fence
    failure: Failure

    def apply(self, tx: Tx) -> SampleState | None:
        """Return the state it entered; None if stale."""
        if fence_key(self.fence) not in live_rows(tx, "live_fences", [self.fence]):
            return None
        failure = self.failure
        detail = printable(failure.detail)
        write_failure(tx, self.fence, failure.kind, detail)
        common = {"id": self.fence.sample_id, "now": tx.now_ms, "charge": int(failure.charge)}
        if failure.retry_in_s is None:
            state = {"state": STATE_CODE[failure.final], "reason": failure.kind, "detail": detail}
            tx.db.run("fail_final", common | state)
            tx.db.run("cancel_later", {"id": self.fence.sample_id, "now": tx.now_ms})
            return failure.final
        if failure.retry_in_s <= 0:
            tx.db.run("requeue", common)
            return SampleState.QUEUED
        wait_ms = min(round(failure.retry_in_s * 1000), RETRY_CLAMP_MS)
        tx.db.run("fail_retry", common | {"not_before": tx.due_ms + wait_ms})
        return SampleState.RETRY_WAIT


@dataclass(frozen=True, slots=True)
class GiveBack(Op[int]):
    """Queue interrupted claims again; after too many server crashes set them aside."""

    fences: tuple[Fence, ...]
    crashed: bool = False
    max_crashes: int = 3

    def apply(self, tx: Tx) -> int:
        """Return how many were still held."""
        live = live_rows(tx, "live_fences", self.fences)
        crash = int(self.crashed)
        over = [key[0] for key, row in live.items() if crash and row[1] + crash >= self.max_crashes]
        back = [key[0] for key in live if key[0] not in set(over)]
        tx.db.many("give_back", [(crash, tx.now_ms, sample) for sample in back])
        tx.db.many("quarantine", [(crash, tx.now_ms, sample) for sample in over])
        for sample in over:
            tx.db.run("cancel_later", {"id": sample, "now": tx.now_ms})
        return len(live)


@dataclass(frozen=True, slots=True)
class WakeRetries(Op[int]):
    """Queue retries whose wait is over, at most 500."""

    def apply(self, tx: Tx) -> int:
        """Return how many were due."""
        due = tx.db.rows("due_retries", {"now": tx.due_ms})
        tx.db.many("wake", [(tx.now_ms, sample) for (sample,) in due])
        return len(due)
