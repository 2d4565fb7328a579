"""What a person sees of a capture that goes wrong: words, an alarm, and no sample charged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagled.clock import SystemClock
from eagled.config_load import load_config
from eagled.control.client import ControlClient
from eagled.paths import StatePaths
from eagled.shards.backend_sglang import CaptureServer, SglangBackend
from eagled.store import Store
from eagled.store.records import SampleFilter
from eagled.workers.extraction import Extraction, ExtractSettings
from tests.capture_kit import FakeCapture, serving, target
from tests.daemon_kit import daemon, fill, look, write_config
from tests.integration import test_extract_store as store_kit
from tests.unit.shards.helpers import HIDDEN, LAYERS

_PROMPTS = [[10 + i, 11, 12, 13] for i in range(6)]
_WORK_S = 120.0  # a failure limit


@contextmanager
def capturing(folder: Path, capture: str) -> Iterator[tuple[FakeCapture, str, Path]]:
    """Yield a server that captures, its address, and the configuration of a run on it."""
    fake = FakeCapture(folder / "spool")
    with serving(fake) as url:
        extract = {
            "backend": "sglang", "capture": capture, "spool": str(fake.spool),
            "layers": list(LAYERS),
        }  # fmt: skip
        config = write_config(folder, url, extract=extract)
        sizes = {"vocab_size": 300, "hidden_size": HIDDEN, "num_hidden_layers": 8}
        (folder / "model" / "config.json").write_text(
            json.dumps({**sizes, "max_position_embeddings": 10_240})
        )
        yield fake, url, config


def alarm(kind: str, words: str) -> Callable[[dict[str, Any]], bool]:
    """Return what is true of a status with such an alarm."""
    return lambda status: any(
        each["kind"] == kind and words in each["text"] for each in status["alarms"]
    )


def quiet(status: dict[str, Any]) -> bool:
    """Return whether no alarm of level error is left."""
    return not [each for each in status["alarms"] if each["level"] == "error"]


def failures(config: Path) -> set[int]:
    """Return how often the samples of a stopped run were charged."""

    async def read(store: Store) -> set[int]:
        return {row.failures for row in await store.samples(SampleFilter(), limit=100)}

    found: set[int] = look(config, read)
    return found


def test_a_server_that_writes_no_states_is_an_alarm_and_costs_nobody(tmp_path: Path) -> None:
    """Without the plugin, then with another version of it, nothing is sent.

    Then it captures, but its spool is full: answers are stored, and that they have no states is an
    alarm.
    """
    with capturing(tmp_path, "with_generation") as (fake, url, config):
        fake.mode, fake.full = "plain", True
        fill(config, _PROMPTS)
        with daemon(config) as running:
            words = "does not write hidden states"
            without = running.until(alarm(f"server:{url}", words), timeout_s=_WORK_S)
            fake.mode = "other"
            words = "in the form eagled-capture-9, this eagled reads eagled-capture-1"
            another = running.until(alarm(f"server:{url}", words), timeout_s=_WORK_S)
            fake.mode = "good"
            running.until(alarm("capture", "of 6 answers were not captured"), timeout_s=_WORK_S)
            status = running.until(lambda status: status["datasets"]["d"]["done"] == 6)
            running.stop()

    assert [6, 6] == [s["lanes"]["short"]["queued"] for s in (without, another)]
    assert quiet(status)
    assert {0} == failures(config)


_FAULTS = {
    "lost": "did not come within",
    "short": "states were not captured: ValueError",
    "flipped": "checksum",
    "plain": "runs without eagled's plugin",
}


async def test_files_that_do_not_come_or_are_damaged_are_an_alarm(tmp_path: Path) -> None:
    """Every answer waits, none is given up, and all have their states once it is mended."""
    with capturing(tmp_path, "after") as (fake, url, config):
        await asyncio.to_thread(look, config, store_kit.fill)
        fake.mode = next(iter(_FAULTS))
        with daemon(config) as running:
            await asyncio.to_thread(running.ready)
            async with ControlClient(running.socket) as client, asyncio.timeout(_WORK_S):
                work = asyncio.create_task(extraction(client, config, url, fake).run())
                waiting = []
                for mode, words in _FAULTS.items():
                    fake.mode = mode
                    status = await until(client, work, alarm("extraction", words))
                    waiting.append(status["datasets"]["alpha"])
                fake.mode = "good"
                status = await until(client, work, _extracted)
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            running.stop()

    left = [counts["generated"] + counts["extracting"] for counts in waiting]
    assert [store_kit.SAMPLES] * len(_FAULTS) == left
    assert 0 == status["datasets"]["alpha"]["failed"]
    assert {0} == await asyncio.to_thread(failures, config)


def _extracted(status: dict[str, Any]) -> bool:
    return bool(status["datasets"]["alpha"]["extracted"] == store_kit.SAMPLES) and quiet(status)


def extraction(client: ControlClient, config: Path, url: str, fake: FakeCapture) -> Extraction:
    """Return the extraction worker's loop, over the daemon's socket and the server."""
    paths = StatePaths(load_config(config, environ={}).config.run.state_dir)
    backend = SglangBackend(
        target(fake.spool), layers=LAYERS, servers=[CaptureServer(url)], spool=fake.spool,
        wait_s=0.05,
    )  # fmt: skip
    settings = ExtractSettings(
        shards=paths.shards, batch_tokens=64, target_bytes=8192, max_wait_s=0.0,
        stop_timeout_s=5.0, idle_wait_s=0.001, away_wait_s=0.02,
    )  # fmt: skip
    return Extraction(client, backend, settings, SystemClock())


async def until(
    client: ControlClient, work: asyncio.Task[None], ready: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until the daemon's status satisfies `ready`, and return it."""
    while True:
        assert not work.done(), work.exception()
        status = dict(await client.status())
        if ready(status):
            return status
        await asyncio.sleep(0.05)
