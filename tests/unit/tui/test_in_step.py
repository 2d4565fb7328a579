"""The example status and the parser are in step with the document that the daemon makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagled.disk import DiskView
from eagled.progress import EVERY_S, Progress
from eagled.status import Alarm, ExtractionView, Facts, ServerView, ShardTotals, build_status
from eagled.store.records import CounterRow, DatasetRow, LaneRow
from eagled.tui.model import HISTORY_STEP_S, Snapshot, parse_status
from eagled.types import Mode, SampleState
from tests.unit.tui.doubles import AT_MS, status


def _built() -> dict[str, Any]:
    facts = Facts(
        run="r", version="0", at_ms=AT_MS, started_ms=AT_MS - 5000, phase="generating", pid=1,
        epoch=1,
        counters=[
            CounterRow("d", "a", SampleState.QUEUED, 7),
            CounterRow("d", "a", SampleState.FAILED, 1),
        ],
        lanes=[LaneRow("a", 0, 100, 4)],
        lane_metrics={},
        datasets=[DatasetRow(1, "d", 2, True, Mode.NATIVE, "k", 9, 8, 1, True)],  # noqa: FBT003 - row
        servers=[
            ServerView("http://h:1", "up", "1", "m", 3, 4, 5, 0.5, 6.0, 7, "slow"),
        ],
        shards=ShardTotals(2, 4, 100, 1000),
        extraction=ExtractionView("running", "because", False, 1, 10),  # noqa: FBT003 - row
        disk=DiskView(1, 2, 3, 4, 5, AT_MS + 8000, True, "full soon", False),  # noqa: FBT003 - row
        alarms=[Alarm("k", "error", "text", AT_MS)],
        oldest_running_s=1.5, held_text=0, stale_completions=0, queue_depth=0, workers={},
    )  # fmt: skip
    return build_status(facts, Progress())


def _keys(value: object) -> object:
    """The shape of a document: keys, with those of the first entry of each collection."""
    if isinstance(value, Mapping):
        return {str(key): _keys(item) for key, item in value.items()}
    return [_keys(value[0])] if isinstance(value, list) and value else None


def test_the_example_has_the_daemons_shape() -> None:
    """The example that the tests and the picture use has the keys that the daemon serves."""
    built, example = _built(), status()
    for name in ("lanes", "datasets"):
        built[name] = next(iter(built[name].values()))
        example[name] = next(iter(example[name].values()))
    built["lanes"]["history"] = example["lanes"]["history"]
    built["workers"] = example["workers"]

    assert _keys(built) == _keys(example)


def _known(record: object) -> dict[str, bool]:
    fields = type(record).__dataclass_fields__  # type: ignore[attr-defined] # all are dataclasses
    return {name: getattr(record, name) is not None for name in fields}


def test_every_field_is_found() -> None:
    """No field of the screen looks for a key that the daemon does not serve."""
    shot: Snapshot = parse_status(_built())
    records: list[object] = [
        shot, shot.datasets[0].counts, shot.servers[0], shot.extraction, shot.disk, shot.alarms[0],
    ]  # fmt: skip
    missing = [
        (type(record).__name__, name)
        for record in records
        for name, known in _known(record).items()
        if not known
    ]

    assert [("Extraction", n) for n in ("sample_rate", "token_rate", "eta_s")] == missing
    assert (True, 2, "native") == (
        shot.datasets[0].paused, shot.datasets[0].priority, shot.datasets[0].mode,
    )  # fmt: skip


def test_history_step() -> None:
    """The screen and the daemon agree on how much time a point of a history covers."""
    assert EVERY_S == HISTORY_STEP_S
