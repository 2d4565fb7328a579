"""A process that works on a store until it is killed; reports each acknowledgement on stdout.

    python -m tests.integration.store_child FOLDER

A line is `sample attempt crc` (written after `complete` returned) or `added N`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from eagled.clock import SystemClock
from eagled.paths import StatePaths
from eagled.store import StateLock, Store
from eagled.types import Claim
from tests.unit.store.helpers import ANSWER, LANES, conversations, record

TOTAL = 600
WORKERS = 20


def say(text: str) -> None:
    """Print a line that survives a kill."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def work(store: Store) -> None:
    """Claim and complete until nothing is queued."""
    while claims := await store.claim("short", 3):
        for claim in claims:
            await finish(store, claim)


async def finish(store: Store, claim: Claim) -> None:
    """Complete one claim and say so."""
    if await store.complete(claim.fence, ANSWER):
        say(f"{claim.fence.sample_id} {claim.fence.attempt} {ANSWER.output.crc}")


async def main(root: Path) -> None:
    """Enqueue everything, then generate everything."""
    paths = StatePaths(root)
    with StateLock(paths.lock):
        async with await Store.open(paths, clock=SystemClock(), create=True) as store:
            await store.sync_lanes(LANES)
            number = await store.add_dataset(record())
            result = await store.add_conversations(number, conversations("a", TOTAL))
            say(f"added {result.added}")
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(work(store))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
