"""What the daemon does on request: the `Actions` of the control API.

Guarantee: what an operator decided is in the store before the call returns, so it holds over
restarts. Enqueue and merge run one at a time; a status is made at most every `FRESH_S` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eagled import __version__
from eagled.daemon_enqueue import enqueue_folder
from eagled.daemon_runtime import EXTRACT_SETTING, HOLD_SETTING, Runtime, lane_chooser
from eagled.daemon_shards import prepared_folders, shard_totals
from eagled.disk_facts import choose, plan_disk, read_lengths
from eagled.disk_plan import DiskPlan, changed_policy
from eagled.errors import EagledError, UsageError
from eagled.metrics import prometheus_text
from eagled.server.protocol import Load
from eagled.shards.policy import StorePolicy, current_policy
from eagled.status import (
    ExtractionView,
    Facts,
    ServerView,
    ShardTotals,
    build_status,
    open_work,
)
from eagled.store.records import CounterRow
from eagled.training_view import newest_training
from eagled.types import EventKind
from eagled.workers.generate import ServerMetrics

logger = logging.getLogger(__name__)
FRESH_S = 0.2  # a document this old is given again


class DaemonActions:
    """Carries out requests on a `Runtime`."""

    def __init__(self, runtime: Runtime) -> None:
        self._run = runtime
        self._document: dict[str, Any] = {}
        self._made_at = float("-inf")
        self._making = asyncio.Lock()
        self._enqueueing = asyncio.Lock()
        self._merging = asyncio.Lock()
        self._reporting = asyncio.Lock()

    # -- looking

    async def status(self) -> dict[str, Any]:
        """Return the status document, at most `FRESH_S` old."""
        async with self._making:
            if time.monotonic() - self._made_at >= FRESH_S:
                self._document = build_status(await self._facts(), self._run.progress)
                self._made_at = time.monotonic()
            return self._document

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return prometheus_text(await self.status())

    async def _facts(self) -> Facts:
        run, store = self._run, self._run.store
        counters, metrics = await store.counters(), run.generator.metrics()
        totals = shard_totals(await store.shards())
        return Facts(
            run=run.config.run.name,
            version=__version__,
            at_ms=run.clock.now_ms(),
            started_ms=run.started_ms,
            phase=phase_of(run, counters),
            pid=os.getpid(),
            epoch=store.epoch,
            counters=counters,
            lanes=await store.lanes(),
            lane_metrics=metrics.lanes,
            admission=metrics.admission,
            datasets=await store.datasets(),
            servers=[_server(run, server) for server in metrics.servers],
            shards=totals,
            extraction=_extraction(run, counters, totals),
            disk=run.disk,
            alarms=run.board.all(),
            oldest_running_s=metrics.oldest_s,
            held_text=run.text.held,
            stale_completions=store.stale_completions,
            queue_depth=store.queue_depth,
            workers=run.supervisor.pids() if run.supervisor is not None else {},
        )

    async def report(self) -> dict[str, Any]:
        """Return what `eagled report` draws; one at a time, for each reads the database."""
        from eagled.report_facts import gather

        async with self._reporting:
            status = await self.status()
            work = partial(gather, self._run.loaded, status)
            return await self._run.readers.run(lambda stop: work(stop=stop), "report")

    # -- disk

    async def disk_plan(self, asked: dict[str, str]) -> dict[str, Any]:
        """Return what states take under each storage policy, and under what is asked."""
        config, path = self._run.config, self._run.paths.disk_choice
        policy = changed_policy(await asyncio.to_thread(current_policy, config, path), asked)
        return (await self._plan(policy)).to_dict()

    async def _plan(self, asked: StorePolicy | None = None) -> DiskPlan:
        run, status = self._run, await self.status()
        lengths = await run.readers.run(partial(read_lengths, run.paths.database), "disk plan")
        return await asyncio.to_thread(plan_disk, run.config, status, asked=asked, lengths=lengths)

    async def choose_storage(self, name: str, uid: int) -> str:
        """Store states by an option of the plan from now on."""
        plan = await self._plan()
        done = await asyncio.to_thread(choose, self._run.config, plan, name)
        await self._run.store.add_event(EventKind.STORAGE_CHOSEN, name, done, uid=uid)
        return done

    async def training(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the newest training run, thinned for a screen; `brief`: without its steps."""
        return await asyncio.to_thread(newest_training, self._run.paths.drafts, brief=brief)

    async def acknowledge(self, kind: str, uid: int) -> str:
        """Note that somebody has seen an alarm; a restart forgets that.

        Raises:
            UsageError: if there is no such alarm (any more).
        """
        if not self._run.board.acknowledge(kind):
            raise UsageError(f"there is no alarm {kind[:80]!r} now")
        logger.info("alarm acknowledged kind=%s uid=%d", kind, uid)
        self._stale()
        return f"alarm {kind}: acknowledged; it stays until its cause is gone"

    def _stale(self) -> None:
        """The next status is made anew: something was changed."""
        self._made_at = float("-inf")

    # -- steering

    async def changed(self) -> None:
        """Take over lanes, priorities, limits and holds that were changed in the store."""
        run, settings = self._run, await self._run.store.settings()
        hold, paused = settings.get(HOLD_SETTING, ""), bool(settings.get(EXTRACT_SETTING))
        if (hold, paused) != (run.hold, run.extraction_paused):
            run.hold, run.extraction_paused = hold, paused
            run.apply_hold()
            run.doorbell.ring()
        await run.generator.refresh()
        self._stale()

    def work_added(self) -> None:
        """Look for samples that were queued."""
        self._run.generator.wake()
        self._stale()

    async def pause_all(self, uid: int) -> str:
        """Stop every lane and extraction until `resume_all`."""
        await self._hold("paused", uid)
        return "paused; what runs is finished, `eagled resume` goes on"

    async def drain(self, uid: int) -> str:
        """As `pause_all`, and say so in the status until nothing runs."""
        await self._hold("draining", uid)
        in_flight = sum(m.in_flight for m in self._run.generator.metrics().lanes.values())
        return f"draining; {in_flight} requests are being finished, `eagled resume` goes on"

    async def resume_all(self, uid: int) -> str:
        """Take back `pause_all` and `drain`; lanes paused one by one stay paused."""
        await self._hold("", uid)
        paused = [lane.name for lane in await self._run.store.lanes() if lane.paused]
        also = f"; still paused by themselves: {', '.join(paused)}" if paused else ""
        return f"running{also}"

    async def _hold(self, hold: str, uid: int) -> None:
        run = self._run
        await run.store.set_setting(HOLD_SETTING, hold, uid)
        run.hold = hold
        run.apply_hold()
        run.doorbell.ring()
        self._stale()

    async def pause_extraction(self, *, paused: bool, uid: int) -> str:
        """Start or pause extraction."""
        run = self._run
        if run.config.extract.backend == "off":
            raise UsageError('extract.backend is "off": this run stops after generation')
        await run.store.set_setting(EXTRACT_SETTING, "1" if paused else "", uid)
        word = "paused" if paused else "started"
        await run.store.add_event(EventKind.EXTRACTION_CHANGED, "extraction", word, uid)
        run.extraction_paused = paused
        run.doorbell.ring()
        self._stale()
        reason = run.extraction_reason()
        return f"extraction {word}" + (f"; it waits all the same: {reason}" if reason else "")

    # -- longer work

    async def enqueue(self, folder: Path | None, uid: int) -> str:
        """Put a prepared folder, or all prepared ones, into the queue.

        Raises:
            UsageError: if nothing is prepared.
            ArtifactError: if a folder is not what prep left.
        """
        folders = [folder] if folder is not None else self._prepared()
        if not folders:
            raise UsageError("nothing is prepared: run `eagled prep` first")
        done = [await self._enqueue_one(each, uid) for each in folders]
        return "; ".join(done)

    def _prepared(self) -> list[Path]:
        return list(prepared_folders(self._run.paths).values())

    async def _enqueue_one(self, folder: Path, uid: int) -> str:
        run = self._run
        async with self._enqueueing:
            run.enqueueing += 1
            try:
                lane_of = lane_chooser(run.config, run.clients)
                done = await enqueue_folder(run.store, run.config, folder, lane_of, uid=uid)
            finally:
                run.enqueueing -= 1
                self.work_added()
                run.doorbell.ring()
        text = f"{done.too_long} conversations are longer than any lane; raise lanes.*.context"
        kind = f"too_long:{done.dataset}"
        run.board.keep(kind, f"{done.dataset}: {text}", when=bool(done.too_long))
        return str(done)

    async def enqueue_all(self) -> None:
        """Bring in everything that is prepared; what fails becomes an alarm, not an end."""
        run = self._run
        folders = prepared_folders(run.paths)
        for name, folder in folders.items():
            try:
                await self._enqueue_one(folder, -1)
            except EagledError as exc:
                logger.error("cannot enqueue dataset=%s error=%s", name, exc)  # noqa: TRY400 - the cause is the folder, not a line of code
                run.board.raise_(f"enqueue:{name}", f"{name}: {exc}", "error")
            else:
                run.board.clear(f"enqueue:{name}")
        for dataset in run.config.datasets:
            run.board.keep(
                f"unprepared:{dataset.name}",
                f"{dataset.name} is not prepared: run `eagled prep` and `eagled enqueue`",
                when=dataset.name not in folders,
                level="info",
            )

    async def merge(self, uid: int) -> dict[str, Any]:
        """Freeze a corpus version.

        Raises:
            UsageError: if a merge runs already.
        """
        if self._merging.locked():
            raise UsageError("a merge is running already; wait for it")
        async with self._merging:
            from eagled.daemon_merge import merge_now

            result = await merge_now(self._run, uid)
        self._run.doorbell.ring()
        self._stale()
        return result


