"""What generation costs the daemon: CPU a sample, CPU while idle, and stalls of its event loop.

    python -m bench.generation_cpu cpu     # microseconds a completed sample at 200 in flight
    python -m bench.generation_cpu idle    # share of a core, 200 in flight and 100,000 queued
    python -m bench.generation_cpu idle --auto     # the same with a look at the load each second
    python -m bench.generation_cpu stall   # event-loop stalls with 30,000-token prompts in flight

Each prints one JSON line. `cpu` runs the real path (store at FULL, client, generator) and a bare
aiohttp + orjson loop in turns against the same canned server, and prints the ratio; run it alone
on the machine: a busy neighbour makes the same work take half as much CPU time again. CPU is user
+ system time of this process, all threads, by getrusage; client and server have a core each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from eagled.config import Config
from eagled.garbage import settle_garbage
from eagled.types import SampleState
from tests.servers.canned import VOCAB
from tests.servers.kit import Rig, add_prompts, make_config, open_store, running, states, until
from tests.servers.process import ServerProcess

GOAL_US = 300.0
GOAL_IDLE_SHARE = 0.01
GOAL_STALL_MS = 20.0
CANNED = "tests.servers.canned"
LONG_WAIT_S = 600.0


def cpu_s() -> float:
    """Return the CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_prompts(n: int, length: int) -> list[list[int]]:
    """Return `n` seeded prompts; each shares its tail with others, to be made fast."""
    rng = random.Random(3)
    pool = [rng.randrange(VOCAB) for _ in range(length + 997)]
    return [[i % VOCAB, *pool[i % 997 : i % 997 + length - 1]] for i in range(n)]


def wide(url: str, at_once: int, **generation: float) -> Config:
    """Return a configuration of one lane of that width without short test waits."""
    lanes = {"only": {"context": 0, "limit": at_once, "concurrency": at_once}}
    usual = {"probe_interval_s": 5.0, "retry_max_s": 120.0, "request_timeout_s": 3600.0}
    return make_config(url, lanes=lanes, **(usual | generation))


