"""The loop of the extraction worker: claimed samples become committed shards.

Guarantee: a sample counts as extracted only after its shard is complete under its final name and
the daemon has acknowledged it. Whatever happens before that costs work, never data: a daemon that
restarted no longer knows the claims, so the open shard is dropped; a commit without an answer is
sent again, which is harmless, since a shard's name is made from its bytes. One bad sample fails
alone. Price: a shard is closed when it is full or old, so a crash redoes up to `max_wait_s` of
work. When asked to stop, the loop ends the batch in hand, then closes and commits the open shard.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from eagled.clock import Clock
from eagled.errors import DiskError, EagledError, UnreachableError
from eagled.printable import printable
from eagled.shards.backend import Ids, StatesBackend
from eagled.shards.compute import Refused, Work, compute, length_batches, open_jobs
from eagled.shards.format import StatesSample
from eagled.shards.scan import remove_leftovers
from eagled.shards.writer import FinishedShard, ShardWriter
from eagled.types import ExtractJob, Fence, ShardMember, ShardRecord

_log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_SAMPLES = 256  # of one claim; enough to sort by length
CLAIM_BATCHES = 4  # batches' worth of tokens in one claim, for the same reason
IDLE_WAIT_S = 1.0  # the daemon holds an empty claim open itself; this only guards against a spin
RETRY_WAITS_S = (0.5, 1.0, 2.0, 5.0)  # while the daemon is away; the last one repeats
LOOK_S = 2.0  # how often an open shard is looked at while a claim waits
SETTLE_S = 10.0  # idle time after which a batch of work counts as over; twice the daemon's scan
DISK_WAIT_S = 10.0  # before the next claim after a full disk
AWAY_WAIT_S = 5.0  # before the next batch while the back end's servers are away
MAX_TRIES = 3  # of one sample that raises without being refused (memory, driver)
_AHEAD = ("generating", "retry_wait", "generated")  # states that lead to extraction by themselves
_QUEUED = ("queued", "waiting")  # these as well, unless the daemon is held
_HELD = ("draining", "paused", "stopping")  # phases in which nothing new is generated


class ExtractLink(Protocol):
    """What the worker needs of the daemon (`eagled.control.client.ControlClient` has it)."""

    async def hello(self, worker: str, kind: str, pid: int) -> None:
        """Announce this worker; what an earlier one of its name held is taken back."""

    async def claim_extract(
        self, worker: str, max_samples: int, max_tokens: int
    ) -> list[ExtractJob]:
        """Return samples to extract; empty after a wait when there are none or it is paused."""

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Report a complete shard; return how many members counted and were stale."""

    async def fail_extract(
        self, fence: Fence, reason: str, detail: str = "", *, final: bool
    ) -> bool:
        """Report a sample without usable states; return whether that still counted."""

    async def status(self) -> dict[str, Any]:
        """Return the status document."""


@dataclass(frozen=True, slots=True)
class ExtractSettings:
    """What the loop needs of the configuration.

    Attributes:
        shards: folder of the shards.
        batch_tokens: most tokens of one forward pass, padding included.
        target_bytes: size at which a shard is closed.
        max_wait_s: age at which a shard is closed.
        stop_timeout_s: longest wait for the daemon after a stop was asked for.
        worker: name of this worker.
        once: end when nothing is left to do, instead of waiting for more.
        trickle: whether samples come as they are generated; else they come all at once, after a
            merge, and a shard is closed as soon as no more are handed out.
        idle_wait_s: least time between two empty claims.
        look_s: how often an open shard is looked at while a claim waits.
        disk_wait_s: wait after a full disk.
        encode_threads: most threads that encode states.
    """

    shards: Path
    batch_tokens: int
    target_bytes: int
    max_wait_s: float
    stop_timeout_s: float
    worker: str = "extract"
    once: bool = False
    trickle: bool = True
    idle_wait_s: float = IDLE_WAIT_S
    look_s: float = LOOK_S
    disk_wait_s: float = DISK_WAIT_S
    away_wait_s: float = AWAY_WAIT_S
    encode_threads: int = 1


@dataclass(slots=True)
class _OpenShard:
    writer: ShardWriter
    opened_s: float  # monotonic
    members: list[ShardMember] = field(default_factory=list)
    ids: list[Ids] = field(default_factory=list)  # whole samples, for the back end to release

    @property
    def fences(self) -> list[Fence]:
        return [m.fence for m in self.members]


