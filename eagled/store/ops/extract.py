"""Claims of extraction, and shards that hold its results.

Guarantee: a sample is `extracted` only in the transaction that records its shard, and only for the
holder of (extract_attempt, epoch). Committing the same shard twice changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from eagled.errors import ArtifactError
from eagled.printable import printable
from eagled.store.ops.base import Op, Tx, fence_key, live_rows, write_event, write_failure
from eagled.store.records import CONSUMED, Ack, ShardCommit
from eagled.tokens import PackedIds
from eagled.types import EventKind, ExtractJob, Fence, SampleState, ShardMember, ShardRecord

MAX_JOBS = 500


@dataclass(frozen=True, slots=True)
class ClaimExtract(Op[list[ExtractJob]]):
    """Hand accepted answers to an extraction worker, within a token budget.

    Oldest first, or with `ids` only those of them, in their order.
    """

    max_samples: int
    max_tokens: int
    worker: str
    ids: tuple[int, ...] | None = None
    order = 2

    def apply(self, tx: Tx) -> list[ExtractJob]:
        """Claim; the first sample is taken even if it alone is over the budget."""
        jobs: list[ExtractJob] = []
        tokens = 0
        for sample, n in self._candidates(tx):
            if jobs and tokens + n > self.max_tokens:
                break
            job = self._claim(tx, sample)
            if job is not None:
                jobs.append(job)
                tokens += n
        return jobs

    def _candidates(self, tx: Tx) -> list[tuple[int, int]]:
        """Return number and tokens of what may be claimed."""
        n = min(self.max_samples, MAX_JOBS)
        if self.ids is None:
            return tx.db.rows("extract_ids", {"n": n})
        wanted = orjson.dumps(self.ids[:MAX_JOBS]).decode()
        return tx.db.rows("extract_these", {"ids": wanted})[:n]

    def _claim(self, tx: Tx, sample: int) -> ExtractJob | None:
        params = {"id": sample, "epoch": tx.epoch, "worker": self.worker, "now": tx.now_ms}
        row = tx.db.rows("claim_extract", params)[0]
        number, attempt, uid, n_prompt, prompt_crc, n_output, output_crc, dataset, p, a = row
        if p is None or a is None:
            detail = "the stored ids are gone: `eagled db check` names what else is missing"
            tx.db.run("fail_extract", {"id": sample, "detail": detail, "now": tx.now_ms})
            return None
        fence = Fence(number, attempt, tx.epoch)
        prompt = PackedIds(p, prompt_crc, n_prompt)
        return ExtractJob(fence, uid, dataset, prompt, PackedIds(a, output_crc, n_output))


@dataclass(frozen=True, slots=True)
class CommitShard(Op[ShardCommit]):
    """Record a shard that is on disk, and its members."""

    record: ShardRecord
    members: tuple[ShardMember, ...]

    @property
    def weight(self) -> int:  # type: ignore[override]  # a property where the base has a default
        """Return the rows it may touch."""
        return len(self.members)

    def apply(self, tx: Tx) -> ShardCommit:
        """Return how many members counted; with none, no shard is recorded.

        Raises:
            ArtifactError: if the name is taken by another file.
        """
        known = tx.db.rows("shard_by_name", {"name": self.record.name})
        if known:
            return self._again(tx, known[0])
        live = live_rows(tx, "live_extracts", [m.fence for m in self.members])
        if not live:
            return ShardCommit(0, len(self.members))
        params = asdict(self.record) | {"now": tx.now_ms}
        shard = int(tx.db.rows("insert_shard", params)[0][0])
        accepted = self._enter(tx, shard, live)
        detail = f"{accepted} samples, {self.record.file_bytes} bytes"
        write_event(tx, EventKind.SHARD_COMMITTED, self.record.name, detail, -1)
        return ShardCommit(accepted, len(self.members) - accepted)

    def _again(self, tx: Tx, known: tuple[Any, ...]) -> ShardCommit:
        shard, sha256, dropped = known
        if sha256 != self.record.sha256 or dropped not in (None, CONSUMED):
            raise ArtifactError(
                f"shard {self.record.name!r} is recorded with checksum {sha256}, not "
                f"{self.record.sha256}" + (f"; it was dropped: {dropped}" if dropped else "")
            )
        accepted = int(tx.db.rows("count_in_shard", {"id": shard})[0][0])
        return ShardCommit(accepted, max(0, len(self.members) - accepted))

    def _enter(self, tx: Tx, shard: int, live: dict[tuple[int, int, int], tuple[Any, ...]]) -> int:
        rows = []
        for member in self.members:
            found = live.pop(fence_key(member.fence), None)
            if found is None:
                continue
            uid, crc = found
            rows.append((shard, member.index, tx.now_ms, member.fence.sample_id))
            tx.acks.append(Ack(SampleState.EXTRACTED, uid.hex(), member.fence.attempt, crc))
        tx.db.many("extracted", rows)
        return len(rows)


@dataclass(frozen=True, slots=True)
class FailExtract(Op[bool]):
    """Record an extraction that gave no usable states."""

    fence: Fence
    reason: str
    detail: str
    final: bool

    def apply(self, tx: Tx) -> bool:
        """Send it back or give it up; False if stale."""
        if fence_key(self.fence) not in live_rows(tx, "live_extracts", [self.fence]):
            return False
        detail = printable(self.detail)
        write_failure(tx, self.fence, self.reason, detail)
        sample = self.fence.sample_id
        if self.final:
            why = {"id": sample, "detail": f"{self.reason}: {detail}", "now": tx.now_ms}
            tx.db.run("fail_extract", why)
        else:
            tx.db.run("unextract", (tx.now_ms, sample))
        return True


@dataclass(frozen=True, slots=True)
class ReleaseExtract(Op[int]):
    """Take back up to 500 samples from a worker (None: from all)."""

    worker: str | None

    def apply(self, tx: Tx) -> int:
        """Return how many went back."""
        if self.worker is None:
            rows = tx.db.rows("extracting_all")
        else:
            rows = tx.db.rows("extracting_of", {"worker": self.worker})
        tx.db.many("unextract", [(tx.now_ms, sample) for (sample,) in rows])
        return len(rows)


@dataclass(frozen=True, slots=True)
class DropShard(Op[int]):
    """Mark a shard as gone and send up to 200 of its members back to wait for extraction."""

    name: str
    reason: str

    def apply(self, tx: Tx) -> int:
        """Return how many went back; 0 when none is left."""
        known = tx.db.rows("shard_by_name", {"name": self.name})
        if not known:
            raise ArtifactError(f"no shard is called {self.name!r}")
        shard = known[0][0]
        reason = printable(self.reason)
        if tx.db.run("drop_shard", {"id": shard, "reason": reason}):
            write_event(tx, EventKind.SHARD_SET_ASIDE, self.name, reason, -1)
        rows = tx.db.rows("shard_members", {"id": shard})
        tx.db.many("leave_shard", [(tx.now_ms, sample) for (sample,) in rows])
        return len(rows)


@dataclass(frozen=True, slots=True)
class ConsumeShard(Op[bool]):
    """Mark a shard as read by every consumer of the ring; its members stay extracted."""

    name: str

    def apply(self, tx: Tx) -> bool:
        """Return False if it no longer counted."""
        known = tx.db.rows("shard_by_name", {"name": self.name})
        if not known:
            raise ArtifactError(f"no shard is called {self.name!r}")
        if not tx.db.run("drop_shard", {"id": known[0][0], "reason": CONSUMED}):
            return False
        write_event(tx, EventKind.SHARD_CONSUMED, self.name, "released by every consumer", -1)
        return True