@contextmanager
def apart(server: ServerProcess) -> Iterator[None]:
    """Keep this process on the first core and the server on the last, where there are two."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        server.pin(max(cores))
        os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def bare_loop(url: str, prompts: list[list[int]], at_once: int) -> float:
    """Return CPU seconds of sending all prompts with aiohttp + orjson and nothing else."""
    left = iter(prompts)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4 << 20) as session:

        async def worker() -> None:
            for prompt in left:
                body = orjson.dumps({"rid": "r", "input_ids": prompt, "stream": False})
                async with session.post(url + "/generate", data=body) as reply:
                    answer = orjson.loads(await reply.read())
                assert len(answer["output_ids"]) > 0

        began = cpu_s()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return cpu_s() - began


async def real_path(url: str, root: Path, prompts: list[list[int]], at_once: int) -> float:
    """Return CPU seconds of working the same prompts off through store and generator."""
    config = wide(url, at_once)
    store = await open_store(root, config)
    await add_prompts(store, config, prompts)
    await store.close()
    settle_garbage()  # as the daemon does once it is up
    async with running(root, config, vocab=VOCAB) as rig:
        began = cpu_s()
        await completed(rig, len(prompts))
        used = cpu_s() - began
        counts = await states(rig.store)
    assert counts == {SampleState.GENERATED: len(prompts)}
    return used


async def completed(rig: Rig, n: int) -> None:
    """Wait, without polling the store, until `n` samples are acknowledged."""
    deadline = time.monotonic() + LONG_WAIT_S
    while sum(lane.completions for lane in rig.generator.metrics().lanes.values()) < n:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def measure_cpu(samples: int, rounds: int, at_once: int) -> dict[str, Any]:
    """Compare the real path with the bare loop, in turns."""
    prompts = make_prompts(samples, 1500)
    bare_us: list[float] = []
    real_us: list[float] = []
    with ServerProcess(CANNED, "1500", "1000", "0") as server, apart(server):
        await bare_loop(server.url, prompts[:200], at_once)
        for _ in range(rounds):
            bare_us.append(await bare_loop(server.url, prompts, at_once) / samples * 1e6)
            with tempfile.TemporaryDirectory() as folder:
                used = await real_path(server.url, Path(folder), prompts, at_once)
            real_us.append(used / samples * 1e6)
    bare, real = statistics.median(bare_us), statistics.median(real_us)
    return {
        "bench": "generation_cpu",
        "cpu_us_per_sample": round(real, 1),
        "reference_us": round(bare, 1),
        "ratio": round(real / bare, 2),
        "goal_us": GOAL_US,
        "met": real <= GOAL_US,
        "least_us": round(min(real_us), 1),
        "reference_least_us": round(min(bare_us), 1),
        "rounds_us": [round(x, 1) for x in real_us],
        "reference_rounds_us": [round(x, 1) for x in bare_us],
        "samples": samples,
        "at_once": at_once,
    }


async def measure_idle(queued: int, seconds: float, *, auto: bool) -> dict[str, Any]:
    """Measure the CPU share while 200 requests run and nothing finishes.

    With `auto` the server is the simulated one, in slow motion, and the controller looks at it.
    """
    still = ServerProcess(CANNED, "32", "8", "-1")
    slow = ServerProcess("bench.sim_server", "--host-shape", "flat-1500k", "--scale", "0.01")
    with slow if auto else still as server, tempfile.TemporaryDirectory() as folder:
        config = wide(server.url, 200, hang_s=3600.0)
        if auto:
            lane = {"context": 0, "limit": 200, "seed": 200}
            config = make_config(
                server.url, lanes={"only": lane}, hang_s=3600.0, probe_interval_s=5.0
            )
        store = await open_store(Path(folder), config)
        await add_prompts(store, config, make_prompts(queued, 32))
        await store.close()
        async with running(Path(folder), config, vocab=VOCAB, stop_s=0.1) as rig:
            await until(lambda: rig.generator.in_flight("only") == 200, LONG_WAIT_S)
            await asyncio.sleep(1)
            began, at = cpu_s(), time.monotonic()
            await asyncio.sleep(seconds)
            share = (cpu_s() - began) / (time.monotonic() - at)
    return {
        "bench": "generation_idle",
        "auto": auto,
        "core_share": round(share, 5),
        "goal_share": GOAL_IDLE_SHARE,
        "met": share <= GOAL_IDLE_SHARE,
        "in_flight": 200,
        "queued": queued - 200,
        "seconds": seconds,
    }


async def stalls_ms(seconds: float) -> list[float]:
    """Return by how much each 5 ms sleep of this event loop came late."""
    late: list[float] = []
    until_s = time.monotonic() + seconds
    while (began := time.monotonic()) < until_s:
        await asyncio.sleep(0.005)
        late.append(max(0.0, (time.monotonic() - began - 0.005) * 1000))
    return late


async def measure_stall(at_once: int, seconds: float) -> dict[str, Any]:
    """Measure stalls while 30,000-token prompts go out and 8,000-token answers come in."""
    with (
        ServerProcess(CANNED, "30000", "8000", "1.0") as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = wide(server.url, at_once)
        store = await open_store(Path(folder), config)
        wanted = int(at_once * (seconds + 4))
        await add_prompts(store, config, make_prompts(wanted, 30_000))
        await store.close()
        quiet = await stalls_ms(3)
        async with running(Path(folder), config, vocab=VOCAB, stop_s=2) as rig:
            await completed(rig, at_once)
            late = await stalls_ms(seconds)
            done = sum(lane.completions for lane in rig.generator.metrics().lanes.values())
    p99 = statistics.quantiles(late, n=100)[98]
    reference = statistics.quantiles(quiet, n=100)[98]
    return {
        "bench": "generation_stall",
        "p99_ms": round(p99, 2),
        "max_ms": round(max(late), 2),
        "reference_p99_ms": round(reference, 2),
        "ratio": round(p99 / reference, 2) if reference else None,
        "goal_ms": GOAL_STALL_MS,
        "met": p99 <= GOAL_STALL_MS,
        "at_once": at_once,
        "completions": done,
    }


def main() -> None:
    """Run one mode and print its JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["cpu", "idle", "stall"])
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queued", type=int, default=100_200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--auto", action="store_true", help="idle: with the controller's looks")
    parser.add_argument("--at-once", type=int, default=0, help="0: 200, or 16 for stall")
    given = parser.parse_args()
    if given.mode == "cpu":
        result = asyncio.run(measure_cpu(given.samples, given.rounds, given.at_once or 200))
    elif given.mode == "idle":
        result = asyncio.run(measure_idle(given.queued, given.seconds, auto=given.auto))
    else:
        result = asyncio.run(measure_stall(given.at_once or 16, given.seconds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
