"""`eagled run`: the daemon, from the lock to the last line in the database.

Guarantee: one daemon a state directory; nothing is sent or handed out before what an earlier
daemon left is put right; SIGTERM or SIGINT ends it with exit code 0 within
`daemon.stop_timeout_s` plus `CLOSE_S`, whatever it is doing. Requests in flight are finished or
given back, uncharged. A second signal ends it within two seconds: no step of the stop has more
than `HURRY_S` then (closing the database twice that), and what was not through is put right by the
next start. It starts although its servers are down and waits for them.

Decisions:
- Fail-stop: if the store or the generator cannot go on, the daemon ends with a code that says why.
- READY comes after recovery and before prepared datasets are read: that can take minutes.
- Whoever still computes in a thread at the end (a merge) is left behind: its files are temporary.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
from collections.abc import Awaitable, Collection, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from eagled.artifacts import disk_error
from eagled.clock import SystemClock
from eagled.config import Config, SamplingConfig
from eagled.config_load import LoadedConfig
from eagled.control.context import Control
from eagled.control.desks import ExtractDesk, TextDesk
from eagled.control.doorbell import Doorbell
from eagled.control.peers import Access
from eagled.control.protocol import check_socket_path
from eagled.control.server import serve_control
from eagled.daemon_actions import DaemonActions
from eagled.daemon_alarms import AlarmCommand
from eagled.daemon_backup import keep_backups
from eagled.daemon_endpoints import SETTING as LIVE_SETTING
from eagled.daemon_endpoints import Endpoints, LiveServers
from eagled.daemon_log import set_up_logging
from eagled.daemon_merge import CorpusQueue
from eagled.daemon_reload import has_terminal, look_at_config
from eagled.daemon_ring import RingDesk
from eagled.daemon_runtime import (
    EXTRACT_SETTING,
    HOLD_SETTING,
    AlarmBoard,
    Runtime,
    lane_chooser,
)
from eagled.daemon_servers import launch_servers
from eagled.daemon_shards import reconcile_shards
from eagled.daemon_thread import Readers
from eagled.daemon_watch import TICK_S, Watch, write_snapshot
from eagled.daemon_workers import ring_on_results, worker_ended, worker_started
from eagled.disk import DiskGovernor
from eagled.errors import DiskError, EagledError, StoreError
from eagled.garbage import settle_garbage
from eagled.lanes import ordered_lanes
from eagled.limits import raise_file_limit
from eagled.notify import Notifier
from eagled.paths import StatePaths
from eagled.printable import printable
from eagled.progress import Progress
from eagled.sampling import ResolvedSampling, model_defaults, resolve_sampling
from eagled.server.client import SglangClient
from eagled.server.model_folder import read_model_facts
from eagled.shards.target import resolve_model
from eagled.socket_path import daemon_socket
from eagled.status import before_of
from eagled.store import LaneRow, StateLock, Store
from eagled.supervise import STOP_S, Supervisor, worker_specs
from eagled.types import EventKind
from eagled.workers.generate import Generator

logger = logging.getLogger(__name__)
CLOSE_S = 30.0  # for everything after the requests have ended: workers, socket, database
STORE_CLOSE_S = 20.0
HURRY_S = 0.5  # for each step once a second signal has come; two may be stuck: server and disk
START_EXTEND_S = 120.0  # asked of systemd before a recovery that may read the whole database
_FOLDERS = ("datasets", "corpora", "shards", "logs")


class _StopEarlyError(Exception):
    """A signal came while the daemon was starting."""


def run_daemon(loaded: LoadedConfig) -> int:
    """Run until a signal or a fault; return the exit code.

    Raises:
        StopError: if the daemon cannot start or go on; nothing finished is lost.
    """
    faulthandler.enable()
    set_up_logging()
    return asyncio.run(Daemon(loaded).run())


class Daemon:
    """One life of the daemon."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._config = loaded.config
        self._paths = StatePaths(loaded.config.run.state_dir)
        self._notifier = Notifier.from_environ()
        self._clock = SystemClock()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._runtime: Runtime | None = None  # once it is ready
        self._look_again = False  # SIGHUP came before that

    async def run(self) -> int:
        """Start, work, stop; return the exit code."""
        with self._signals():
            async with AsyncExitStack() as stack:
                try:
                    runtime, actions = await self._startup(stack)
                except _StopEarlyError:
                    logger.info("stopped while starting")
                    return 0
                try:
                    await self._main_loop(runtime, actions)
                finally:
                    await self._shutdown(runtime, actions)
        logger.info("stopped")
        return 0

    # -- start

    async def _startup(self, stack: AsyncExitStack) -> tuple[Runtime, DaemonActions]:
        """Bring everything up in an order in which nothing is handed out too early."""
        config, paths = self._config, self._paths
        socket = check_socket_path(daemon_socket(config.daemon.socket, paths.root, os.environ))
        raise_file_limit(config)
        prepare_folders(paths)
        stack.enter_context(StateLock(paths.lock))
        self._go_on("opening the database")
        self._notifier.extend(START_EXTEND_S)
        wait_s = config.generation.retry_max_s
        store = await Store.open(paths, clock=self._clock, create=True, longest_wait_s=wait_s)
        stack.push_async_callback(
            self._within, store.close(), STORE_CLOSE_S, "closing the database", 2 * HURRY_S
        )
        self._go_on("checking shards")
        await store.sync_lanes(_lane_rows(config), lane_of=lane_chooser(config, []))
        set_aside = await reconcile_shards(store, paths)
        self._go_on("connecting")
        runtime = await self._assemble(stack, store)
        for line in (*store.recovery.warnings, *set_aside):
            runtime.board.raise_(f"start:{line[:40]}", line)
        actions = DaemonActions(runtime)
        await self._begin(stack, runtime, actions, socket)
        return runtime, actions

    def _go_on(self, what: str) -> None:
        """Say what comes next, unless a signal has come."""
        if self._stop.is_set():
            raise _StopEarlyError
        logger.info("starting: %s", what)
        self._notifier.status(f"starting: {what}")

    async def _assemble(self, stack: AsyncExitStack, store: Store) -> Runtime:
        """Connect store, clients and generator."""
        config, clock = self._config, self._clock
        folder = resolve_model(config.target.model, config.target.revision)
        vocab = read_model_facts(folder).vocab_size
        defaults = model_defaults(folder)
        settings = await store.settings()
        live = LiveServers(config, settings.get(LIVE_SETTING, ""))
        clients = [
            await stack.enter_async_context(SglangClient(s, config.generation, vocab_size=vocab))
            for s in live.all()
        ]
        sampling = partial(_resolve, config, defaults=defaults)
        generator = Generator(store, clients, config, clock, sampling=sampling, vocab_size=vocab)
        bell, readers = Doorbell(), Readers()
        runtime = Runtime(
            loaded=self._loaded,
            paths=self._paths,
            clock=clock,
            notifier=self._notifier,
            store=store,
            generator=generator,
            clients=clients,
            doorbell=bell,
            text=TextDesk(store, bell, lane_chooser(config, clients), lambda: not runtime.stopping),
            extract=ExtractDesk(
                store,
                bell,
                lambda: not runtime.extraction_reason(),
                _shortlist(config, self._paths, readers),
            ),
            readers=readers,
            governor=DiskGovernor(config.disk, clock),
            progress=Progress(
                await asyncio.to_thread(before_of, self._paths.snapshot, clock.now_ms())
            ),
            board=AlarmBoard(clock),
            started_ms=clock.now_ms(),
            hold=settings.get(HOLD_SETTING, ""),
            extraction_paused=bool(settings.get(EXTRACT_SETTING)),
            corpus_frozen=any(self._paths.corpora.glob("v*/manifest.json")),
        )
        runtime.endpoints = Endpoints(live, config, store, generator, clients, vocab_size=vocab)
        stack.push_async_callback(runtime.endpoints.stop)
        return runtime

    async def _begin(
        self, stack: AsyncExitStack, runtime: Runtime, actions: DaemonActions, socket: Path
    ) -> None:
        """Open the socket, start generation and workers, and say that the daemon is ready."""
        store, config = runtime.store, self._config
        ring = RingDesk(config, self._paths, store, self._clock, runtime.doorbell)
        await ring.start()
        runtime.ring = ring
        control = Control(store, actions, runtime.text, runtime.extract, runtime.doorbell, ring)
        control.servers, control.roll = runtime.endpoints, runtime.roll
        access = Access.of_group(config.daemon.group, config.daemon.group_may)
        await stack.enter_async_context(
            serve_control(control, socket, config.daemon.metrics_port, access)
        )
        runtime.apply_hold()
        runtime.servers = await launch_servers(
            config, self._paths, store, self._clock, runtime.clients
        )
        runtime.generator.restart_server = runtime.servers.restart
        if runtime.endpoints is not None:
            runtime.endpoints.start()
        await runtime.generator.start()
        self._spawn(ring_on_results(runtime), "doorbell")
        self._spawn(actions.enqueue_all(), "enqueue")
        self._spawn(keep_backups(runtime), "backups")
        if config.daemon.on_alarm:
            command = AlarmCommand(config.daemon.on_alarm, config.run.name)
            self._spawn(command.watch(runtime.board), "alarm command")
        specs = worker_specs(config, self._loaded.path, socket, self._paths.logs)
        runtime.supervisor = Supervisor(
            specs, partial(worker_started, runtime), partial(worker_ended, runtime)
        )
        runtime.supervisor.start()
        found = store.recovery
        detail = f"epoch {store.epoch}, {found.requeued} samples queued again"
        await store.add_event(EventKind.DAEMON_STARTED, config.run.name, detail)
        logger.info("ready socket=%s %s", socket, detail)
        self._notifier.ready(detail)
        self._runtime = runtime
        if self._look_again:
            self._on_hangup()
        settle_garbage()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed name=%s", task.get_name(), exc_info=error)

    # -- work

    async def _main_loop(self, runtime: Runtime, actions: DaemonActions) -> None:
        """Keep house until a signal, or until the store or the generator cannot go on."""
        watch = Watch(runtime, actions)
        stop = asyncio.create_task(self._stop.wait(), name="signal")
        failed = asyncio.create_task(runtime.generator.failed(), name="generator fault")
        ends: set[asyncio.Future[object]] = {stop, failed, runtime.store.failed}  # type: ignore[arg-type] # three kinds of result, only their end matters
        try:
            while True:
                await watch.tick()
                done, _ = await asyncio.wait(
                    ends, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if runtime.store.failed in done:
                    raise _store_failure(runtime.store.failed.result())
                if failed in done:
                    failed.result()
                if stop in done:
                    return
        finally:
            stop.cancel()
            failed.cancel()

    # -- stop

    async def _shutdown(self, runtime: Runtime, actions: DaemonActions) -> None:
        """Finish or give back what runs; every step has its own time limit."""
        runtime.stopping = True
        stop_s = 0.0 if self._hurry.is_set() else self._config.daemon.stop_timeout_s
        in_flight = sum(m.in_flight for m in runtime.generator.metrics().lanes.values())
        logger.info("stopping in_flight=%s timeout_s=%g", in_flight, stop_s)
        self._notifier.stopping(f"stopping: {in_flight} requests are being finished")
        self._notifier.extend(stop_s + CLOSE_S)
        runtime.doorbell.ring()
        background: list[asyncio.Task[Any]] = [*self._background, *runtime.readers.close()]
        for task in background:
            task.cancel()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop_generator(runtime, stop_s))
            group.create_task(self._stop_workers(runtime, stop_s))
            if background:  # who reads the database lets go of it before it is closed
                group.create_task(self._within(_ended(background), CLOSE_S, "readers"))
        if runtime.servers is not None:
            await self._within(runtime.servers.stop(), CLOSE_S, "ending launched servers")
        await self._within(self._last_words(runtime, actions), STOP_S, "the last event")

    async def _within(
        self, work: Coroutine[None, None, object], timeout_s: float, what: str,
        hurry_s: float = HURRY_S,
    ) -> None:  # fmt: skip
        """Wait for `work` at most `timeout_s`, and `hurry_s` once a second signal has come."""
        task = asyncio.create_task(_bounded(work, timeout_s, what), name=what)
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        try:
            await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({task}, timeout=hurry_s)
            if not task.done():
                logger.warning("not waited for what=%r", what)
                task.cancel()
                await asyncio.wait({task}, timeout=hurry_s)
        finally:
            hurry.cancel()

    async def _stop_generator(self, runtime: Runtime, stop_s: float) -> None:
        task = asyncio.create_task(runtime.generator.stop(stop_s), name="stop generator")
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        try:
            await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                giving = runtime.generator.stop(0.0, HURRY_S)
                await _bounded(giving, CLOSE_S, "giving requests back")
            left = await task
            if left:
                logger.info("given back unfinished n=%s", left)
        except Exception:
            logger.exception("the generator did not stop in order; the next start requeues")
        finally:
            hurry.cancel()

    async def _stop_workers(self, runtime: Runtime, stop_s: float) -> None:
        if runtime.supervisor is not None:
            await self._within(
                runtime.supervisor.stop(stop_s + STOP_S), stop_s + CLOSE_S, "workers"
            )

    async def _last_words(self, runtime: Runtime, actions: DaemonActions) -> None:
        """Take back what workers held, and leave an event and a last snapshot."""
        await runtime.store.release_extract()
        document = {**await actions.status(), "phase": "stopped"}
        await asyncio.to_thread(write_snapshot, self._paths.snapshot, document)
        await runtime.store.add_event(EventKind.DAEMON_STOPPED, self._config.run.name, "in order")

    # -- signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Own the signals that end the daemon; a closed terminal does, unless nohup says no.

        Without a terminal SIGHUP asks to look at the configuration again.
        """
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)
        if signal.SIGHUP in numbers and not has_terminal():
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # nothing is left to cut short

    def _on_hangup(self) -> None:
        if self._stop.is_set():
            logger.info("SIGHUP: the configuration is not looked at while stopping")
        elif self._runtime is None:
            self._look_again = True
        else:
            self._spawn(look_at_config(self._runtime), "SIGHUP")

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            logger.warning("%s again: not waiting any longer", signal.Signals(number).name)
            self._hurry.set()
        else:
            logger.info("%s: stopping", signal.Signals(number).name)
            self._stop.set()


def prepare_folders(paths: StatePaths) -> None:
    """Make the state directory and see that it can be written.

    Raises:
        DiskError: naming the folder and what to do.
    """
    probe = paths.root / ".write-test"
    try:
        paths.root.mkdir(mode=0o750, parents=True, exist_ok=True)
        for name in _FOLDERS:
            (paths.root / name).mkdir(exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as exc:
        known = disk_error(exc, paths.root)
        raise known or DiskError(
            f"run.state_dir: cannot use {paths.root}: {exc.strerror}; set another folder"
        ) from exc


def _lane_rows(config: Config) -> list[LaneRow]:
    return [
        LaneRow(name, i, lane.context, lane.limit)
        for i, (name, lane) in enumerate(ordered_lanes(config))
    ]


def _shortlist(config: Config, paths: StatePaths, readers: Readers) -> CorpusQueue | None:
    return CorpusQueue(paths, readers) if config.extract.start == "after_merge" else None


def _resolve(config: Config, dataset: str, *, defaults: SamplingConfig) -> ResolvedSampling:
    return resolve_sampling(config, dataset, defaults)


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until cancelled tasks have ended, or `STOP_S` are over."""
    await asyncio.wait(tasks, timeout=STOP_S)


async def _bounded(work: Awaitable[object], timeout_s: float, what: str) -> None:
    """Wait for `work` at most `timeout_s`; a failure or a timeout is logged, not raised."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        logger.error("gave up waiting for what=%r after_s=%g", what, timeout_s)  # noqa: TRY400 - the traceback is that of the timer
    except (EagledError, OSError) as exc:
        logger.error("failed: what=%r error=%s", what, exc)  # noqa: TRY400 - the cause is outside
    except Exception:
        logger.exception("failed: what=%r", what)


def _store_failure(cause: BaseException) -> EagledError:
    """Return what ends the daemon when the store has failed."""
    if isinstance(cause, EagledError):
        return cause
    return StoreError(f"the database writer failed: {printable(cause)}; start again to check it")
