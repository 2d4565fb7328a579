"""The text worker: checks generated answers and renders the prompts of later turns.

Guarantee: it never opens the database; a verdict counts only when the daemon took it. A daemon
that goes away is waited for with growing pauses. SIGTERM: the batch in hand is finished and
reported, then exit 0. One bad answer costs one sample, never the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from eagled.config import Config
from eagled.control.client import ControlClient
from eagled.control.reading import Piece, ReadJob, ReadText
from eagled.errors import EagledError, UnreachableError
from eagled.printable import printable
from eagled.text.check import TextChecker
from eagled.text.reading import pieces
from eagled.tokens import PackedIds, unpack_ids
from eagled.types import OutputReason, TextJob, TextVerdict
from eagled.workers.beat import beating

_log = logging.getLogger(__name__)
BATCH = 64  # answers a claim: about a second of work with long ones
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0


class WorkClient(Protocol):
    """What the worker needs of the control client."""

    async def hello(self, worker: str, kind: str, pid: int) -> None:
        """Announce the worker."""

    async def claim_text(self, worker: str, maximum: int) -> list[TextJob]:
        """Wait for answers to check."""

    async def settle_text(self, verdicts: list[TextVerdict]) -> int:
        """Report verdicts."""


def run_text_worker(socket: Path, config_path: Path) -> int:
    """Work until SIGTERM or SIGINT; return the exit code.

    Raises:
        ConfigError: if the configuration, tokenizer or template is wrong.
    """
    from eagled.text.tokenizer import keep_torch_out

    keep_torch_out()
    from eagled.config_load import load_config

    config = load_config(config_path).config
    return asyncio.run(_main(socket, config))


def make_checker(config: Config) -> TextChecker:
    """Return the checker of a configuration (loads the tokenizer)."""
    from eagled.text.render import Renderer

    renderer = Renderer.load(config.target, literal_control_text=config.prep.literal_control_text)
    _ = renderer.facts  # a template that cannot be used is found now, not at the first answer
    return TextChecker(renderer, on_length=config.generation.on_length, checks_of=config.checks_of)


async def _main(socket: Path, config: Config) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    checker = await asyncio.to_thread(make_checker, config)
    await serve(socket, checker, stop)
    return 0


async def serve(socket: Path, checker: TextChecker, stop: asyncio.Event) -> None:
    """Check answers for the daemon behind `socket` until `stop` is set.

    Returns as well when the process that started the worker is gone: a new daemon starts its own.
    """
    name, parent = f"text-{os.getpid()}", os.getppid()
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        try:
            async with ControlClient(socket) as client:
                await client.hello(name, "text", os.getpid())
                pause_s = FIRST_PAUSE_S
                async with beating(client, name):
                    await _work_and_read(client, checker, stop, name)
        except UnreachableError as exc:
            if os.getppid() != parent:
                _log.info("the daemon is gone, worker=%s ends", name)
                return
            _log.warning("daemon unreachable worker=%s pause_s=%.1f: %s", name, pause_s, exc)
            await _pause(stop, pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


async def _work_and_read(
    client: ControlClient, checker: TextChecker, stop: asyncio.Event, name: str
) -> None:
    """Check answers, and between batches decode what people want to read."""
    turn = asyncio.Lock()  # a tokenizer serves one thread at a time
    reader = asyncio.create_task(read_for_people(client, checker, turn), name="reading")
    try:
        await work(client, checker, stop, name, turn)
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader


async def read_for_people(client: ControlClient, checker: TextChecker, turn: asyncio.Lock) -> None:
    """Decode ids for screens until cancelled; a daemon that cannot ask is asked again later."""
    while True:
        try:
            jobs = await client.claim_reading()
            if jobs:
                async with turn:
                    texts = await asyncio.to_thread(_read_all, checker, jobs)
                await client.settle_reading(texts)
        except EagledError as exc:
            _log.debug("no reading: %s", exc)
            await asyncio.sleep(LONGEST_PAUSE_S)


def _read_all(checker: TextChecker, jobs: Sequence[ReadJob]) -> list[ReadText]:
    return [
        ReadText(job.number, _text_of(checker, job.prompt), _text_of(checker, job.output))
        for job in jobs
    ]


def _text_of(checker: TextChecker, packed: PackedIds | None) -> tuple[Piece, ...]:
    if packed is None:
        return ()
    ids = unpack_ids(packed.z, packed.crc).tolist()
    special = checker.renderer.encoding.control_id_set
    return tuple(Piece(*found) for found in pieces(ids, special, checker.renderer.decode))


async def work(
    client: WorkClient,
    checker: TextChecker,
    stop: asyncio.Event,
    name: str,
    turn: asyncio.Lock | None = None,
) -> None:
    """Claim, check and report until `stop` is set.

    Raises:
        UnreachableError: if the daemon goes away; what was claimed is handed out again by it.
    """
    while not stop.is_set():
        jobs = await _claim(client, stop, name)
        if jobs:
            async with turn or contextlib.nullcontext():
                verdicts = await asyncio.to_thread(check_all, checker, jobs)
            await client.settle_text(verdicts)


async def _claim(client: WorkClient, stop: asyncio.Event, name: str) -> list[TextJob]:
    """Wait for work, or for `stop`."""
    claim = asyncio.ensure_future(client.claim_text(name, BATCH))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((claim, stopped), return_when=asyncio.FIRST_COMPLETED)
        return claim.result() if claim.done() else []
    finally:
        for task in (claim, stopped):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, UnreachableError):
                await task


async def _pause(stop: asyncio.Event, pause_s: float) -> None:
    jittered = pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads reconnects, no secret
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), jittered)


def check_all(checker: TextChecker, jobs: Sequence[TextJob]) -> list[TextVerdict]:
    """Return one verdict for each job; a job that cannot be judged at all is set aside."""
    return [_checked(checker, job) for job in jobs]


def _checked(checker: TextChecker, job: TextJob) -> TextVerdict:
    try:
        return checker.check(job)
    except Exception as exc:  # noqa: BLE001 - the edge of the task: recorded, the next job goes on
        _log.exception("answer cannot be judged sample=%d dataset=%s", job.sample_id, job.dataset)
        detail = printable(f"{type(exc).__name__}: {exc}")
        return TextVerdict(job.sample_id, job.attempt, OutputReason.QUARANTINED, detail)