def phase_of(run: Runtime, counters: Sequence[CounterRow]) -> str:
    """Return in one word what the run does."""
    to_answer, to_extract = open_work(counters)
    in_flight = sum(m.in_flight for m in run.generator.metrics().lanes.values())
    if run.stopping:
        return "stopping"
    if run.hold:
        return "draining" if run.hold == "draining" and in_flight else "paused"
    if to_answer:
        return "generating"
    if run.enqueueing:
        return "enqueueing"
    if to_extract and run.config.extract.backend != "off":
        return "extracting"
    return "done" if counters else "idle"


def _server(run: Runtime, server: ServerMetrics) -> ServerView:
    load: Load | None = run.loads.get(server.url)
    decided = server.admission
    return ServerView(
        url=server.url,
        state=server.state,
        version=server.version or None,
        model=server.model or None,
        in_flight=server.in_flight,
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        kv_usage=round(load.usage, 4) if load else None,
        gen_tok_per_s=round(load.tok_per_s, 2) if load else None,
        faults=server.faults,
        error=server.detail or None,
        leaving=server.leaving,
        budget_tokens=decided.budget_tokens if decided else None,
        free_tokens=decided.free_tokens if decided else None,
        used_tokens=decided.used_tokens if decided else None,
        total_tokens=decided.total_tokens if decided else None,
        admission=decided.reason if decided else None,
        retractions=decided.retractions if decided else 0,
        could_run=decided.could_run if decided else None,
    )


def _extraction(
    run: Runtime, counters: Sequence[CounterRow], totals: ShardTotals
) -> ExtractionView:
    if run.config.extract.backend == "off":
        return ExtractionView("off", 'extract.backend = "off"', paused=False, workers=0,
                              pending_tokens=0)  # fmt: skip
    reason = run.extraction_reason()
    to_extract = open_work(counters)[1]
    state = "paused" if reason else "running" if run.extract.pending_tokens else "waiting"
    if not reason and not to_extract:
        reason = "nothing to extract" if totals.shards else "no answer to extract yet"
    return ExtractionView(
        state, reason, run.extraction_paused, run.extract.workers, run.extract.pending_tokens
    )
