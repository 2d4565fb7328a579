"""An extraction worker that kills itself at its n-th step; run as a script.

The daemon's durable side is a journal file, written and synced before a commit is answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagled.clock import SystemClock
from eagled.shards.backend_sglang import CaptureServer, SglangBackend
from eagled.shards.spool import Spool
from eagled.shards.writer import ShardWriter
from eagled.types import ShardMember, ShardRecord
from eagled.workers.extraction import Extraction
from tests.capture_kit import target
from tests.integration.test_extract_loop import settings
from tests.unit.shards.doubles import Daemon, make_job
from tests.unit.shards.helpers import LAYERS


class _Fuse:
    """Ends the process at the n-th step."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self) -> None:
        """Count one."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: type, name: str) -> None:
        """Count before and after each call of a method."""
        inner: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = inner(*args, **kwargs)
            self.step()
            return result

        setattr(owner, name, counted)


class _Durable(Daemon):
    """A daemon whose commits are in a file."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        known = json.loads(journal.read_text()) if journal.exists() else {}
        done: dict[str, str] = known.get("extracted", {})
        super().__init__([make_job(n) for n in range(6) if str(n) not in done])
        self.known: dict[str, Any] = {"extracted": done, "shards": known.get("shards", [])}

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Write the commit down, then answer."""
        answer = await super().commit_shard(record, members)
        for member in members:
            number = str(member.fence.sample_id)
            assert number not in self.known["extracted"], "extracted twice"
            self.known["extracted"][number] = record.name
        self.known["shards"].append(record.name)
        temp = self.journal.with_suffix(".tmp")
        temp.write_text(json.dumps(self.known))
        temp.rename(self.journal)
        return answer


def main(folder: Path, steps: int) -> None:
    """Work until the fuse burns out or nothing is left."""
    fuse = _Fuse(steps)
    fuse.around(ShardWriter, "append")
    fuse.around(ShardWriter, "finish")
    fuse.around(_Durable, "commit_shard")
    fuse.around(Spool, "release")
    nobody = [CaptureServer("http://127.0.0.1:9")]
    backend = SglangBackend(
        target(folder), layers=LAYERS, servers=nobody, spool=folder / "spool", wait_s=0.1
    )
    given = settings(folder / "shards", target_bytes=900)
    asyncio.run(Extraction(_Durable(folder / "journal.json"), backend, given, SystemClock()).run())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
