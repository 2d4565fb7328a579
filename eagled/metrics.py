"""The status document as Prometheus text, from a registry of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from eagled.types import SampleState

_LANE_GAUGES = {
    "in_flight": "Requests at the servers.",
    "limit": "Most requests at once; 0 is the server's own maximum.",
    "out_tok_per_s": "Answer tokens a second over the last minute.",
    "in_tok_per_s": "Prompt tokens a second over the last minute.",
    "p50_s": "Median seconds of a request.",
    "p95_s": "95th percentile of the seconds of a request.",
    "eta_s": "Seconds until the lane is empty.",
}
_DISK_GAUGES = ("used_bytes", "free_bytes", "budget_bytes", "reserve_bytes", "projected_bytes")
_EXTRACTION_GAUGES = ("shards", "samples", "tokens", "bytes", "samples_per_s", "workers")


class _StatusCollector(Collector):
    """Hands one document to the registry."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield every gauge of the document."""
        yield from _simple(self._document)
        yield _samples(self._document)
        for key, text in _LANE_GAUGES.items():
            yield _labelled(f"eagled_lane_{key}", text, "lane", self._document["lanes"], key)
        yield _servers(self._document)


def prometheus_text(document: Mapping[str, Any]) -> bytes:
    """Return the metrics of a status document."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(document))
    return generate_latest(registry)


def _simple(document: Mapping[str, Any]) -> Iterator[GaugeMetricFamily]:
    values = {
        "eagled_uptime_seconds": document["uptime_s"],
        "eagled_alarms": len(document["alarms"]),
        "eagled_store_queue_depth": document["store"]["queue_depth"],
        "eagled_stale_completions": document["store"]["stale_completions"],
    }
    values |= {f"eagled_disk_{key}": document["disk"][key] for key in _DISK_GAUGES}
    values |= {f"eagled_extraction_{k}": document["extraction"][k] for k in _EXTRACTION_GAUGES}
    for name, value in values.items():
        if value is not None:
            yield GaugeMetricFamily(name, f"See docs/status.md ({name}).", value=value)


def _samples(document: Mapping[str, Any]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("eagled_samples", "Samples.", labels=["dataset", "state"])
    for name, item in document["datasets"].items():
        for state in SampleState:
            family.add_metric([name, state.value], item[state.value])
    return family


def _labelled(
    name: str, text: str, label: str, items: Mapping[str, Mapping[str, Any]], key: str
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for item_name, item in items.items():
        if item[key] is not None:
            family.add_metric([item_name], item[key])
    return family


def _servers(document: Mapping[str, Any]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("eagled_server_up", "1 when requests are sent.", labels=["url"])
    for server in document["servers"]:
        family.add_metric([server["url"]], float(server["state"] == "up"))
    return family
