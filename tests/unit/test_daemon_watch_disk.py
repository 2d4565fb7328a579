"""What the daemon does on a disk that is too full for the event about it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagled.clock import FakeClock
from eagled.config import Config, DiskConfig
from eagled.control.doorbell import Doorbell
from eagled.daemon_actions import DaemonActions
from eagled.daemon_runtime import AlarmBoard, Runtime
from eagled.daemon_watch import Watch
from eagled.disk import DiskGovernor
from eagled.errors import DiskError
from eagled.paths import StatePaths
from eagled.types import EventKind

MORE_THAN_THERE_IS = 1 << 62
DISK = {"reserve_bytes": MORE_THAN_THERE_IS, "ballast_bytes": 1}


class FullStore:
    """Refuses the first event, as a full disk does, and takes the others."""

    def __init__(self) -> None:
        self.commits = self.queue_depth = 0
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tries: list[EventKind] = []

    async def counters(self) -> list[Any]:
        """Nothing."""
        return []

    async def shards(self) -> list[Any]:
        """None."""
        return []

    async def add_event(self, kind: EventKind, _subject: str, _detail: str) -> None:
        """Note a try."""
        self.tries.append(kind)
        if len(self.tries) == 1:
            raise DiskError


async def test_a_disk_too_full_for_its_event_is_held_and_shown_all_the_same(
    tmp_path: Path,
) -> None:
    """Alarms, hold and ballast do not wait for the event; it is written once it can be."""
    clock, store, holds = FakeClock(), FullStore(), []
    paths = StatePaths(tmp_path)
    paths.ballast.write_bytes(b"x")
    config = Config.model_validate({"target": {"model": "m"}, "disk": DISK})
    runtime = SimpleNamespace(
        clock=clock, store=store, config=config, paths=paths, board=AlarmBoard(clock),
        governor=DiskGovernor(DiskConfig.model_validate(DISK), clock), doorbell=Doorbell(),
        progress=SimpleNamespace(shard_byte_rate=lambda: None),
        extract=SimpleNamespace(pending_tokens=0), apply_hold=lambda: holds.append(1), disk=None,
    )  # fmt: skip
    watch = Watch(cast("Runtime", runtime), cast("DaemonActions", None))
    with pytest.raises(DiskError):
        await watch._look_at_disk()
    shown = [alarm.kind for alarm in runtime.board.all()]
    ballast = paths.ballast.exists()
    for _ in range(3):
        await watch._look_at_disk()

    assert ("disk" in shown, [1] * 4, False) == (True, holds, ballast)
    assert [EventKind.DISK_LOW] * 2 == [k for k in store.tries if k is EventKind.DISK_LOW]
