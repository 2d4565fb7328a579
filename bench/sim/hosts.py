"""Hosts and workloads for the simulator: three named shapes and seeded random ones.

The named shapes are a host that makes 90 tokens/s alone and about 2,400 at 200, with less and
with more memory, and one whose decode time hardly grows with the batch. Random hosts vary what
admission could trip over: memory, decode slope, a cliff where CUDA graphs end, prefill speed, the
server's own cost of a long waiting queue, jitter, a cap on running requests, admission so bold
that it leads to retractions, and work whose answers are short, long or heavy-tailed, with or
without a long lane.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

SHORT_CONTEXT = 10_000
LONG_CONTEXT = 32_768


@dataclass(frozen=True, slots=True)
class Host:
    """What one server can do.

    Attributes:
        kv_tokens: tokens that its cache holds.
        max_running: requests that decode at once; more wait.
        step_s: time of a decode step without requests.
        per_req_s: what each running request adds to a decode step.
        per_kv_s: what each cached token of a running request adds to a decode step.
        graph_batch: largest batch with a CUDA graph; 0 is no limit.
        eager_factor: how much slower a step above that is.
        prefill_s: time of a prefill pass without tokens.
        prefill_tok_per_s: tokens of prompt a second.
        chunk: most tokens of one prefill pass.
        per_waiting_s: what each waiting request adds to any pass.
        jitter: spread of the duration of a pass, as a share of it.
        conservativeness: SGLang's `--schedule-conservativeness`; small ones lead to retractions.
        clip: most answer tokens that admission reckons with (SGLang's environment can lower it).
    """

    name: str
    kv_tokens: int
    max_running: int = 4096
    step_s: float = 0.0107
    per_req_s: float = 0.000363
    per_kv_s: float = 0.0
    graph_batch: int = 0
    eager_factor: float = 1.0
    prefill_s: float = 0.005
    prefill_tok_per_s: float = 9000.0
    chunk: int = 8192
    per_waiting_s: float = 1e-6
    jitter: float = 0.05
    conservativeness: float = 1.0
    clip: int = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work: `share` of the samples, log-normal around a median, capped."""

    dataset: str
    lane: str
    share: float
    prompt: float
    prompt_sigma: float
    output: float
    output_sigma: float
    cap: int = 8192


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its lengths, and where it belongs; `n_out` is known to the server only."""

    number: int
    dataset: str
    lane: str
    n_prompt: int
    max_new: int
    n_out: int


MIXED = (
    Part("short-prompts", "short", 0.7, 300, 0.5, 900, 0.9),
    Part("long-prompts", "short", 0.3, 3500, 0.3, 900, 0.9),
)
NAMED = (
    Host("first-run-200k", 200_000),
    Host("first-run-600k", 600_000),
    Host("flat-1500k", 1_500_000, step_s=0.020, per_req_s=0.00004, prefill_tok_per_s=14_000),
)


def make_jobs(parts: Sequence[Part], n: int, seed: int) -> list[Job]:
    """Return `n` requests in random order; the same seed gives the same ones."""
    rng = random.Random(seed)
    chosen = rng.choices(parts, [p.share for p in parts], k=n)
    return [_job(rng, i, part) for i, part in enumerate(chosen)]


def _job(rng: random.Random, number: int, part: Part) -> Job:
    context = SHORT_CONTEXT if part.lane == "short" else LONG_CONTEXT
    n_prompt = _length(rng, part.prompt, part.prompt_sigma, context - 1024)
    max_new = min(part.cap, context - n_prompt)
    n_out = _length(rng, part.output, part.output_sigma, max_new)
    return Job(number, part.dataset, part.lane, n_prompt, max_new, n_out)


def _length(rng: random.Random, median: float, sigma: float, most: int) -> int:
    return max(1, min(most, round(rng.lognormvariate(math.log(median), sigma))))


def random_host(seed: int) -> tuple[Host, tuple[Part, ...]]:
    """Return a host and its work, drawn from wide ranges; the same seed gives the same."""
    rng = random.Random(f"host-{seed}")
    kv = round(math.exp(rng.uniform(math.log(120_000), math.log(3_000_000))))
    host = Host(
        name=f"random-{seed:02d}",
        kv_tokens=kv,
        max_running=rng.choice([4096, 4096, 2048, 512, 256, 128]),
        step_s=rng.uniform(0.006, 0.035),
        per_req_s=math.exp(rng.uniform(math.log(2e-5), math.log(4e-4))),
        per_kv_s=rng.choice([0.0, 5e-9, 2e-8]),
        graph_batch=rng.choice([0, 0, 160, 256, 512]),
        eager_factor=rng.uniform(1.05, 1.6),
        prefill_tok_per_s=math.exp(rng.uniform(math.log(5_000), math.log(60_000))),
        chunk=rng.choice([2048, 4096, 8192, 16_384]),
        per_waiting_s=rng.choice([0.0, 1e-6, 2e-5]),
        jitter=rng.uniform(0.02, 0.15),
        conservativeness=rng.choice([1.0, 1.0, 0.3, 0.1]),
        clip=rng.choice([4096, 4096, 1024, 512]),
    )
    return host, _random_work(rng, kv)


def _random_work(rng: random.Random, kv: int) -> tuple[Part, ...]:
    median, sigma = rng.uniform(250, 2200), rng.uniform(0.4, 1.1)
    cap = rng.choice([2048, 4096, 8192])
    parts = [
        Part("short-prompts", "short", 0.7, rng.uniform(100, 800), 0.6, median, sigma, cap),
        Part("long-prompts", "short", 0.3, rng.uniform(1000, 5000), 0.4, median, sigma, cap),
    ]
    if kv >= 400_000 and rng.random() < 0.5:
        long = Part("documents", "long", 0.05, 14_000, 0.3, 1500, 0.7)
        parts = [replace(p, share=p.share * 0.95) for p in parts] + [long]
    return tuple(parts)
