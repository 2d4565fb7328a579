"""Numbers of a server's Prometheus page.

Guarantee: `parse_metrics` takes any text and returns the samples it can read, summed over their
labels; nothing in a page makes it raise. SGLang's `generation_tokens_total` moves only when a
request ends; `realtime_tokens_total` moves while tokens are made, so that one shows progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

MADE_TOKENS = ("sglang:realtime_tokens_total", "sglang:generation_tokens_total")


def parse_metrics(text: str) -> Mapping[str, float]:
    """Return the value of each metric, summed over its label sets (ranks, modes)."""
    totals: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        rest = line[line.rfind("}") + 1 :] if "{" in line else line[len(name) :]
        fields = rest.split()
        try:
            totals[name] += float(fields[0])
        except (IndexError, ValueError):
            continue
    return dict(totals)


def tokens_made(metrics: Mapping[str, float]) -> float | None:
    """Return a counter that grows with every token made or read; None if the page has none."""
    found = [metrics[name] for name in MADE_TOKENS if name in metrics]
    return sum(found) if found else None
