"""Serve a simulated SGLang-like engine over HTTP in scaled time.

    python -m bench.sim_server --host-shape flat-1500k --scale 50
    python -m bench.sim_server --host-shape random-07 --loads get_load

Prints the port on the first line. The engine is `bench/sim/engine.py`; see `bench/sim/http.py` for
what of the protocol is there. The daemon under test is the real one; only the GPU is pretended.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from aiohttp import web

from bench.sim.hosts import NAMED, Host, Part, random_host
from bench.sim.http import FIRST_ID, STOP_ID, VOCAB, Setting, SimServer


def find_host(name: str) -> Host:
    """Return the host of that name."""
    found = next((host for host in NAMED if host.name == name), None)
    return found or random_host(int(name.removeprefix("random-")))[0]


def parse(words: list[str]) -> tuple[Setting, int]:
    """Return what to pretend, and the port."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--host-shape", default="first-run-600k")
    parser.add_argument("--scale", type=float, default=50.0)
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=float, default=900.0, help="median answer in tokens")
    parser.add_argument("--sigma", type=float, default=0.9)
    parser.add_argument("--context", type=int, default=40_000)
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--first-id", type=int, default=FIRST_ID, help="lowest id of an answer")
    parser.add_argument("--stop-id", type=int, default=STOP_ID)
    parser.add_argument("--by-rid", action="store_true", help="another answer each attempt")
    parser.add_argument("--loads", choices=("v1", "get_load", "metrics", "none"), default="v1")
    given = parser.parse_args(words)
    part = Part("sim", "short", 1.0, 300, 0.5, given.output, given.sigma)
    setting = Setting(
        host=find_host(given.host_shape),
        part=part,
        scale=given.scale,
        seed=given.seed,
        context=given.context,
        loads=given.loads,
        vocab=given.vocab,
        first_id=given.first_id,
        stop_id=given.stop_id,
        by_rid=given.by_rid,
    )
    return setting, given.port


async def main(setting: Setting, port: int) -> None:
    """Serve until killed."""
    runner = web.AppRunner(SimServer(setting).app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*parse(sys.argv[1:])))
