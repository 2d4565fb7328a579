"""The status document as Prometheus text, from a registry of its own.

`METRICS` is the one list: names, units and meanings; docs/metrics.md is made from it
(`python -m eagled.metrics`) and a test compares the two. What is not known has no sample, so that
an alert on its absence means something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eagled.types import SampleState

Document = Mapping[str, Any]
Sample = tuple[tuple[str, ...], Any]
Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class MetricDoc:
    """One metric: name without `_total`, kind, unit, labels, meaning, and where it comes from."""

    name: str
    kind: Kind
    unit: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[Document], Iterable[Sample]]

    @property
    def shown(self) -> str:
        """Return the name as Prometheus shows it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _at(*path: str) -> Callable[[Document], Iterable[Sample]]:
    """Read one value below the given keys."""

    def read(document: Document) -> Iterator[Sample]:
        value: Any = document
        for key in path:
            value = value[key]
        yield (), value

    return read


def _each(section: str, key: str) -> Callable[[Document], Iterable[Sample]]:
    """Read a key of each named item of a section."""

    def read(document: Document) -> Iterator[Sample]:
        for name, item in document[section].items():
            yield (name,), item[key]

    return read


def _server(key: str) -> Callable[[Document], Iterable[Sample]]:
    def read(document: Document) -> Iterator[Sample]:
        for server in document["servers"]:
            yield (server["url"],), server[key]

    return read


def _up(document: Document) -> Iterator[Sample]:
    for server in document["servers"]:
        yield (server["url"],), float(server["state"] == "up")


def _samples(document: Document) -> Iterator[Sample]:
    for name, item in document["datasets"].items():
        for state in SampleState:
            yield (name, state.value), item[state.value]


def _alarms(document: Document) -> Iterator[Sample]:
    for level in ("info", "warn", "error"):
        yield (level,), sum(alarm["level"] == level for alarm in document["alarms"])


def _alarm_kinds(document: Document) -> Iterator[Sample]:
    for alarm in document["alarms"]:
        yield (alarm["kind"].partition(":")[0], alarm["level"]), 1


def _full_at(document: Document) -> Iterator[Sample]:
    at_ms = document["disk"]["full_at"]
    yield (), None if at_ms is None else at_ms / 1000


def _lane(key: str, name: str, unit: str, text: str) -> MetricDoc:
    return MetricDoc(f"eagled_lane_{name}", "gauge", unit, text, ("lane",), _each("lanes", key))


def _disk(key: str, text: str) -> MetricDoc:
    return MetricDoc(f"eagled_disk_{key}", "gauge", "bytes", text, (), _at("disk", key))


def _extraction(key: str, name: str, unit: str, text: str) -> MetricDoc:
    read = _at("extraction", key)
    return MetricDoc(f"eagled_extraction_{name}", "gauge", unit, text, (), read)


