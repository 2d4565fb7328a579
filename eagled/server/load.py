"""A server's load, from whichever of three endpoints it has.

Guarantee: what a body does not say is zero, and nothing in one makes these functions raise.

| endpoint | since | lacks |
| --- | --- | --- |
| `/v1/loads` | 0.5.18 | nothing |
| `/get_load` | before it | memory in all, throughput |
| `/metrics` | with --enable-metrics | nothing |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from eagled.server.protocol import Load


class LoadPath(StrEnum):
    """Where a load comes from, in order of preference."""

    LOADS = "/v1/loads"
    GET_LOAD = "/get_load"
    METRICS = "/metrics"


def load_of_ranks(value: object) -> Load:
    """Return the load that `/v1/loads` or `/get_load` tells, summed over the ranks."""
    ranks = objects(value.get("loads", [value]) if isinstance(value, dict) else value)
    waiting = _sum(ranks, "num_waiting_reqs")
    everything = _sum(ranks, "num_reqs")  # `/get_load` has no count of those that run
    return Load(
        running=_sum(ranks, "num_running_reqs") or max(0, everything - waiting),
        waiting=waiting,
        used_tokens=_sum(ranks, "num_used_tokens") or _sum(ranks, "num_tokens"),
        total_tokens=_sum(ranks, "max_total_num_tokens"),
        usage=max((number(r.get("token_usage")) for r in ranks), default=0.0),
        tok_per_s=sum(number(r.get("gen_throughput")) for r in ranks),
    )


def load_of_metrics(metrics: Mapping[str, float]) -> Load | None:
    """Return the load of a page of metrics; None if it is not there."""
    names = ("num_running_reqs", "num_queue_reqs", "num_used_tokens")
    values = [metrics.get(f"sglang:{name}") for name in names]
    running, waiting, used = (None if v is None else round(v) for v in values)
    if running is None or waiting is None or used is None:
        return None
    total = round(metrics.get("sglang:max_total_num_tokens", 0.0))
    usage = metrics.get("sglang:token_usage", used / total if total else 0.0)
    return Load(running, waiting, used, total, usage, metrics.get("sglang:gen_throughput", 0.0))


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list; none of anything else."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def number(value: object) -> float:
    """Return a number, or zero."""
    return float(value) if isinstance(value, int | float) else 0.0


def _sum(ranks: list[dict[str, Any]], name: str) -> int:
    values = (rank.get(name) for rank in ranks)
    return sum(v for v in values if isinstance(v, int) and v >= 0)
