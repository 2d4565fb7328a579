"""Throughput of the admission controller beside the best constant number of requests at once.

    python -m bench.admission                     # three named hosts, 20 random ones
    python -m bench.admission --first 20          # 20 other hosts, on which nothing was tuned

For each host the best constant C is found by a grid search on the same requests; the ratio is
auto (no limit) over that. Tail included, deterministic: the same command gives the same digits.
Prints one JSON line; goals: ratio >= 0.98 on each named host, median >= 0.98 and minimum >= 0.95
on random ones, recomputed tokens <= 1% everywhere. About 2 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from bench.sim.auto import Auto
from bench.sim.drive import Constant, run
from bench.sim.hosts import MIXED, NAMED, Host, Part, make_jobs, random_host

GRID = (32, 64, 96, 128, 150, 160, 200, 256, 320, 400, 512, 640, 800, 1024, 1600)
FIXED = (150, 200)  # what people set by hand
RANDOM_HOSTS = 20


def measure(host: Host, parts: Sequence[Part], n_jobs: int, seed: int) -> dict[str, Any]:
    """Return one host's line."""
    jobs = make_jobs(parts, n_jobs, seed)
    constant = {c: run(host, Constant(deque(jobs), c), n_jobs, name=f"C={c}") for c in GRID}
    best = max(constant.values(), key=lambda result: result.tok_per_s)
    auto = run(host, Auto.of(jobs), n_jobs, name="auto")
    return {
        "host": host.name,
        "auto_tok_per_s": round(auto.tok_per_s, 1),
        "best": best.policy,
        "best_tok_per_s": round(best.tok_per_s, 1),
        "ratio": round(auto.tok_per_s / best.tok_per_s, 4),
        **{f"over_{c}": round(auto.tok_per_s / constant[c].tok_per_s, 3) for c in FIXED},
        "recomputed": round(auto.recomputed_share, 5),
        "best_recomputed": round(best.recomputed_share, 5),
    }


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of several hosts together."""
    ratios = [line["ratio"] for line in lines]
    return {
        "median_ratio": round(statistics.median(ratios), 4),
        "min_ratio": min(ratios),
        "max_recomputed": max(line["recomputed"] for line in lines),
        **{f"median_over_{c}": statistics.median(line[f"over_{c}"] for line in lines)
           for c in FIXED},
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Auto against the best constant C, simulated.")
    parser.add_argument("--jobs", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    parser.add_argument("--first", type=int, default=0, help="number of the first random host")
    given = parser.parse_args()
    named = [measure(host, MIXED, given.jobs, given.seed) for host in NAMED]
    numbers = range(given.first, given.first + RANDOM_HOSTS)
    drawn = [measure(*random_host(n), given.jobs, given.seed) for n in numbers]
    over, least = summary(drawn), min(line["ratio"] for line in named)
    met = (
        least >= 0.98
        and over["median_ratio"] >= 0.98
        and over["min_ratio"] >= 0.95
        and max(line["recomputed"] for line in [*named, *drawn]) <= 0.01
    )
    print(
        json.dumps(
            {
                "bench": "admission",
                "reference": "best constant C of a grid search, same simulated requests",
                "jobs": given.jobs,
                "seed": given.seed,
                "ratio": least,
                "random": over,
                "goals_met": met,
                "hosts": [*named, *drawn],
            }
        )
    )


if __name__ == "__main__":
    main()
