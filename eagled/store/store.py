"""The daemon's durable truth.

Guarantee: whatever a method of this class returned is on disk (synchronous=FULL) before it returns;
a SIGKILL or power cut at any line loses no acknowledged result. Price: one fsync a group of waiting
operations. Only this class's writer task writes; reads use their own connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Self, TypeVar

from eagled.clock import Clock
from eagled.errors import StoreError
from eagled.paths import StatePaths
from eagled.store import causes, queries
from eagled.store.backend import ReadBackend, WriteBackend, open_writer
from eagled.store.causes import CauseGroup
from eagled.store.executor import SqliteExecutor
from eagled.store.feed import Feed, Subscription
from eagled.store.opening import Opened, rid
from eagled.store.ops import change, control, enqueue, extract, generation, text
from eagled.store.ops.base import Op
from eagled.store.ops.generation import RETRY_CLAMP_MS
from eagled.store.records import (
    AddResult,
    CounterRow,
    DatasetRecord,
    DatasetRow,
    EventRow,
    FailureGroup,
    LaneRow,
    NewConversation,
    Recovery,
    SampleDetail,
    SampleFilter,
    SampleRow,
    ShardCommit,
    ShardRow,
    StoredMember,
)
from eagled.store.tools import migration_backup
from eagled.store.writer import Writer
from eagled.tokens import PackedIds
from eagled.types import (
    Answer,
    Claim,
    EventKind,
    ExtractJob,
    Failure,
    Fence,
    SampleState,
    ShardMember,
    ShardRecord,
    TextJob,
    TextVerdict,
)

log = logging.getLogger(__name__)
R = TypeVar("R")
_SETTLE_SLICE = 100
_FENCE_SLICE = 500


class Store:
    """One a daemon; open it with `Store.open`, close it with `close` or `async with`.

    Attributes:
        lineage: 16 bytes that name this database's history.
        epoch: the number of this start.
        recovery: what the start found and did.
        failed: done, with the cause, once the store takes nothing more; stop the daemon then.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        backend: WriteBackend,
        opened: Opened,
        readers: tuple[ReadBackend, ReadBackend, ReadBackend],
        paths: StatePaths,
    ) -> None:
        self._stack = stack
        self._backend = backend
        self._status, self._bulk, self._work = readers  # a long list delays neither status nor work
        self._feed = Feed()
        self._writer = Writer(backend, paths.database, self._feed.publish)
        self._closed = False
        self.lineage = opened.lineage
        self.epoch = opened.epoch
        self.recovery: Recovery = opened.recovery
        self.failed: asyncio.Future[BaseException] = self._writer.failed
        self.stale_completions = 0

    @classmethod
    async def open(
        cls,
        paths: StatePaths,
        *,
        clock: Clock,
        create: bool = False,
        longest_wait_s: float = RETRY_CLAMP_MS / 1000,
    ) -> Store:
        """Open the database of a state directory whose `StateLock` the caller holds.

        Checks, migrates and recovers it first. With `create` an empty one is made where nothing
        ever was. No retry waits longer than `longest_wait_s` from now, whatever the clock did
        meanwhile. On an error every connection is closed again.

        Raises:
            StoreError: if it is absent, foreign, newer, damaged or behind its stamp.
            DiskError: if the disk refuses.
        """
        async with AsyncExitStack() as stack:
            backup = migration_backup(paths)
            backend, opened = await open_writer(
                stack, paths, clock, backup, create=create, longest_wait_s=longest_wait_s
            )
            status = await ReadBackend.open(stack, paths.database)
            bulk = await ReadBackend.open(stack, paths.database)
            work = await ReadBackend.open(stack, paths.database)
            store = cls(stack.pop_all(), backend, opened, (status, bulk, work), paths)
        store._writer.start()
        for warning in opened.recovery.warnings:
            log.warning("%s", warning)
        return store

    async def close(self) -> None:
        """Work off what waits, record the orderly stop, close everything; safe to call twice.

        After a failure nothing is recorded, so that the next start checks the database.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self._writer.close()
            self._feed.close()
            if not self.failed.done():
                await self._backend.shut()
        finally:
            await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def rid(self, fence: Fence) -> str:
        """Return the request id of a claim, 63 characters, unique over all starts."""
        return rid(self.lineage, fence)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Return what an operator should know about the store itself right now."""
        found = [self._backend.stamp_error, self._writer.trouble]
        if self.failed.done():
            found.append(f"the store has failed: {self.failed.result()}")
        return tuple(a for a in found if a)

    @property
    def queue_depth(self) -> int:
        """Return how many operations wait for the writer or are in its hands."""
        return self._writer.depth

    @property
    def commits(self) -> int:
        """Return how many transactions were written since the start."""
        return self._backend.commits

    @property
    def last_seq(self) -> int:
        """Return the sequence number of the last transaction that this daemon wrote."""
        return self._backend.last_seq

    def subscribe(self) -> Subscription:
        """Return a live feed of acknowledged results; a reader that lags is dropped."""
        return self._feed.subscribe()

    async def _do(self, op: Op[R]) -> R:
        return await self._writer.submit(op)

    async def _read(self, query: Callable[[SqliteExecutor], R]) -> R:
        return await self._status.read(query)

    # --- enqueue

    async def sync_lanes(
        self, lanes: Sequence[LaneRow], *, lane_of: Callable[[int], str | None] | None = None
    ) -> None:
        """Take over the configuration's lanes; pause and limit set by an operator stay.

        With `lane_of` (prompt tokens to lane) queued samples of lanes that are gone move; one that
        no lane takes is rejected.
        """
        await self._do(enqueue.SyncLanes(tuple(lanes)))
        moved = 1 if lane_of is not None else 0
        while lane_of is not None and moved:
            moved = await self._do(enqueue.MoveHomeless(lane_of))

    async def add_dataset(self, record: DatasetRecord) -> int:
        """Register a prepared dataset and return its number; known ones keep theirs.

        Raises:
            ArtifactError: if the name is taken by data of another preparation.
        """
        return await self._do(enqueue.AddDataset(record))

    async def add_conversations(
        self, dataset_id: int, items: Sequence[NewConversation]
    ) -> AddResult:
        """Store conversations in slices, each its own transaction; known ones are counted.

        Raises:
            UsageError: if a turn names a lane that is not there.
        """
        total = AddResult(0, 0, 0)
        for part in enqueue.slices(items):
            one = await self._do(enqueue.AddConversations(dataset_id, part))
            total = AddResult(
                total.added + one.added,
                total.known + one.known,
                total.duplicates + one.duplicates,
            )
        return total

    async def finish_dataset(self, dataset_id: int) -> None:
        """Say that all conversations of a dataset are in."""
        await self._do(enqueue.FinishDataset(dataset_id))

    # --- generation

    async def claim(self, lane: str, n: int) -> list[Claim]:
        """Take up to `n` (at most 512) queued samples of a lane; none if it is paused.

        Datasets go by priority, equal ones in turns; later turns and retries go first. A caller
        that is cancelled meanwhile loses nothing: what was claimed for it is given back.
        """
        if n <= 0:
            return []
        return await self._do(generation.ClaimSamples(lane, n))

    async def complete(self, fence: Fence, answer: Answer) -> bool:
        """Store an answer; True after it is durable, False if the claim is no longer held."""
        done = await self._do(generation.CompleteSample(fence, answer))
        self.stale_completions += not done
        return done

    async def extend(
        self, fence: Fence, partial: PackedIds, *, extended: int, elapsed_s: float, lane: str
    ) -> bool:
        """Keep all ids so far of an answer without an end, and queue its sample in `lane`.

        True after it is durable: the next claim carries them. False if the claim is not held.
        """
        op = generation.ExtendSample(fence, partial, extended, elapsed_s, lane)
        done = await self._do(op)
        self.stale_completions += not done
        return done

    async def fail(self, fence: Fence, failure: Failure) -> SampleState | None:
        """Record a failed attempt and return the state entered; None if stale."""
        return await self._do(generation.FailSample(fence, failure))

    async def give_back(
        self, fences: Sequence[Fence], *, crashed: bool = False, max_crashes: int = 3
    ) -> int:
        """Queue interrupted claims again, uncharged, and return how many were held.

        With `crashed` each counts a server crash; at `max_crashes` it fails as `quarantined`.
        """
        total = 0
        for i in range(0, len(fences), _FENCE_SLICE):
            part = tuple(fences[i : i + _FENCE_SLICE])
            total += await self._do(generation.GiveBack(part, crashed, max_crashes))
        return total

    async def wake_retries(self) -> int:
        """Queue retries whose wait is over, at most 500, and return how many."""
        return await self._do(generation.WakeRetries())

    # --- text

    async def text_jobs(self, n: int, *, exclude: Collection[int] = ()) -> list[TextJob]:
        """Return up to `n` answers that wait for their check, oldest first."""
        return await self._work.read(queries.text_jobs, n, frozenset(exclude))

    async def settle_text(
        self, verdicts: Sequence[TextVerdict], *, lane_of: Callable[[int], str | None]
    ) -> int:
        """Apply verdicts and return how many counted; the rest were stale.

        A next prompt is queued in `lane_of(its tokens)`; with no lane the next turn is rejected.
        """
        ready = [
            text.Settlement(v, lane_of(v.next_prompt.n) if v.next_prompt is not None else None)
            for v in verdicts
        ]
        total = 0
        for i in range(0, len(ready), _SETTLE_SLICE):
            total += await self._do(text.SettleText(tuple(ready[i : i + _SETTLE_SLICE])))
        return total

    # --- extraction

    async def claim_extract(
        self, max_samples: int, max_tokens: int, *, worker: str, ids: Sequence[int] | None = None
    ) -> list[ExtractJob]:
        """Hand accepted answers to a worker; the fence's attempt is the extraction's own.

        With `ids` only samples of that list are handed out, in its order.
        """
        if max_samples <= 0:
            return []
        chosen = tuple(ids) if ids is not None else None
        return await self._do(extract.ClaimExtract(max_samples, max_tokens, worker, chosen))

    async def commit_shard(
        self, record: ShardRecord, members: Sequence[ShardMember]
    ) -> ShardCommit:
        """Record a shard that is on disk under its final name; doing it twice changes nothing.

        With no member accepted no shard is recorded: the file can go.

        Raises:
            ArtifactError: if the name is taken by another file.
        """
        return await self._do(extract.CommitShard(record, tuple(members)))

    async def fail_extract(self, fence: Fence, reason: str, detail: str, *, final: bool) -> bool:
        """Send a sample back to wait for extraction, or fail it as `bad_states`."""
        return await self._do(extract.FailExtract(fence, reason, detail, final))

    async def release_extract(self, worker: str | None = None) -> int:
        """Take back what a worker (None: every worker) holds, and return how many."""
        total = 0
        while n := await self._do(extract.ReleaseExtract(worker)):
            total += n
        return total

    async def drop_shard(self, name: str, reason: str) -> int:
        """Mark a shard as gone, send its members back to extraction, return how many.

        Raises:
            ArtifactError: if there is no such shard.
        """
        total = 0
        while n := await self._do(extract.DropShard(name, reason)):
            total += n
        return total

    async def consume_shard(self, name: str) -> bool:
        """Mark a shard as read by every consumer; its samples stay extracted. False: it was gone.

        Raises:
            ArtifactError: if there is no such shard.
        """
        return await self._do(extract.ConsumeShard(name))

    # --- control

    async def set_lane(
        self,
        name: str,
        *,
        paused: bool | None = None,
        limit: int | None = None,
        share: float | None = None,
        uid: int,
    ) -> LaneRow:
        """Pause, resume, limit or weigh a lane and return it; share 0 is the configuration's.

        Raises:
            UsageError: if there is no such lane.
        """
        return await self._do(control.SetLane(name, paused, limit, uid, share))

    async def set_dataset(
        self,
        name: str,
        *,
        paused: bool | None = None,
        priority: int | None = None,
        limit: int | None = None,
        share: int | None = None,
        uid: int,
    ) -> DatasetRow:
        """Pause, resume, prioritise, limit (0: no limit) or weigh a dataset and return it.

        Raises:
            UsageError: if there is no such dataset.
        """
        return await self._do(control.SetDataset(name, paused, priority, uid, limit, share))

    async def set_setting(self, key: str, value: str, uid: int) -> None:
        """Store one live setting."""
        await self._do(control.SetSetting(key, value, uid))

    async def remember(self, key: str, value: str) -> None:
        """Store one setting of the daemon's own, without an event."""
        await self._do(control.SetSetting(key, value, -1, quiet=True))

    async def settings(self) -> dict[str, str]:
        """Return all live settings."""
        return await self._read(queries.settings)

    async def retry(self, which: Sequence[int] | SampleFilter, uid: int) -> int:
        """Queue failed or rejected samples again, charges forgiven; end waits of retries."""
        return await self._change(which, uid, change.RetrySamples, "{n} queued again")

    async def reject(self, which: Sequence[int] | SampleFilter, reason: str, uid: int) -> int:
        """Leave samples out with reason `operator`; those in flight or given up do not change."""
        make = partial(change.RejectSamples, detail=reason)
        return await self._change(which, uid, make, f"{{n}} rejected: {_quoted(reason)}")

    async def move(self, which: Sequence[int] | SampleFilter, lane: str, uid: int) -> int:
        """Put queued samples and waiting retries into another lane.

        Raises:
            UsageError: if there is no such lane.
        """
        make = partial(change.MoveSamples, lane=lane)
        return await self._change(which, uid, make, f"{{n}} moved to lane {_quoted(lane)}")

    async def _change(
        self,
        which: Sequence[int] | SampleFilter,
        uid: int,
        make: Callable[..., change.ChangeSamples],
        words: str,
    ) -> int:
        n = seq = 0
        async for part in self._parts(which):
            done = await self._do(make(part, _subject(which), uid, seq))
            n, seq = n + done.n, done.seq
        if seq:
            await self._do(change.FinishChange(seq, words.format(n=n)))
        return n

    async def count_change(
        self, which: Sequence[int] | SampleFilter, states: Collection[SampleState]
    ) -> int:
        """Return how many samples are in one of `states`: what a change would change."""
        if not isinstance(which, SampleFilter):
            rows = [await self._bulk.read(queries.state_of, number) for number in which]
            return sum(state in states for state in rows)
        n = after = 0
        while rows_ := await self.samples(which, after=after, limit=control.CHANGE_SLICE):
            after = rows_[-1].id
            n += sum(row.state in states for row in rows_)
        return n

    async def _parts(self, which: Sequence[int] | SampleFilter) -> AsyncIterator[tuple[int, ...]]:
        if not isinstance(which, SampleFilter):
            for i in range(0, len(which), control.CHANGE_SLICE):
                yield tuple(which[i : i + control.CHANGE_SLICE])
            return
        after = 0
        while rows := await self.samples(which, after=after, limit=control.CHANGE_SLICE):
            after = rows[-1].id
            yield tuple(row.id for row in rows)

    async def undo(self, uid: int) -> str | None:
        """Take the newest change back and say what it was; None if there is none left.

        Of a change of samples, those of which something has come since stay as they are.
        """
        restored = kept = 0
        while True:
            step = await self._do(change.Undo(uid))
            restored, kept = restored + step.restored, kept + step.kept
            if not step.more:
                break
        if step.what is None or not restored + kept:
            return step.what
        stay = f"; {kept} have gone on and stay" if kept else ""
        return f"{step.what} ({restored} taken back{stay})"

    async def add_event(self, kind: EventKind, subject: str, detail: str, uid: int = -1) -> int:
        """Append an event and return its number."""
        return await self._do(control.AddEvent(kind, subject, detail, uid))

    # --- reading

    async def events(self, after: int, limit: int) -> list[EventRow]:
        """Return events above number `after`, oldest first, at most 500."""
        return await self._status.read(queries.events, after, limit)

    async def counters(self) -> list[CounterRow]:
        """Return how many samples are where."""
        return await self._read(queries.counters)

    async def lanes(self) -> list[LaneRow]:
        """Return the configured lanes in order."""
        return await self._read(queries.lanes)

    async def datasets(self) -> list[DatasetRow]:
        """Return all datasets."""
        return await self._read(queries.datasets)

    async def shards(self) -> list[ShardRow]:
        """Return all shards, dropped ones included."""
        return await self._read(queries.shards)

    async def shard_members(self, name: str) -> list[StoredMember]:
        """Return the samples of one shard in file order."""
        return await self._bulk.read(queries.shard_members, name)

    async def shard_conversations(self, name: str) -> list[tuple[bytes, bytes]]:
        """Return uid and conversation of each sample of one shard, in file order."""
        return await self._bulk.read(queries.shard_conversations, name)

    async def sample(self, uid_hex: str) -> SampleDetail | None:
        """Return everything known of one sample; None if there is none of that identity."""
        try:
            uid = bytes.fromhex(uid_hex)
        except ValueError:
            return None
        return await self._status.read(queries.sample, uid)

    async def samples(
        self, wanted: SampleFilter | None = None, limit: int = 100, *, after: int = 0
    ) -> list[SampleRow]:
        """Return samples of ascending id above `after`, at most 500."""
        chosen = wanted or SampleFilter()
        return await self._bulk.read(
            lambda db: queries.samples(db.conn.execute, chosen, after, limit)
        )

    async def causes(self, limit: int = 50) -> list[CauseGroup]:
        """Return given-up samples grouped by what caused it, largest first."""
        return await self._bulk.read(
            lambda db: causes.groups(db.conn.execute, causes.expectations(db), limit)
        )

    async def of_cause(self, cause: str) -> list[int]:
        """Return the numbers of the given-up samples of one cause."""
        return await self._bulk.read(lambda db: causes.members(db.conn.execute, cause))

    async def failures(self, limit: int = 50) -> list[FailureGroup]:
        """Return given-up samples in groups, largest first."""
        return await self._bulk.read(queries.failure_groups, limit)

    async def conversation(self, number: int) -> bytes | None:
        """Return a conversation's zstd JSON; None where none is stored."""
        return await self._bulk.read(queries.conversation, number)

    async def reclaim(self, pages: int = 500) -> None:
        """Give free pages back to the file system, between two transactions.

        Raises:
            StoreError: if the store has failed or is closed.
        """
        if self.failed.done() or self._closed:
            raise StoreError("the store is closed")
        await self._backend.vacuum(pages)


def _quoted(text: str) -> str:
    """Return text in which braces mean nothing."""
    return text.replace("{", "{{").replace("}", "}}")


def _subject(which: Sequence[int] | SampleFilter) -> str:
    if isinstance(which, SampleFilter):
        parts = (which.dataset, which.lane, which.state, which.reason)
        return "/".join(p for p in parts if p) or "all"
    return ",".join(str(i) for i in which[:5]) + ("…" if len(which) > 5 else "")  # noqa: PLR2004 - a glance
