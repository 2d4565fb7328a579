"""Housekeeping of the daemon: once a second, never in anybody's way.

Guarantee: systemd's watchdog is answered only while the event loop turns in time and the store's
writer moves; what stands still is said in an alarm first. Disk, snapshot and load reads happen in
threads or with their own time limit. A failing chore is logged and tried again, never fatal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from eagled.daemon_actions import DaemonActions
from eagled.daemon_runtime import Runtime
from eagled.daemon_shards import shard_totals
from eagled.daemon_spool import SpoolWatch
from eagled.daemon_workers import end_silent_workers
from eagled.disk import Ballast, DiskLoad, DiskView, file_system, folder_bytes
from eagled.errors import EagledError
from eagled.history import HISTORY_EVERY_S, add_moment
from eagled.limits import open_files
from eagled.progress import Point
from eagled.server.client import SglangClient
from eagled.status import bytes_per_token, finished_of, held_of, status_line, tokens_left
from eagled.types import EventKind

logger = logging.getLogger(__name__)
TICK_S = 1.0
DISK_EVERY_S = 5.0
FILES_EVERY_S = 5.0
FILES_SHARE = 0.9  # of the files that may be open
SPOOL_SWEEP_EVERY_S = 300.0  # files that belong to nobody only take room
SNAPSHOT_EVERY_S = 3.0
LOADS_EVERY_S = 5.0
LOADS_TIMEOUT_S = 3.0
IDLE_ALARM_S = 60.0  # queued work, open lanes, a server that is up, and nothing sent for so long
LAG_WARN_S = 0.5
_WATCHDOG_SHARE = 0.5  # of its period: how stale the last sign of life may be


class Watch:
    """Runs the chores that are due; `tick` is called about once a second."""

    def __init__(self, runtime: Runtime, actions: DaemonActions) -> None:
        self._run = runtime
        self._actions = actions
        now = runtime.clock.monotonic()
        self._due: dict[str, float] = {}
        self._last_tick = now
        self._moved_at = now
        self._commits = -1
        self._sent_at = now
        one_pass = runtime.config.extract.one_pass
        self._spool = SpoolWatch(runtime.config) if one_pass else None
        self._disk_told = False
        self._swept_at = now

    async def tick(self) -> None:
        """Do what is due."""
        now = self._run.clock.monotonic()
        lag_s, self._last_tick = now - self._last_tick - TICK_S, now
        if lag_s > LAG_WARN_S:
            logger.warning("event loop late by_s=%.2f", lag_s)
        self._ping(now)
        chores: tuple[tuple[str, float, Callable[[], Awaitable[None]]], ...] = (
            ("desks", TICK_S, self._sweep),
            ("disk", DISK_EVERY_S, self._look_at_disk),
            ("spool", DISK_EVERY_S, self._look_at_spool),
            ("files", FILES_EVERY_S, self._look_at_files),
            ("loads", LOADS_EVERY_S, self._ask_servers),
            ("progress", TICK_S, self._remember),
            ("alarms", TICK_S, self._judge),
            ("snapshot", SNAPSHOT_EVERY_S, self._write_snapshot),
            ("history", HISTORY_EVERY_S, self._write_history),
        )
        for name, every_s, chore in chores:
            if now >= self._due.get(name, 0.0):
                self._due[name] = now + every_s
                await _guarded(name, chore)

    # -- signs of life

    def _ping(self, now: float) -> None:
        """Answer the watchdog if the writer moves; this call itself shows that the loop does."""
        run, store = self._run, self._run.store
        if store.commits != self._commits or not store.queue_depth:
            self._commits, self._moved_at = store.commits, now
        still_s = now - self._moved_at
        period_s = run.notifier.watchdog_s
        if store.failed.done() or (period_s and still_s > period_s * _WATCHDOG_SHARE):
            run.notifier.status(f"the database writer has not moved for {still_s:.0f} s")
            return
        run.notifier.watchdog()

    # -- chores

    async def _sweep(self) -> None:
        self._run.text.sweep()
        await self._run.extract.sweep()
        if self._run.ring is not None:
            await self._run.ring.sweep(self._run.extract)
        await end_silent_workers(self._run)

    async def _look_at_disk(self) -> None:
        run = self._run
        counters = await run.store.counters()
        totals = shard_totals(await run.store.shards())
        used = await asyncio.to_thread(folder_bytes, run.paths.root)
        space = await asyncio.to_thread(file_system, run.paths.root)
        per_token = bytes_per_token(totals)
        off = run.config.extract.backend == "off"
        load = DiskLoad(
            used_bytes=used,
            tokens_left=0 if off else tokens_left(counters, totals),
            bytes_per_token=per_token,
            bytes_per_s=run.progress.shard_byte_rate(),
            pending_bytes=round(run.extract.pending_tokens * per_token) if per_token else 0,
        )
        run.disk = run.governor.look(space, load)
        run.apply_hold()
        self._show_disk(run.disk)
        ballast = Ballast(run.paths.ballast, run.config.disk)
        done = await asyncio.to_thread(ballast.look, space, run.disk)
        await self._tell_disk(run.disk)  # a full disk refuses it, so all else comes before
        if done:
            await run.store.add_event(EventKind.BALLAST, str(run.paths.ballast), done)

    async def _look_at_files(self) -> None:
        """Say that open files run out before nothing can be opened any more."""
        used, most = open_files()
        text = f"{used} of {most} files are open; beyond that no request and no call gets through"
        self._run.board.keep("files", text, when=used > FILES_SHARE * most, level="error")

    async def _look_at_spool(self) -> None:
        """Let generation wait while too many states do, and remove what belongs to nobody."""
        run, watch, now = self._run, self._spool, self._run.clock.monotonic()
        if watch is None:
            return
        run.spool = await asyncio.to_thread(watch.look)
        run.apply_hold()
        text = f"{run.spool.reason}: generation waits until extraction has taken some"
        run.board.keep("spool", text, when=run.spool.full)
        text = f"states of {run.spool.failed} answers were not captured; they are computed again"
        run.board.keep("capture", text, when=run.spool.failed > 0)
        if now - self._swept_at >= SPOOL_SWEEP_EVERY_S:
            self._swept_at = now
            await asyncio.to_thread(watch.sweep, run.paths.database)

    async def _tell_disk(self, view: DiskView) -> None:
        """Write an event when the governor has changed its mind, as soon as the disk takes it."""
        run = self._run
        if view.paused == self._disk_told:
            return
        run.doorbell.ring()
        kind = EventKind.DISK_LOW if view.paused else EventKind.DISK_OK
        await run.store.add_event(kind, str(run.paths.root), view.reason or "room again")
        self._disk_told = view.paused

    def _show_disk(self, view: DiskView) -> None:
        """Keep the governor's alarms."""
        run = self._run
        run.board.keep("disk", view.reason, when=view.paused, level="error")
        text = "the disk is nearly full: generation waits until there is room"
        run.board.keep("disk_full", text, when=view.critical, level="error")
        short = view.projected_bytes is not None and view.full_at_ms is not None
        text = "the disk will be full before the work is done; see `eagled plan`"
        run.board.keep("disk_short", text, when=short)

    async def _ask_servers(self) -> None:
        """Read each server's load while it has work of ours; it is shown, nothing depends on it."""
        busy = {s.url for s in self._run.generator.metrics().servers if s.in_flight}
        clients = [c for c in self._run.clients if c.url in busy]
        self._run.loads = {url: v for url, v in self._run.loads.items() if url in busy}
        await asyncio.gather(*(self._ask(client) for client in clients))

    async def _ask(self, client: SglangClient) -> None:
        try:
            load = await client.loads(LOADS_TIMEOUT_S)
        except EagledError:
            load = None
        if load is None:
            self._run.loads.pop(client.url, None)
        else:
            self._run.loads[client.url] = load

    async def _remember(self) -> None:
        run = self._run
        now = run.clock.monotonic()
        if not run.progress.due(now):
            return
        lanes = run.generator.metrics().lanes
        totals = shard_totals(await run.store.shards())
        run.progress.add(
            Point(
                at=now,
                out_rates={name: m.out_tok_per_s for name, m in lanes.items()},
                finished=finished_of(await run.store.counters()),
                extracted=totals.samples,
                shard_tokens=totals.tokens,
                shard_bytes=totals.n_bytes,
                held=held_of(
                    await run.store.lanes(), await run.store.datasets(), everything=bool(run.hold)
                ),
            )
        )

    async def _write_snapshot(self) -> None:
        document = await self._actions.status()
        self._run.notifier.status(status_line(document))
        await asyncio.to_thread(write_snapshot, self._run.paths.snapshot, document)

    async def _write_history(self) -> None:
        document = await self._actions.status()
        await asyncio.to_thread(add_moment, self._run.paths.history, document)

    # -- alarms

    async def _judge(self) -> None:
        run = self._run
        document = await self._actions.status()
        text = "; ".join(run.store.alarms)
        run.board.keep("store", text, when=bool(text), level="error")
        for name in run.supervisor.healthy() if run.supervisor is not None else ():
            run.board.clear(f"worker:{name}")
        for server in document["servers"]:
            away = server["state"] not in ("starting", "up", "trial")
            text = f"server {server['url']} is {server['state']}: {server['error'] or 'no answer'}"
            run.board.keep(f"server:{server['url']}", text, when=away, level="error")
        trouble = run.extract.trouble
        text = f"hidden states cannot be had now; samples wait: {trouble}"
        run.board.keep("extraction", text, when=bool(trouble), level="error")
        waits = any(lane["queued"] for lane in document["lanes"].values())
        text = "no server is configured: add [[servers]]; samples wait"
        run.board.keep("no_server", text, when=waits and not document["servers"], level="error")
        self._judge_standstill(document)

    def _judge_standstill(self, document: dict[str, Any]) -> None:
        """Queued work, nothing that holds it, and still nothing sent: that is a fault."""
        now = self._run.clock.monotonic()
        lanes = document["lanes"].values()
        open_work = any(lane["queued"] and not lane["paused"] for lane in lanes)
        sent = any(lane["in_flight"] for lane in lanes)
        up = any(server["state"] == "up" for server in document["servers"])
        if sent or not open_work or not up or self._run.hold:
            self._sent_at = now
        text = f"samples are queued, but none was sent for {now - self._sent_at:.0f} s"
        self._run.board.keep("standstill", text, when=now - self._sent_at > IDLE_ALARM_S)


def write_snapshot(path: Path, document: dict[str, Any]) -> None:
    """Replace the snapshot at once; not synced: after a power cut there may be none."""
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_bytes(orjson.dumps(document))
    tmp.replace(path)


async def _guarded(name: str, chore: Callable[[], Awaitable[None]]) -> None:
    try:
        await chore()
    except (EagledError, OSError) as exc:  # a full disk fails every time: a line, no traceback
        logger.error("housekeeping failed chore=%s error=%s", name, exc)  # noqa: TRY400 - the cause is outside
    except Exception:
        logger.exception("housekeeping failed chore=%s", name)
