"""What an operator does to samples, and how it is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.errors import UsageError
from eagled.store import SampleFilter, Store
from eagled.store.causes import cause_id, pattern_of
from eagled.store.ops.change import MOVED_FROM, REJECTED_FROM, RETRIED_FROM
from eagled.store.ops.generation import share_out
from eagled.types import EventKind, Failure, SampleState
from tests.unit.store.helpers import filled, generate, opened, problems, state_counts

ALL = SampleFilter()


async def failed(store: Store, n: int, detail: str = "HTTP 400: 17 tokens") -> None:
    """Claim and give up `n` samples."""
    for claim in await store.claim("short", n):
        final = Failure("refused_by_server", detail, charge=True, retry_in_s=None)
        await store.fail(claim.fence, final)


async def test_a_retry_is_taken_back_where_nothing_came_of_it(tmp_path: Path) -> None:
    """450 retried, 20 claimed since: 430 are failed again with their message, 20 stay."""
    async with opened(tmp_path) as store:
        await filled(store, 450)
        await failed(store, 450)
        would = await store.count_change(ALL, RETRIED_FROM)
        done = await store.retry(ALL, 5)
        await store.claim("short", 20)
        text = await store.undo(7)
        counts = await state_counts(store)
        rows = await store.samples(SampleFilter(state=SampleState.FAILED), limit=1)
        (event,) = [e for e in await store.events(0, 50) if e.kind is EventKind.UNDONE]

    assert (450, 450) == (would, done)
    assert {SampleState.FAILED: 430, SampleState.GENERATING: 20} == {
        state: n for state, n in counts.items() if n
    }
    assert text is not None
    assert "430 taken back; 20 have gone on" in text
    assert ("HTTP 400: 17 tokens", 1) == (rows[0].detail, rows[0].failures)
    assert 7 == event.uid
    assert not problems(tmp_path)


async def test_a_rejection_is_taken_back_with_its_answers(tmp_path: Path) -> None:
    """Queued ones are queued again, answers are answers again, in full."""
    async with opened(tmp_path) as store:
        await filled(store, 10)
        claims = await generate(store, 4)
        would = await store.count_change(ALL, REJECTED_FROM)
        done = await store.reject(ALL, "not {wanted}", 3)
        rejected = await state_counts(store)
        await store.undo(3)
        counts = await state_counts(store)
        found = await store.sample(claims[0].uid.hex())

    assert (10, 10) == (would, done)
    assert 10 == rejected[SampleState.REJECTED]
    assert (4, 6) == (counts[SampleState.GENERATED], counts[SampleState.QUEUED])
    assert found is not None
    assert found.output is not None
    assert found.row.reason is None
    assert not problems(tmp_path)


async def test_waiting_samples_move_and_come_back(tmp_path: Path) -> None:
    """Only what waits moves; the counters follow; undo puts back what still waits."""
    async with opened(tmp_path) as store:
        await filled(store, 6)
        await store.claim("short", 2)
        would = await store.count_change(ALL, MOVED_FROM)
        moved = await store.move(SampleFilter(lane="short"), "long", 1)
        taken = await store.claim("long", 1)
        await store.undo(1)
        back = await store.claim("short", 9)
        with pytest.raises(UsageError, match="no lane is called"):
            await store.move(ALL, "absent", 1)

    assert (4, 4, 1, 3) == (would, moved, len(taken), len(back))
    assert not problems(tmp_path)


async def test_a_change_that_changes_nothing_makes_no_event(tmp_path: Path) -> None:
    """Nothing to take back, nothing to read."""
    async with opened(tmp_path) as store:
        await filled(store, 2)
        n = await store.retry(ALL, 1)
        events = await store.events(0, 10)

    assert 0 == n
    assert EventKind.SAMPLES_RETRIED not in {e.kind for e in events}


async def test_settings_shares_and_limits_are_taken_back_in_order(tmp_path: Path) -> None:
    """The newest change goes first, whatever its kind, over a restart."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        lane = await store.set_lane("short", share=0.5, uid=1)
        data = await store.set_dataset("a", limit=4, share=3, uid=1)
        await store.set_setting("hold", "paused", 1)
    async with opened(tmp_path) as store:
        assert (0.5, 4, 3) == (lane.share, data.limit, data.share)
        await store.undo(1)
        hold = (await store.settings())["hold"]
        await store.undo(1)
        (dataset,) = await store.datasets()
        await store.undo(1)
        lanes = {row.name: row.share for row in await store.lanes()}

    assert "" == hold
    assert (None, 1) == (dataset.limit, dataset.share)
    assert None is lanes["short"]


async def test_a_dataset_has_no_more_in_flight_than_its_limit(tmp_path: Path) -> None:
    """Three at once, however many are asked for; a free place is taken again."""
    async with opened(tmp_path) as store:
        await filled(store, 10)
        await store.set_dataset("a", limit=3, uid=1)
        first = await store.claim("short", 8)
        none = await store.claim("short", 8)
        await store.give_back([first[0].fence])
        again = await store.claim("short", 8)

    assert (3, 0, 1) == (len(first), len(none), len(again))


def test_shares_are_turns() -> None:
    """A queue of share 3 gets three places where another gets one."""
    assert [6, 2] == share_out([100, 100], 8, [3, 1])
    assert [2, 6] == share_out([2, 100], 8, [3, 1])


async def test_failures_are_grouped_by_what_caused_them(tmp_path: Path) -> None:
    """Numbers and names differ, the cause does not; a retry of one cause leaves the others."""
    async with opened(tmp_path) as store:
        await filled(store, 30)
        await generate(store, 10)
        for n in range(8):
            await failed(store, 1, f"HTTP 400: {n} tokens of 'model-{n}' at http://h:{n}/x")
        await failed(store, 2, "HTTP 400: another matter")
        groups = await store.causes()
        ids = await store.of_cause(groups[0].cause)
        n = await store.retry(ids, 1)

    first, second = groups
    assert (8, 2) == (first.n, second.n)
    assert "HTTP N: N tokens of … at URL" == first.pattern
    assert first.detail == "HTTP 400: 7 tokens of 'model-7' at http://h:7/x"
    assert cause_id("refused_by_server", first.pattern) == first.cause
    assert (24, 24, 4.0) == (first.tokens_in, first.tokens_out, first.busy_s)
    assert 8 == n
    assert pattern_of("a  b\n3.5 s") == "a b N s"
