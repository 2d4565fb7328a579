"""Hand out text checks and extraction work, and take back what a dead worker held.

Guarantee: work is bound to the worker's process; when that process is gone its work is handed out
again, and what killed it is found out (`suspects.py`). Results count only by the store's own
fences, so a worker that was given up too early can do no harm.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from eagled.control.doorbell import Doorbell
from eagled.control.protocol import CLAIM_WAIT_S
from eagled.control.suspects import Suspects
from eagled.types import (
    ExtractJob,
    Fence,
    OutputReason,
    ShardMember,
    ShardRecord,
    TextJob,
    TextVerdict,
)

if TYPE_CHECKING:
    from eagled.store import Store
    from eagled.store.records import ShardCommit

LOOK_EVERY_S = 2.0  # work that came without a ring is found after this


def is_alive(pid: int) -> bool:
    """Return whether a process of this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class TextDesk:
    """Answers that wait for their check; in the hands of at most one worker each."""

    def __init__(
        self,
        store: Store,
        doorbell: Doorbell,
        lane_of: Callable[[int], str | None],
        may_claim: Callable[[], bool],
    ) -> None:
        self._store = store
        self._doorbell = doorbell
        self._lane_of = lane_of
        self._may_claim = may_claim
        self._held: dict[int, int] = {}  # sample id -> pid
        self._suspects = Suspects()
        self._claiming = asyncio.Lock()

    @property
    def held(self) -> int:
        """Checks in the hands of workers."""
        return len(self._held)

    async def claim(self, pid: int, maximum: int) -> list[TextJob]:
        """Return up to `maximum` checks; waits for one, at most `CLAIM_WAIT_S`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLAIM_WAIT_S
        while True:
            jobs = await self._take(pid, maximum)
            left = deadline - loop.time()
            if jobs or left <= 0:
                return jobs
            await self._doorbell.wait(min(left, LOOK_EVERY_S))

    async def _take(self, pid: int, maximum: int) -> list[TextJob]:
        if not self._may_claim():
            return []
        async with self._claiming:
            found = await self._store.text_jobs(maximum, exclude=self._held.keys())
            innocent = await self._without_guilty(found)
            jobs = list(self._suspects.alone(innocent, lambda job: job.sample_id))
            self._held.update((job.sample_id, pid) for job in jobs)
            return jobs

    async def _without_guilty(self, jobs: Sequence[TextJob]) -> list[TextJob]:
        """Reject what workers keep dying over; return the rest."""
        guilty = [job for job in jobs if self._suspects.is_guilty(job.sample_id)]
        if guilty:
            reason = OutputReason.QUARANTINED
            verdicts = [
                TextVerdict(job.sample_id, job.attempt, reason, self._suspects.why(job.sample_id))
                for job in guilty
            ]
            await self._store.settle_text(verdicts, lane_of=self._lane_of)
            self._suspects.clear(job.sample_id for job in guilty)
        return [job for job in jobs if job not in guilty]

    async def settle(self, verdicts: Sequence[TextVerdict]) -> int:
        """Store verdicts; return how many still counted."""
        try:
            return await self._store.settle_text(verdicts, lane_of=self._lane_of)
        finally:
            for verdict in verdicts:
                self._held.pop(verdict.sample_id, None)
            self._suspects.clear(verdict.sample_id for verdict in verdicts)
            self._doorbell.ring()

    def release(self, pid: int, *, died: bool = False) -> int:
        """Take back what a process held; return how many checks that were.

        With `died` they may be what killed it.
        """
        mine = [sample for sample, holder in self._held.items() if holder == pid]
        for sample in mine:
            del self._held[sample]
        if died:
            self._suspects.charge(mine)
        if mine:
            self._doorbell.ring()
        return len(mine)

    def sweep(self) -> None:
        """Take back what vanished processes held."""
        for pid in set(self._held.values()):
            if not is_alive(pid):
                self.release(pid, died=True)


class Shortlist(Protocol):
    """The samples that may be extracted, when not all may."""

    async def next(self, n: int) -> Sequence[int]:
        """Return up to `n` numbers to try."""

    def put_back(self, ids: Sequence[int]) -> None:
        """Take back what was not claimed."""


class ExtractDesk:
    """Samples that wait for their hidden states.

    Args:
        store: where they are.
        doorbell: rings when there may be more.
        may_claim: asked before each claim; False keeps the workers waiting.
        shortlist: hand out only these; None hands out every accepted answer.
    """

    def __init__(
        self,
        store: Store,
        doorbell: Doorbell,
        may_claim: Callable[[], bool],
        shortlist: Shortlist | None = None,
    ) -> None:
        self._store = store
        self._doorbell = doorbell
        self._may_claim = may_claim
        self._shortlist = shortlist
        self._holders: dict[str, int] = {}  # worker name -> pid
        self._tokens: dict[str, dict[int, int]] = {}  # worker name -> sample id -> its tokens
        self._in_hand: dict[str, list[Fence]] = {}  # of each worker's last claim, until its next
        self._suspects = Suspects()
        self.trouble = ""  # why the last extraction came back; empty since one went well
        self.committed_bytes = 0  # of the shards that came since this daemon started

    @property
    def pending_tokens(self) -> int:
        """Tokens that are claimed and not yet in a shard."""
        return sum(sum(held.values()) for held in self._tokens.values())

    @property
    def workers(self) -> int:
        """Workers that have asked for work and still live."""
        return len(self._holders)

    async def hello(self, worker: str, pid: int) -> None:
        """A worker starts: what an earlier one of its name held goes back."""
        before = self._holders.get(worker)
        if before is not None and before != pid and not is_alive(before):
            await self.release(before, died=True)
        await self._store.release_extract(worker)
        self._in_hand.pop(worker, None)
        self._holders[worker] = pid
        self._tokens[worker] = {}

    async def claim(
        self, worker: str, pid: int, max_samples: int, max_tokens: int
    ) -> list[ExtractJob]:
        """Return samples to extract; waits for one, at most `CLAIM_WAIT_S`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLAIM_WAIT_S
        if self._holders.get(worker) != pid:
            await self.hello(worker, pid)
        survived = self._in_hand.pop(worker, [])  # whoever asks again is through with those
        self._suspects.clear(fence.sample_id for fence in survived)
        while True:
            jobs = await self._take(worker, max_samples, max_tokens)
            left = deadline - loop.time()
            if jobs or left <= 0:
                return jobs
            await self._doorbell.wait(min(left, LOOK_EVERY_S))

    async def _take(self, worker: str, max_samples: int, max_tokens: int) -> list[ExtractJob]:
        if not self._may_claim():
            return []
        jobs = await self._take_suspect(worker, max_tokens)
        if not jobs:
            jobs = await self._take_some(worker, max_samples, max_tokens)
        held = self._tokens.setdefault(worker, {})
        held.update((job.fence.sample_id, job.prompt.n + job.output.n) for job in jobs)
        self._in_hand[worker] = [job.fence for job in jobs]
        return jobs

    async def _take_suspect(self, worker: str, max_tokens: int) -> list[ExtractJob]:
        """Return one sample over which a worker died, by itself."""
        elsewhere = {fence.sample_id for held in self._in_hand.values() for fence in held}
        for sample in self._suspects.waiting():
            if sample in elsewhere:
                continue
            jobs = await self._store.claim_extract(1, max_tokens, worker=worker, ids=[sample])
            if jobs:
                return jobs
            self._suspects.clear([sample])  # settled meanwhile
        return []

    async def _take_some(self, worker: str, max_samples: int, max_tokens: int) -> list[ExtractJob]:
        listed = await self._shortlist.next(max_samples) if self._shortlist is not None else None
        if listed is not None and not listed:
            return []
        jobs = await self._store.claim_extract(max_samples, max_tokens, worker=worker, ids=listed)
        if self._shortlist is not None and listed is not None and jobs:
            last = listed.index(jobs[-1].fence.sample_id)
            self._shortlist.put_back(listed[last + 1 :])
        return jobs

    async def commit(self, record: ShardRecord, members: Sequence[ShardMember]) -> ShardCommit:
        """Store a complete shard."""
        result = await self._store.commit_shard(record, members)
        if result.accepted:
            self.committed_bytes += record.file_bytes
            self.trouble = ""
        self._settled(member.fence for member in members)
        return result

    def _settled(self, fences: Iterable[Fence]) -> None:
        samples = [fence.sample_id for fence in fences]
        for held in self._tokens.values():
            for sample in samples:
                held.pop(sample, None)

    async def fail(self, fence: Fence, reason: str, detail: str, *, final: bool) -> bool:
        """Store that a sample's states were refused."""
        if not final:
            self.trouble = f"{reason}: {detail}"
        counted = await self._store.fail_extract(fence, reason, detail, final=final)
        self._settled([fence])
        return counted

    async def release(self, pid: int, *, died: bool = False) -> int:
        """Take back what a process held; return how many samples that were.

        With `died` those of its last claim may be what killed it: older ones were computed.
        """
        released = 0
        for worker in [name for name, holder in self._holders.items() if holder == pid]:
            in_hand = self._in_hand.pop(worker, [])
            if died:
                await self._accuse(in_hand)
            released += await self._store.release_extract(worker)
            self._holders.pop(worker, None)
            self._tokens.pop(worker, None)
        return released

    async def _accuse(self, fences: Sequence[Fence]) -> None:
        """Charge samples with the end of a worker; give up those that it happens to again."""
        self._suspects.charge(fence.sample_id for fence in fences)
        for fence in fences:
            sample = fence.sample_id
            if self._suspects.is_guilty(sample):
                why = self._suspects.why(sample)
                await self._store.fail_extract(fence, OutputReason.QUARANTINED, why, final=True)
                self._suspects.clear([sample])

    async def sweep(self) -> None:
        """Take back what vanished processes held."""
        for pid in set(self._holders.values()):
            if not is_alive(pid):
                await self.release(pid, died=True)
