"""Workers that die or stand still over certain samples, and do the rest at once.

`python -m tests.mortal_worker worker text|extract --config FILE` works for the daemon of that
configuration as the real workers do (the real loop, client and signs of life), without a model.
A prompt that begins with one of the ids below does that to the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from eagled.control.client import ControlClient
from eagled.errors import UnreachableError
from eagled.socket_path import client_socket
from eagled.supervise import die_with_parent
from eagled.text.check import TextChecker
from eagled.tokens import PackedIds, unpack_ids
from eagled.types import ExtractJob, ShardMember, ShardRecord, TextJob, TextVerdict
from eagled.workers import beat, text
from eagled.workers.beat import beating
from eagled.workers.text import serve

KILLED, CRASHED, STARVED, STOPPED = 200, 201, 202, 203
_HUGE_BYTES = 1 << 33
BEAT_S = 0.2


def meet_fate(kind: str, prompt: PackedIds) -> None:
    """Do what the first id of a prompt asks for."""
    first = int(unpack_ids(prompt.z, prompt.crc)[0])
    match kind, first:
        case "text", 200:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory has run out
        case "extract", 201:
            os.kill(os.getpid(), signal.SIGSEGV)
        case "text", 202:
            starve()
        case "text", 203 if not (mark := Path("stood-still")).exists():  # once
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)


def starve() -> None:
    """Ask for more memory than this process may have.

    Raises:
        MemoryError: always.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_HUGE_BYTES // 2, hard))
    try:
        bytearray(_HUGE_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check(job: TextJob) -> TextVerdict:
    """Accept an answer."""
    meet_fate("text", job.prompt)
    return TextVerdict(job.sample_id, job.attempt, None)


async def check_texts(socket: Path) -> None:
    """Be a text worker until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(socket, cast("TextChecker", SimpleNamespace(check=check)), stop)


async def extract(socket: Path) -> None:
    """Be an extraction worker, also for the daemon after this one."""
    while True:
        with suppress(UnreachableError):
            async with ControlClient(socket) as client, beating(client, "extract-0"):
                await client.hello("extract-0", "extract", os.getpid())
                while True:
                    await _extract_some(client)
        await asyncio.sleep(BEAT_S)


async def _extract_some(client: ControlClient) -> None:
    """Call one claim a shard."""
    jobs = await client.claim_extract("extract-0", 4, 10_000)
    for job in jobs:
        meet_fate("extract", job.prompt)
    if jobs:
        await client.commit_shard(*_shard(jobs))


def _shard(jobs: list[ExtractJob]) -> tuple[ShardRecord, list[ShardMember]]:
    name = f"s{jobs[0].fence.sample_id}-{jobs[0].fence.attempt}.safetensors"
    sha256 = hashlib.sha256(name.encode()).hexdigest()
    tokens = sum(job.prompt.n + job.output.n for job in jobs)
    record = ShardRecord(name, sha256, 10, len(jobs), tokens, "m")
    return record, [ShardMember(job.fence, i) for i, job in enumerate(jobs)]


def main(kind: str, config: str) -> None:
    """Work until told to stop."""
    die_with_parent()
    beat.BEAT_S = text.LONGEST_PAUSE_S = BEAT_S
    socket = client_socket(Path(config))
    work: Any = {"text": check_texts, "extract": extract}[kind]
    asyncio.run(work(socket))


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[4])
