"""The status document: its keys, its arithmetic, its page, its metrics."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from eagled.disk import DiskView
from eagled.metrics import prometheus_text
from eagled.progress import Before, Point, Progress
from eagled.status import (
    Alarm,
    ExtractionView,
    Facts,
    ServerView,
    ShardTotals,
    before_of,
    build_status,
    finished_of,
    held_of,
    status_line,
    tokens_left,
)
from eagled.store.records import CounterRow, DatasetRow, LaneRow
from eagled.tui.model import parse_status
from eagled.types import Mode, SampleState
from eagled.workers.generation.rates import LaneMetrics

DOCS = Path(__file__).parents[2] / "docs/status.md"
COUNTERS = [
    CounterRow("a", "short", SampleState.QUEUED, 5),
    CounterRow("a", "short", SampleState.GENERATED, 4),
    CounterRow("a", None, SampleState.WAITING, 3),
    CounterRow("b", "long", SampleState.EXTRACTED, 2),
    CounterRow("b", "short", SampleState.REJECTED, 1),
]
FACTS = Facts(
    run="r",
    version="0",
    at_ms=1_800_000_010_000,
    started_ms=1_800_000_000_000,
    phase="generating",
    pid=1,
    epoch=2,
    counters=COUNTERS,
    lanes=[LaneRow("short", 0, 10_000, 200), LaneRow("long", 1, 0, 16, paused=True)],
    lane_metrics={"short": LaneMetrics(3, 200, False, 4, 12.345, 6.0, 1.0, 2.0)},  # noqa: FBT003 - a record by position
    datasets=[
        DatasetRow(1, "a", 5, False, Mode.REGENERATE, "k", 10, 9, 1, True),  # noqa: FBT003 - a record by position
        DatasetRow(2, "b", 0, True, Mode.NATIVE, "k", 3, 3, 0, False),  # noqa: FBT003 - a record by position
    ],
    servers=[ServerView("http://h", "up", "1", "m", 3, 3, 0, 0.5, 20.0, 0, None)],
    shards=ShardTotals(1, 2, 100, 2000),
    extraction=ExtractionView("running", "", False, 1, 50),  # noqa: FBT003 - a record by position
    disk=DiskView(10, 20, 30, 5, 7, None, False, "", False),  # noqa: FBT003 - a record by position
    alarms=[Alarm("k", "warn", "look", 1)],
    oldest_running_s=1.234,
    held_text=1,
    stale_completions=0,
    queue_depth=0,
    workers={"text-0": 7},
)


def _document(facts: Facts = FACTS, progress: Progress | None = None) -> dict[str, Any]:
    return build_status(facts, progress or Progress())


def test_counts_are_sums_of_the_counters() -> None:
    """Lanes and datasets count the same samples from two sides; later turns have no lane yet."""
    document = _document()

    assert (5, 4, 1, 0) == tuple(
        document["lanes"]["short"][k] for k in ("queued", "generated", "rejected", "waiting")
    )
    assert (12, 4, 3) == tuple(document["datasets"]["a"][k] for k in ("total", "done", "waiting"))
    assert (3, 2, True) == tuple(document["datasets"]["b"][k] for k in ("total", "done", "paused"))


def test_times_left_come_from_this_runs_rates() -> None:
    """Two samples a second and five to go: 2.5 seconds; unknown where nothing has finished."""
    progress = Progress()
    for at, n in ((0.0, 0), (10.0, 20)):
        progress.add(Point(at, {}, {"lane:short": n, "dataset:a": n}, n // 10, 0, 0))
    document = _document(progress=progress)

    assert (2.5, 0.0) == (document["lanes"]["short"]["eta_s"], document["lanes"]["long"]["eta_s"])
    assert 4.0 == document["datasets"]["a"]["eta_s"]
    assert 60.0 == document["extraction"]["eta_s"]
    assert None is _document()["lanes"]["short"]["eta_s"]


def test_rates_and_histories_outlive_a_restart(tmp_path: Path) -> None:
    """The last document gives the rates its times left were made of, and histories up to now.

    A torn one, and one from the future, give nothing.
    """
    progress = Progress()
    for at, n in ((0.0, 0), (10.0, 20)):
        progress.add(Point(at, {"short": 7.0}, {"lane:short": n, "dataset:a": n}, 0, 0, 0))
    file = tmp_path / "status.json"
    file.write_bytes(orjson.dumps(_document(progress=progress)))
    told = before_of(file, FACTS.at_ms + 15_000)
    broken = [before_of(file, FACTS.at_ms - 1), before_of(tmp_path / "none", FACTS.at_ms)]
    for raw in (b"", b'{"lanes": 7}', b"[]", b'{"lanes": {"a": {}}, "datasets": {}}'):
        file.write_bytes(raw)
        broken.append(before_of(file, FACTS.at_ms))

    assert {"lane:short": 2.0, "dataset:a": 2.0} == told.rates
    assert [7.0, 7.0, 0.0, 0.0, 0.0] == told.histories["short"]
    assert [Before()] * 6 == broken


def test_what_is_held_is_named() -> None:
    """Paused lanes and datasets by name; all of them when everything is held."""
    lanes, datasets = FACTS.lanes, FACTS.datasets
    paused = {f"lane:{x.name}" for x in lanes if x.paused} | {
        f"dataset:{x.name}" for x in datasets if x.paused
    }

    assert paused == held_of(lanes, datasets, everything=False)
    assert len(lanes) + len(datasets) == len(held_of(lanes, datasets, everything=True))


def test_bytes_to_come_are_measured_means() -> None:
    """Twelve samples are left, shards hold 50 tokens a sample: 600 tokens; none before a shard."""
    assert 600 == tokens_left(COUNTERS, FACTS.shards)
    assert None is tokens_left(COUNTERS, ShardTotals(0, 0, 0, 0))
    assert 20.0 == _document()["extraction"]["bytes_per_token"]


def test_finished_is_what_needs_no_request_any_more() -> None:
    """Answers, failures and rejections are finished; what waits in any way is not."""
    assert {"dataset:a": 4, "lane:short": 5, "dataset:b": 3, "lane:long": 2} == finished_of(
        COUNTERS
    )


def test_every_key_is_documented_and_nothing_else() -> None:
    """docs/status.md names exactly the keys of the document, section by section."""
    document = _document()
    states = {state.value for state in SampleState}
    sections = {
        "Top level": set(document),
        "A lane": set(document["lanes"]["short"]) - states | {"waiting", "cancelled"},
        "A dataset": set(document["datasets"]["a"]) - states,
        "A server": set(document["servers"][0]),
        "`extraction`": set(document["extraction"]),
        "`disk`": set(document["disk"]),
        "An alarm": set(document["alarms"][0]),
    }
    parts = re.split(r"^## ", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    documented = {
        part.splitlines()[0]: {
            name
            for line in part.splitlines()
            if line.startswith("| `")
            for name in re.findall(r"`([^`]+)`", line.split("|")[1])
        }
        for part in parts
    }
    documented.pop("Prometheus")

    assert sections == documented


def test_nothing_known_yet_is_still_a_whole_document() -> None:
    """Before the first look at disk and servers every key is there."""
    bare = dataclasses.replace(
        FACTS, counters=[], lane_metrics={}, servers=[], disk=None, shards=ShardTotals(0, 0, 0, 0)
    )
    document = _document(bare)

    assert set(_document()["disk"]) == set(document["disk"])
    assert set(_document()["lanes"]["short"]) == set(document["lanes"]["short"])
    assert (None, 0.0) == (document["disk"]["free_bytes"], document["extraction"]["eta_s"])


def test_the_terminal_ui_reads_what_is_written() -> None:
    """The screen's parser finds lanes, datasets, server, extraction, disk and alarm."""
    seen = parse_status(_document())

    assert ("r", "generating", ["short", "long"], ["a", "b"]) == (
        seen.run,
        seen.phase,
        [lane.key for lane in seen.lanes],
        [dataset.key for dataset in seen.datasets],
    )
    assert seen.extraction is not None
    assert seen.disk is not None
    assert ("running", 1.0, 2000.0, 20.0) == (
        seen.extraction.state,
        seen.extraction.shards,
        seen.extraction.n_bytes,
        seen.disk.free,
    )
    assert (12.35, 0.5, 20.0, "look") == (
        seen.lanes[0].out_rate,
        seen.servers[0].kv_share,
        seen.servers[0].out_rate,
        seen.alarms[0].text,
    )


def test_metrics_are_what_the_document_says() -> None:
    """A Prometheus parser reads back the numbers; unknown ones are left out."""
    families = {
        f.name: f for f in text_string_to_metric_families(prometheus_text(_document()).decode())
    }
    samples = {
        (s.labels["dataset"], s.labels["state"]): s.value
        for s in families["eagled_samples"].samples
    }

    assert 5.0 == samples["a", "queued"]
    assert [("short", 3.0), ("long", 0.0)] == [
        (s.labels["lane"], s.value) for s in families["eagled_lane_in_flight"].samples
    ]
    assert ["short"] == [
        s.labels["lane"] for s in families["eagled_lane_request_seconds_p50"].samples
    ]
    assert [1.0] == [s.value for s in families["eagled_server_up"].samples]
    assert [20.0] == [s.value for s in families["eagled_disk_free_bytes"].samples]


def test_one_line_says_it_all() -> None:
    """What `systemctl status` shows: phase, requests, queue, rate, shards, alarms."""
    assert (
        "generating at 08:00:10 UTC: 3 in flight, 5 queued, 12 tokens/s, 1 shards, 1 alarms"
        == status_line(_document())
    )
