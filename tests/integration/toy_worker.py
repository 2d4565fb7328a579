"""An extraction worker without a model, until SIGTERM: SOCKET SHARDS GO.

Halfway it waits until the file GO exists.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eagled.clock import SystemClock
from eagled.control.client import ControlClient
from eagled.shards.backend import Captured, Ids
from eagled.workers.extraction import Extraction, ExtractSettings
from tests.unit.shards.doubles import ToyBackend

FIRST = 100
_LOOK_S = 0.02


class GatedBackend(ToyBackend):
    """Computes about FIRST samples, then waits until it may go on."""

    def __init__(self, go: Path) -> None:
        super().__init__()
        self._go = go

    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Return states."""
        while sum(self.batches) >= FIRST and not self._go.exists():
            time.sleep(_LOOK_S)
        return super().capture(batch)


async def main(socket: Path, shards: Path, go: Path) -> None:
    """Work until told to stop."""
    settings = ExtractSettings(
        shards=shards, batch_tokens=128, target_bytes=16_384, max_wait_s=0.5, stop_timeout_s=5.0,
        idle_wait_s=0.05, disk_wait_s=0.2,
    )  # fmt: skip
    async with ControlClient(socket) as client:
        extraction = Extraction(client, GatedBackend(go), settings, SystemClock())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, extraction.stop)
        await extraction.run()


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
