"""A back end and a daemon in memory, for tests of the extraction worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eagled.errors import DiskError, UnreachableError
from eagled.shards.backend import Captured, Ids
from eagled.shards.format import ShardManifest
from eagled.tokens import make_uid, pack_ids
from eagled.types import ExtractJob, Fence, ShardMember, ShardRecord
from tests.unit.shards.helpers import HIDDEN, LAYERS, manifest, random_bits


def make_job(number: int, *, epoch: int = 1, n_prompt: int = 5, n_output: int = 6) -> ExtractJob:
    """Return a job whose ids depend on its number only."""
    ids = np.random.default_rng(number).integers(0, 300, n_prompt + n_output)
    fence = Fence(number, 1, epoch)
    uid = make_uid(str(number))
    return ExtractJob(fence, uid, "alpha", pack_ids(ids[:n_prompt]), pack_ids(ids[n_prompt:]))


class ToyBackend:
    """States that depend on the ids only; it can refuse to work on some of them."""

    def __init__(self) -> None:
        self.manifest: ShardManifest = manifest()
        self.batches: list[int] = []
        self.max_batch = 100
        self.broken: set[int] = set()  # first ids of samples whose states are NaN
        self.raises: set[int] = set()  # first ids of samples that raise
        self.mix = False  # every row of a batch lands in its first result

    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Return states, or fail as told."""
        self.batches.append(len(batch))
        if len(batch) > self.max_batch:
            raise MemoryError("toy device is full")
        if any(int(ids[0]) in self.raises for ids in batch):
            raise RuntimeError("toy kernel failed")
        results = [self._one(ids) for ids in batch]
        if self.mix and len(results) > 1:
            every = np.concatenate([r.aux for r in results])
            results = [
                Captured(r.token_ids, every if i == 0 else every[:0], r.last)
                for i, r in enumerate(results)
            ]
        return results

    def _one(self, ids: Ids) -> Captured:
        rng = np.random.default_rng(int(ids.sum()))
        aux = random_bits(rng, (len(ids), len(LAYERS), HIDDEN))
        if int(ids[0]) in self.broken:
            aux[1, 1, 0] = 0x7FC0
        return Captured(ids, aux, random_bits(rng, (len(ids), HIDDEN)))

    def release(self, batch: Sequence[Ids]) -> None:
        """Nothing is kept."""

    def self_check(self) -> None:
        """Nothing to compare with."""


class Daemon:
    """The daemon's side of extraction, in memory, with the store's rules."""

    def __init__(self, jobs: Sequence[ExtractJob], epoch: int = 1) -> None:
        self.waiting = {j.fence.sample_id: j for j in jobs}
        self.held: dict[int, ExtractJob] = {}
        self.epoch = epoch
        self.shards: dict[str, ShardRecord] = {}
        self.extracted: dict[int, str] = {}
        self.failed: list[tuple[int, str, bool]] = []
        self.claims = 0
        self.away = 0
        self.full = 0  # calls that fail since its own disk is full
        self.lose_answers = 0
        self.before_commit: Callable[[], None] = lambda: None
        self.generating = 0
        self.long_poll: asyncio.Event | None = None  # an empty claim waits for it

    async def hello(self, worker: str, kind: str, pid: int) -> None:
        """Accept an extraction worker."""
        self._reach()
        assert (bool(worker), kind, pid > 0) == (True, "extract", True)

    async def claim_extract(
        self, worker: str, max_samples: int, max_tokens: int
    ) -> list[ExtractJob]:
        """Hand out what waits, without waiting itself."""
        self._reach()
        assert worker
        assert max_tokens > 0
        self.claims += 1
        if not self.waiting and self.long_poll is not None:
            await self.long_poll.wait()
        chosen = list(self.waiting)[:max_samples]
        for number in chosen:
            job = self.waiting.pop(number)
            fence = Fence(number, job.fence.attempt, self.epoch)
            self.held[number] = ExtractJob(fence, job.uid, job.dataset, job.prompt, job.output)
        return [self.held[n] for n in chosen]

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Record a shard once, for those members whose fence holds."""
        self._reach()
        self.before_commit()
        if record.name in self.shards:
            n = sum(name == record.name for name in self.extracted.values())
            return n, len(members) - n
        live = [m for m in members if self._is_live(m.fence)]
        if live:
            self.shards[record.name] = record
        for member in live:
            del self.held[member.fence.sample_id]
            self.extracted[member.fence.sample_id] = record.name
        if self.lose_answers:
            self.lose_answers -= 1
            raise UnreachableError("the answer was lost")
        return len(live), len(members) - len(live)

    async def fail_extract(
        self, fence: Fence, reason: str, detail: str = "", *, final: bool
    ) -> bool:
        """Send a sample back or give it up."""
        self._reach()
        assert detail
        if not self._is_live(fence):
            return False
        job = self.held.pop(fence.sample_id)
        self.failed.append((fence.sample_id, reason, final))
        if not final:
            again = Fence(fence.sample_id, fence.attempt + 1, self.epoch)
            self.waiting[fence.sample_id] = ExtractJob(
                again, job.uid, job.dataset, job.prompt, job.output
            )
        return True

    async def status(self) -> dict[str, Any]:
        """Return the counts that the loop looks at."""
        self._reach()
        counts = {"generated": len(self.waiting), "generating": self.generating}
        return {"lanes": {"short": counts}, "datasets": {"alpha": counts}}

    def restart(self) -> None:
        """A new epoch: every claim is taken back."""
        self.epoch += 1
        for number, job in self.held.items():
            again = Fence(number, job.fence.attempt + 1, self.epoch)
            self.waiting[number] = ExtractJob(again, job.uid, job.dataset, job.prompt, job.output)
        self.held.clear()

    def _is_live(self, fence: Fence) -> bool:
        held = self.held.get(fence.sample_id)
        return held is not None and held.fence == fence

    def _reach(self) -> None:
        if self.away:
            self.away -= 1
            raise UnreachableError("nobody answers")
        if self.full:
            self.full -= 1
            raise DiskError("q.db: the disk is full")