METRICS = (
    MetricDoc("eagled_uptime_seconds", "gauge", "seconds", "Since the start.", (), _at("uptime_s")),
    MetricDoc(
        "eagled_samples", "gauge", "samples", "By state.", ("dataset", "state"), _samples
    ),
    MetricDoc("eagled_alarms", "gauge", "alarms", "Raised now, by level.", ("level",), _alarms),
    MetricDoc(
        "eagled_alarm", "gauge", "1", "One sample an alarm that is up.", ("kind", "level"),
        _alarm_kinds,
    ),
    _lane("in_flight", "in_flight", "requests", "At the servers."),
    _lane("limit", "limit", "requests", "Most at once; 0 is the server's own maximum."),
    _lane("out_tok_per_s", "output_tokens_per_second", "tokens/s", "Answers, the last minute."),
    _lane("in_tok_per_s", "input_tokens_per_second", "tokens/s", "Prompts, the last minute."),
    _lane("p50_s", "request_seconds_p50", "seconds", "Median of the last 512 requests."),
    _lane("p95_s", "request_seconds_p95", "seconds", "95th percentile of the same."),
    _lane("eta_s", "eta_seconds", "seconds", "Until the lane is empty."),
    MetricDoc(
        "eagled_server_up", "gauge", "0 or 1", "1 while requests are sent.", ("url",), _up
    ),
    MetricDoc(
        "eagled_server_in_flight", "gauge", "requests", "Ours at it.", ("url",),
        _server("in_flight"),
    ),
    MetricDoc(
        "eagled_server_kv_usage", "gauge", "0 to 1", "Share of its token memory in use.", ("url",),
        _server("kv_usage"),
    ),
    MetricDoc(
        "eagled_server_faults", "counter", "faults", "Since the daemon started.", ("url",),
        _server("faults"),
    ),
    MetricDoc(
        "eagled_oldest_running_seconds", "gauge", "seconds", "Age of the oldest request.", (),
        _at("oldest_running_s"),
    ),
    _extraction("shards", "shards", "files", "Shards that count."),
    _extraction("samples", "samples", "samples", "In shards."),
    _extraction("tokens", "tokens", "tokens", "In shards."),
    _extraction("bytes", "bytes", "bytes", "Of the shards."),
    _extraction("samples_per_s", "samples_per_second", "samples/s", "The last 15 minutes."),
    _extraction("workers", "workers", "processes", "That have asked for work."),
    _extraction("pending_tokens", "pending_tokens", "tokens", "In workers' hands."),
    _disk("used_bytes", "Of the state directory."),
    _disk("free_bytes", "Free on its file system."),
    _disk("budget_bytes", "What the run may use."),
    _disk("reserve_bytes", "Free bytes that extraction leaves alone."),
    _disk("projected_bytes", "Of hidden states still to come."),
    MetricDoc(
        "eagled_disk_full_at_seconds", "gauge", "seconds since 1970",
        "When the room ends, if it ends before the work.", (), _full_at,
    ),
    MetricDoc(
        "eagled_store_queue_depth", "gauge", "operations", "Waiting for the database writer.", (),
        _at("store", "queue_depth"),
    ),
    MetricDoc(
        "eagled_stale_completions", "counter", "results", "That came too late to count.", (),
        _at("store", "stale_completions"),
    ),
)  # fmt: skip


class _StatusCollector(Collector):
    """Hands one document to the registry."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the document."""
        for doc in METRICS:
            family = _family(doc)
            for labels, value in doc.read(self._document):
                if value is not None:
                    family.add_metric(list(labels), value)
            yield family


def _family(doc: MetricDoc) -> GaugeMetricFamily | CounterMetricFamily:
    text = f"{doc.text} ({doc.unit})"
    if doc.kind == "counter":
        return CounterMetricFamily(doc.name, text, labels=doc.labels)
    return GaugeMetricFamily(doc.name, text, labels=doc.labels)


def prometheus_text(document: Document) -> bytes:
    """Return the metrics of a status document."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(document))
    return generate_latest(registry)


def metrics_page() -> str:
    """Return docs/metrics.md."""
    rows = (
        f"| `{doc.shown}` | {doc.kind} | {doc.unit} | "
        f"{', '.join(f'`{label}`' for label in doc.labels) or ' '} | {doc.text} |"
        for doc in METRICS
    )
    return _PAGE + "\n".join(rows) + "\n"


_PAGE = """# Metrics

Prometheus text at `/metrics` on the control socket, and on 127.0.0.1 when `daemon.metrics_port` is
set:

```
curl --unix-socket state/control.sock http://eagled/metrics
```

A value that is not known has no sample. [monitoring/alerts.yml](monitoring/alerts.yml) has alert
rules and [monitoring/dashboard.json](monitoring/dashboard.json) a Grafana dashboard over these
names. This page is made by `python -m eagled.metrics > docs/metrics.md`.

| name | kind | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""

if __name__ == "__main__":
    print(metrics_page(), end="")  # noqa: T201 - a generator of a page