class Extraction:
    """The worker's loop; one a process."""

    def __init__(
        self,
        link: ExtractLink,
        backend: StatesBackend,
        settings: ExtractSettings,
        clock: Clock,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `refresh` is called before each claim's work, and may change the manifest."""
        self._link = link
        self._backend = backend
        self._refresh = refresh
        self._settings = settings
        self._clock = clock
        self._open: _OpenShard | None = None
        self._stop = asyncio.Event()
        self._stop_by_s = 0.0  # monotonic; holds once stopping
        self._idle_since_s = 0.0  # monotonic
        self._tries: Counter[bytes] = Counter()
        self.shards = 0
        self.samples = 0

    def stop(self) -> None:
        """Ask the loop to end within the stop timeout."""
        if not self._stop.is_set():
            self._stop_by_s = self._clock.monotonic() + self._settings.stop_timeout_s
            self._stop.set()

    async def run(self) -> None:
        """Work until stopped or, with `once`, until nothing is left.

        Raises:
            UnreachableError: with `once`, if no daemon answers.
        """
        try:
            await self._startup()
            await self._main_loop()
        except UnreachableError:
            if not self._stop.is_set():
                raise
        finally:
            await self._close()

    async def _startup(self) -> None:
        shards, worker = self._settings.shards, self._settings.worker
        if removed := await asyncio.to_thread(remove_leftovers, shards, worker):
            _log.warning("leftovers removed files=%d", len(removed))
        await self._reach(lambda: self._link.hello(worker, "extract", os.getpid()))

    async def _main_loop(self) -> None:
        while not self._stop.is_set():
            jobs = await self._reach(self._claim)
            if jobs:
                await self._extract(jobs)
                self._idle_since_s = self._clock.monotonic()
            if await self._is_due(idle=not jobs):
                await self._close()
            if not jobs and await self._is_finished():
                _log.info("nothing to do shards=%d samples=%d", self.shards, self.samples)
                return
            if not jobs:
                await self._pause(self._settings.idle_wait_s)

    async def _claim(self) -> list[ExtractJob]:
        """Return claimed jobs, or none when stopped meanwhile (the daemon takes those back).

        A claim can wait long; an open shard is closed meanwhile when it is due.
        """
        tokens = self._settings.batch_tokens * CLAIM_BATCHES
        claim = asyncio.ensure_future(
            self._link.claim_extract(self._settings.worker, MAX_SAMPLES, tokens)
        )
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while not (claim.done() or stopped.done()):
                await asyncio.wait(
                    {claim, stopped},
                    timeout=self._settings.look_s if self._open else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not (claim.done() or stopped.done()) and await self._is_due(idle=True):
                    await self._close()
            return claim.result() if claim.done() else []
        finally:
            for task in (claim, stopped):
                task.cancel()
            await asyncio.gather(claim, stopped, return_exceptions=True)

    async def _extract(self, jobs: Sequence[ExtractJob]) -> None:
        await self._look_at_policy()
        vocab = self._backend.manifest.vocab_size
        works, refused = await asyncio.to_thread(open_jobs, jobs, vocab)
        for item in refused:
            await self._refuse(item)
        for batch in length_batches(works, self._settings.batch_tokens):
            if self._stop.is_set():
                return  # the daemon takes back what a stopped worker holds
            away = False
            for result in await asyncio.to_thread(compute, self._backend, batch):
                if isinstance(result, Refused):
                    away = away or result.away
                    await self._refuse(result)
                else:
                    await self._keep(*result)
            if away:
                await self._pause(self._settings.away_wait_s)

    async def _look_at_policy(self) -> None:
        """Follow a change of how states are stored: a shard has one policy."""
        await asyncio.to_thread(self._refresh)
        manifest = self._backend.manifest
        if self._open is not None and self._open.writer.manifest != manifest:
            _log.info("states are stored otherwise from here on; the open shard is closed")
            await self._close()

    async def _keep(self, work: Work, sample: StatesSample) -> None:
        """Append a sample to the open shard; close that when it is full."""
        fence = work.job.fence
        if self._open is not None and self._open.members[0].fence.epoch != fence.epoch:
            _log.warning("daemon restarted, open shard dropped samples=%d", len(self._open.members))
            await self._discard()
        try:
            await asyncio.to_thread(self._append, work, sample)
        except DiskError as exc:
            await self._disk_trouble(exc, fence)
            return
        self._tries.pop(work.job.uid, None)
        if self._open is not None and self._open.writer.data_bytes >= self._settings.target_bytes:
            await self._close()

    def _append(self, work: Work, sample: StatesSample) -> None:
        """Write a sample, opening a shard if needed; runs in a thread."""
        shard = self._open
        if shard is None:
            manifest, worker = self._backend.manifest, self._settings.worker
            writer = ShardWriter(
                self._settings.shards,
                manifest,
                owner=worker,
                threads=self._settings.encode_threads,
            )
            shard = _OpenShard(writer, self._clock.monotonic())
        index = shard.writer.append(sample)
        shard.members.append(ShardMember(work.job.fence, index))
        shard.ids.append(work.ids)
        self._open = shard

    async def _close(self) -> None:
        """Finish the open shard, if there is one, and commit it."""
        shard, self._open = self._open, None
        if shard is None:
            return
        try:
            finished = await asyncio.to_thread(shard.writer.finish)
        except EagledError as exc:
            _log.warning("open shard lost samples=%d: %s", len(shard.members), printable(exc))
            await self._give_back(shard.fences, exc)
            if isinstance(exc, DiskError):
                await self._pause(self._settings.disk_wait_s)
            return
        await self._commit(finished, shard)

    async def _commit(self, shard: FinishedShard, members: _OpenShard) -> None:
        record = shard.record
        try:
            accepted, stale = await self._reach(
                lambda: self._link.commit_shard(record, list(members.members)), insist=True
            )
        except UnreachableError:
            # whether it counted is unknown: the next daemon compares the file with its records
            _log.warning("shard left without an answer name=%s", record.name)
            return
        except EagledError as exc:
            _log.warning("shard refused name=%s: %s", record.name, printable(exc))
            await self._give_back(members.fences, exc)
            return
        if accepted:
            self.shards += 1
            self.samples += accepted
            await asyncio.to_thread(self._backend.release, members.ids)
        else:
            await asyncio.to_thread(shard.path.unlink, missing_ok=True)
        _log.info("shard committed name=%s accepted=%d stale=%d", record.name, accepted, stale)

    async def _discard(self) -> None:
        """Drop the open shard; its members are no longer ours."""
        shard, self._open = self._open, None
        if shard is not None:
            await asyncio.to_thread(shard.writer.discard)

    async def _disk_trouble(self, exc: DiskError, fence: Fence) -> None:
        """Give everything that is not in a finished shard back, and wait for room."""
        shard, self._open = self._open, None
        held = shard.fences if shard is not None else []
        _log.error("extraction waits samples=%d: %s", len(held) + 1, printable(exc))
        await self._give_back([*held, fence], exc)
        await self._pause(self._settings.disk_wait_s)

    async def _refuse(self, item: Refused) -> None:
        """Report a sample without usable states; one that may pass later gets `MAX_TRIES`."""
        self._tries[item.job.uid] += not item.away
        final = item.content or self._tries[item.job.uid] >= MAX_TRIES
        detail = printable(item.detail)
        _log.warning(
            "states refused sample=%s final=%s %s: %s",
            item.job.uid.hex(),
            final,
            item.reason,
            detail,
        )
        await self._report(item.job.fence, item.reason, detail, final=final)

    async def _give_back(self, fences: Sequence[Fence], exc: EagledError) -> None:
        for fence in fences:
            await self._report(fence, type(exc).__name__, printable(exc), final=False)

    async def _report(self, fence: Fence, reason: str, detail: str, *, final: bool) -> None:
        try:
            await self._reach(
                lambda: self._link.fail_extract(fence, reason, detail, final=final), insist=True
            )
        except UnreachableError:
            return  # stopping; a daemon that starts takes every claim back

    async def _reach(self, call: Callable[[], Awaitable[T]], *, insist: bool = False) -> T:
        """Return what `call` gives, repeating it while the daemon is away or its disk is full.

        Args:
            call: the call.
            insist: go on until the stop timeout although a stop was asked for.

        Raises:
            UnreachableError: with `once`, or when stopping.
        """
        tries = 0
        while True:
            try:
                return await call()
            except UnreachableError as exc:
                if self._settings.once or self._is_stopping(insist=insist):
                    raise
                _log.warning("daemon not reachable: %s", printable(exc))
            except DiskError as exc:  # it did nothing, and can when there is room
                if self._is_stopping(insist=insist):
                    raise UnreachableError(f"the daemon cannot record it: {exc}") from exc
                _log.warning("daemon cannot record it: %s", printable(exc))
            wait_s = RETRY_WAITS_S[min(tries, len(RETRY_WAITS_S) - 1)]
            tries += 1
            await (asyncio.sleep(wait_s) if self._stop.is_set() else self._pause(wait_s))

    def _is_stopping(self, *, insist: bool) -> bool:
        """Whether a stop was asked for or, for what must get through, whether its time is up."""
        stopped = self._stop.is_set()
        return stopped and (not insist or self._clock.monotonic() >= self._stop_by_s)

    async def _is_due(self, *, idle: bool) -> bool:
        """Whether the open shard should be closed although it is not full."""
        if self._open is None:
            return False
        now = self._clock.monotonic()
        if now - self._open.opened_s >= self._settings.max_wait_s:
            return True
        if not self._settings.trickle and now - self._idle_since_s >= SETTLE_S:
            return idle
        return idle and await self._is_drained()

    async def _is_finished(self) -> bool:
        """Whether a single pass is over; called after a claim that gave nothing."""
        if not self._settings.once or self._open is not None:
            return False
        return not self._settings.trickle or await self._is_drained()

    async def _is_drained(self) -> bool:
        try:
            return drained(await self._link.status())
        except UnreachableError:
            return False

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond a stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return


def drained(status: Mapping[str, Any]) -> bool:
    """Return whether no sample is on its way to extraction, by the status document.

    Counts of `lanes` and `datasets` are both looked at: a sample without a lane yet (a later turn)
    is in the second only. A daemon that is held starts nothing, so what is queued does not count.
    """
    groups = [status.get("lanes"), status.get("datasets")]
    rows = [row for group in groups if isinstance(group, Mapping) for row in group.values()]
    words = _AHEAD if status.get("phase") in _HELD else (*_AHEAD, *_QUEUED)
    return bool(rows) and not any(int(row.get(word) or 0) for row in rows for word in words)
