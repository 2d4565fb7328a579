"""The real generator against the simulated engine over HTTP, in scaled time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.types import SampleState
from eagled.workers.generation.admission import SETTING
from tests.servers.kit import Rig, make_config, running, until
from tests.servers.process import ServerProcess

SIM = "bench.sim_server"
VOCAB = 32_000
SCALE = 40.0


def sim(*words: str) -> ServerProcess:
    """Return a simulated server of short answers, not started."""
    return ServerProcess(SIM, "--scale", str(SCALE), "--output", "150", "--sigma", "0.5", *words)


def auto_config(*urls: str, **lane: Any) -> Config:
    """Return a configuration whose looks are a second apart in the server's time."""
    lanes = {"short": {"context": 0, "limit": 0, "seed": 8} | lane}
    return make_config(*urls, lanes=lanes, feedback_interval_s=1 / SCALE, hang_s=60)


def prompts(n: int) -> list[list[int]]:
    """Return prompts of 200 ids, each its own."""
    return [[i + 1000, *range(200, 399)] for i in range(n)]


async def most_in_flight(rig: Rig, n: int) -> int:
    """Work off `n` samples and return the most requests that were at the servers at once."""
    most = 0

    async def done() -> bool:
        nonlocal most
        most = max(most, rig.generator.in_flight("short"))
        return (await rig.states()).get(SampleState.GENERATED, 0) >= n

    await until(done, 60.0)
    return most


@pytest.mark.parametrize("loads", ["v1", "get_load", "metrics"])
async def test_auto_grows_far_beyond_its_seed_where_the_server_has_room(
    tmp_path: Path, loads: str
) -> None:
    """Whatever endpoint tells the load; nothing is lost on the way."""
    with sim("--host-shape", "flat-1500k", "--loads", loads) as server:
        async with running(tmp_path, auto_config(server.url), vocab=VOCAB) as rig:
            await rig.add(prompts(600))
            most = await most_in_flight(rig, 600)
            told = rig.generator.metrics().servers[0].admission

    assert most > 4 * 8
    assert told is not None
    assert told.total_tokens == 1_500_000


async def test_a_server_without_loads_gets_the_seed(tmp_path: Path) -> None:
    """Nothing is known of it, so the number is fixed."""
    with sim("--host-shape", "flat-1500k", "--loads", "none") as server:
        async with running(tmp_path, auto_config(server.url), vocab=VOCAB) as rig:
            await rig.add(prompts(60))
            most = await most_in_flight(rig, 60)
            lane = rig.generator.metrics().admission["short"]

    assert most <= 8
    assert (lane.target, lane.why) == (8, "seed")


async def test_the_limit_is_a_hard_ceiling(tmp_path: Path) -> None:
    """However much room the server has; and the status says that the limit is what holds."""
    most = 0
    with sim("--host-shape", "flat-1500k") as server:
        async with running(tmp_path, auto_config(server.url, limit=12), vocab=VOCAB) as rig:
            await rig.add(prompts(2000))

            def held() -> bool:
                nonlocal most
                most = max(most, rig.generator.in_flight("short"))
                return rig.generator.metrics().admission["short"].why == "limit"

            await until(held, 60.0)

    assert most == 12


async def test_what_was_learned_of_lengths_outlives_the_daemon(tmp_path: Path) -> None:
    """The next life begins with the expected lengths of this one."""
    with sim("--host-shape", "flat-1500k") as server:
        config = auto_config(server.url)
        async with running(tmp_path, config, vocab=VOCAB) as rig:
            await rig.add(prompts(100))
            await most_in_flight(rig, 100)
        async with running(tmp_path, config, vocab=VOCAB) as rig:
            stored = (await rig.store.settings())[SETTING]
            table = rig.generator.expected()

    assert '"d"' in stored
    assert table["d"]["answers"] == 100
    assert 100 < table["d"]["expected_tokens"] < 250


async def test_two_servers_share_by_their_memory(tmp_path: Path) -> None:
    """Both work, and the small one is never given more than its memory takes."""
    with (
        sim("--host-shape", "flat-1500k") as large,
        sim("--host-shape", "first-run-200k") as small,
    ):
        async with running(tmp_path, auto_config(large.url, small.url), vocab=VOCAB) as rig:
            await rig.add([[i + 1000, *range(200, 2199)] for i in range(500)])
            seen = []

            async def done() -> bool:
                seen.append(rig.generator.metrics().servers[1].in_flight_tokens)
                return (await rig.states()).get(SampleState.GENERATED, 0) >= 500

            await until(done, 60.0)
            worked = [e.ended for e in rig.generator._router.endpoints]

    assert min(worked) > 50
    assert max(seen) <= 1.1 * 200_000
