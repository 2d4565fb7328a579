"""What an operator changes, and how it is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.errors import UsageError
from eagled.store import SampleFilter
from eagled.types import EventKind, Failure, SampleState
from tests.unit.store.helpers import filled, generate, opened, problems, state_counts


async def test_changes_are_events_and_can_be_undone(tmp_path: Path) -> None:
    """Each change is an event with its user; undo walks back over them, newest first."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        await store.set_lane("short", paused=True, limit=5, uid=1000)
        await store.set_dataset("a", priority=4, uid=1001)
        await store.set_dataset("a", uid=1001)  # changes nothing: no event
        undone = [await store.undo(7) for _ in range(3)]
        lane = (await store.lanes())[0]
        (dataset,) = await store.datasets()
        events = [(e.kind, e.subject, e.uid) for e in await store.events(0, 50)]

    assert (200, False) == (lane.limit, lane.paused)
    assert dataset.priority == 0
    assert undone[0] is not None
    assert undone[0].startswith("a: ")
    assert undone[1] is not None
    assert undone[1].startswith("short: ")
    assert undone[2] is None
    assert [
        (EventKind.LANE_CHANGED, "short", 1000),
        (EventKind.DATASET_CHANGED, "a", 1001),
        (EventKind.UNDONE, "a", 7),
        (EventKind.UNDONE, "short", 7),
    ] == events


async def test_settings_outlive_a_restart(tmp_path: Path) -> None:
    """A live setting is there after the next start."""
    async with opened(tmp_path) as store:
        await store.set_setting("extract.paused", "1", 0)
        await store.set_setting("extract.paused", "0", 0)
    async with opened(tmp_path) as store:
        assert {"extract.paused": "0"} == await store.settings()


async def test_unknown_names_are_refused(tmp_path: Path) -> None:
    """A lane or dataset that is not there is named in the error."""
    async with opened(tmp_path) as store:
        with pytest.raises(UsageError, match="'nope'"):
            await store.set_lane("nope", paused=True, uid=0)
        with pytest.raises(UsageError, match="'nope'"):
            await store.set_dataset("nope", paused=True, uid=0)


async def test_retry_by_filter_forgives(tmp_path: Path) -> None:
    """Given-up samples of one reason are queued again with their charges forgiven."""
    async with opened(tmp_path) as store:
        await filled(store, 450)
        for claim in await store.claim("short", 450):
            failure = Failure("refused_by_server", "400", charge=True, retry_in_s=None)
            await store.fail(claim.fence, failure)
        none = await store.retry(SampleFilter(reason="other", state=SampleState.FAILED), 5)
        total = await store.retry(SampleFilter(reason="refused_by_server"), 5)
        (again,) = await store.claim("short", 1)
        (event,) = [e for e in await store.events(0, 9) if e.kind is EventKind.SAMPLES_RETRIED]

    assert (0, 450) == (none, total)
    assert (2, 0) == (again.fence.attempt, again.failures)
    assert ("450 queued again", 5) == (event.detail, event.uid)


async def test_retry_ends_a_wait_and_leaves_others_alone(tmp_path: Path) -> None:
    """A waiting retry goes now; queued, running and finished samples do not change."""
    async with opened(tmp_path) as store:
        await filled(store, 4)
        await generate(store, 1)
        waits, _ = await store.claim("short", 2)
        await store.fail(waits.fence, Failure("X", "", charge=True, retry_in_s=999))
        retried = await store.retry([1, 2, 3, 4, 99], 0)
        counts = await state_counts(store)

    assert retried == 1
    assert {
        SampleState.QUEUED: 2,
        SampleState.GENERATING: 1,
        SampleState.GENERATED: 1,
    } == counts


async def test_rejecting_leaves_running_samples_alone(tmp_path: Path) -> None:
    """An operator's rejection takes queued and finished samples, with their waiting turns."""
    async with opened(tmp_path) as store:
        await filled(store, 3, turns=2)
        await generate(store, 1)
        await store.claim("short", 1)
        rejected = await store.reject([1, 3, 5], "not wanted", 0)
        counts = await state_counts(store)

    assert rejected == 2
    assert {
        SampleState.REJECTED: 2,
        SampleState.CANCELLED: 2,
        SampleState.GENERATING: 1,
        SampleState.WAITING: 1,
    } == counts
    assert [] == list(problems(tmp_path))


async def test_lists_are_filtered_and_paged(tmp_path: Path) -> None:
    """Filters combine; `after` goes on where a page ended."""
    async with opened(tmp_path) as store:
        await filled(store, 5, name="a")
        await filled(store, 5, name="b")
        await generate(store, 4)
        wanted = SampleFilter(dataset="b", state=SampleState.QUEUED, lane="short")
        first = await store.samples(wanted, 2)
        rest = await store.samples(wanted, after=first[-1].id)

    assert (2, 1) == (len(first), len(rest))
    assert {("b", SampleState.QUEUED)} == {(r.dataset, r.state) for r in first + rest}


async def test_slow_subscriber_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not read ends; it costs the store no more than its backlog."""
    monkeypatch.setattr("eagled.store.feed.BACKLOG", 20)
    async with opened(tmp_path) as store:
        feed = store.subscribe()
        await filled(store, 30)
        await generate(store, 30)
        seen = [ack async for ack in feed]

    assert feed.dropped
    assert len(seen) == 20


async def test_events_are_pruned_by_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest events stay; their numbers go on."""
    monkeypatch.setattr("eagled.store.ops.base.KEEP_EVENTS", 10)
    async with opened(tmp_path) as store:
        for i in range(256):
            last = await store.add_event(EventKind.ALARM, "s", f"{i}\x1b")
        events = await store.events(0, 500)

    assert last == 256
    assert [e.seq for e in events] == list(range(247, 257))
    assert events[-1].detail == "255␛"
