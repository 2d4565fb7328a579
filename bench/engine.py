"""How much faster the embedded engine answers 16 requests at once than one after another.

    python -m bench.engine --model DIR [--threads 2] [--dtype auto]

The engine runs as its own process, as users run it; 16 prompts of 64 ids get 64 greedy tokens
each, end ids ignored. Half of the one-by-one requests run before and half after the concurrent
ones, so that a machine that changes speed does not favour either. The reference is the engine
itself, one by one; the bar is 5 times. Run it alone: anything else on the cores changes both
numbers. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 16, 64, 64
BAR = 5.0
_START_S = 300.0
_READY = re.compile(r"ready at (http://\S+) .*dtype=(\S+) device=(\S+)")


def main() -> int:
    """Measure and print; return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of the engine")
    parser.add_argument("--dtype", default="auto", help="dtype of the engine")
    parser.add_argument("--device", default="cpu", help="device of the engine")
    args = parser.parse_args()
    command = [
        sys.executable, "-m", "eagled.engine", "--model", str(args.model), "--port", "0",
        "--threads", str(args.threads), "--dtype", args.dtype, "--device", args.device,
        "--slots", str(REQUESTS),
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile("w+") as log:
        engine = subprocess.Popen(command, stderr=log)
        try:
            url, dtype, device = _wait_ready(engine, Path(log.name))
            single_s, batch_s = asyncio.run(_measure(url))
        finally:
            engine.terminate()
            engine.wait()
    return _report(args, dtype, device, single_s, batch_s)


def _wait_ready(engine: subprocess.Popen[bytes], log: Path) -> tuple[str, str, str]:
    deadline = time.monotonic() + _START_S
    while engine.poll() is None and time.monotonic() < deadline:
        if found := _READY.search(log.read_text()):
            return found[1], found[2], found[3]
        time.sleep(0.1)
    raise SystemExit(f"the engine did not start:\n{log.read_text()}")


async def _measure(url: str) -> tuple[float, float]:
    """Return the seconds that all requests take one by one, and at once."""
    rng = random.Random(7)
    prompts = [[rng.randrange(20, 900) for _ in range(PROMPT_TOKENS)] for _ in range(REQUESTS)]
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        await _generate(session, prompts[0])  # warm-up
        before = await _one_by_one(session, prompts[: REQUESTS // 2])
        began = time.perf_counter()
        await asyncio.gather(*(_generate(session, p) for p in prompts))
        batch = time.perf_counter() - began
        after = await _one_by_one(session, prompts[REQUESTS // 2 :])
    return before + after, batch


async def _one_by_one(session: aiohttp.ClientSession, prompts: list[list[int]]) -> float:
    began = time.perf_counter()
    for prompt in prompts:
        await _generate(session, prompt)
    return time.perf_counter() - began


async def _generate(session: aiohttp.ClientSession, prompt: list[int]) -> None:
    params = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": params}
    async with session.post("/generate", json=body) as response:
        reply = await response.json()
    assert len(reply["output_ids"]) == NEW_TOKENS, reply


def _report(
    args: argparse.Namespace, dtype: str, device: str, single_s: float, batch_s: float
) -> int:
    tokens = REQUESTS * NEW_TOKENS
    result = {
        "bench": "engine",
        "model": args.model.name,
        "dtype": dtype,
        "device": device,
        "threads": args.threads,
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "requests": REQUESTS,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "one_by_one_s": round(single_s, 2),
        "at_once_s": round(batch_s, 2),
        "one_by_one_tok_per_s": round(tokens / single_s, 1),
        "at_once_tok_per_s": round(tokens / batch_s, 1),
        "ratio": round(single_s / batch_s, 2),
        "bar": BAR,
    }
    print(
        f"{result['model']} {dtype} on {device}, {args.threads} threads: one by one "
        f"{result['one_by_one_tok_per_s']} tok/s, {REQUESTS} at once "
        f"{result['at_once_tok_per_s']} tok/s: {result['ratio']} times (bar {BAR})"
    )
    print(json.dumps(result))
    return 0 if single_s / batch_s >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
