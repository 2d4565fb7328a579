"""The steps of a stream: decided by the order of shards, gone on with from any place."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from eagled.train.stream import Place, StreamPlan, StreamStep

BATCH = 20
Shards = Sequence[dict[int, int]]

shard_lists = st.lists(st.lists(st.integers(1, 30), max_size=7), max_size=6).map(
    lambda sizes: [
        {100 * n + i: rows for i, rows in enumerate(shard)} for n, shard in enumerate(sizes)
    ]
)


def new_plan(place: Place | None = None, batches: int = 2) -> StreamPlan:
    """Return a small plan."""
    return StreamPlan(batch_tokens=BATCH, batches=batches, seed=5, place=place)


def all_steps(shards: Shards, ahead: int = 0, plan: StreamPlan | None = None) -> list[StreamStep]:
    """Return all steps when so many shards more than needed are read ahead."""
    plan = plan or new_plan()
    steps: list[StreamStep] = []
    for i, shard in enumerate(shards):
        plan.add(shard)
        while i >= ahead and (step := plan.next()) is not None:
            steps.append(step)
    while (step := plan.next()) is not None:
        steps.append(step)
    last = plan.rest()
    return [*steps, last] if last is not None else steps


def samples(steps: Sequence[StreamStep]) -> list[int]:
    """Return the samples of steps in order."""
    return [i for step in steps for pack in step.packs for i in pack]


def test_steps_span_shards_and_take_from_the_front() -> None:
    """Three shards of three samples of 9 rows: two to a batch, two batches a step, the rest last.

    By hand: 20 rows hold two samples of 9; a step has four; nine samples are 4 + 4 + 1.
    """
    shards = [{10 * n + i: 9 for i in range(3)} for n in range(3)]
    steps = all_steps(shards)

    assert [[2, 2], [2, 2], [1]] == [[len(p) for p in s.packs] for s in steps]
    assert [Place(1, 1), Place(2, 2), Place(3, 0)] == [s.after for s in steps]
    assert [0, 0, 0, 1, 1, 1, 2, 2, 2] == [i // 10 for i in samples(steps)]


def test_a_shard_is_shuffled_by_its_number() -> None:
    """Equal shards come in different orders; the same number has the same order."""
    shards = [{1000 * n + i: 1 for i in range(50)} for n in range(2)]
    first, second = (
        [i % 1000 for i in samples(all_steps(shards)) if i // 1000 == n] for n in range(2)
    )

    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != sorted(first)
    assert samples(all_steps(shards)) == samples(all_steps(shards))


@given(shard_lists, st.integers(0, 4))
def test_each_sample_is_in_one_step_however_far_is_read_ahead(shards: Shards, ahead: int) -> None:
    """Reading ahead changes nothing, nothing is lost or doubled, and no batch is too large."""
    steps = all_steps(shards, ahead)
    rows = {i: n for shard in shards for i, n in shard.items()}

    assert sorted(rows) == sorted(samples(steps))
    assert all_steps(shards) == steps
    assert all(sum(rows[i] for i in p) <= BATCH or len(p) == 1 for s in steps for p in s.packs)
    assert all(len(s.packs) == 2 for s in steps[:-1])


@given(shard_lists, st.data())
def test_the_same_steps_follow_from_a_place(shards: Shards, data: st.DataObject) -> None:
    """A plan that begins behind any step, with the shards not learnt there, ends the same way."""
    steps = all_steps(shards)
    done = data.draw(st.integers(0, len(steps)))
    place = steps[done - 1].after if done else Place()
    rest = all_steps(shards[place.learnt :], plan=new_plan(place))

    assert steps[done:] == rest


@given(shard_lists)
def test_a_shard_is_learnt_once_all_its_samples_are_in_steps(shards: Shards) -> None:
    """Behind each step exactly the samples of learnt shards, and `used` more, were taken."""
    taken = 0
    for step in all_steps(shards)[:-1]:
        taken += sum(len(p) for p in step.packs)
        counts = [len(shard) for shard in shards[: step.after.learnt]]

        assert taken == sum(counts) + step.after.used
        assert step.after.begun <= len(shards)


def test_what_is_left_can_be_taken_before_more_comes() -> None:
    """A rest in the middle is a short step; the shards behind it begin a new one."""
    plan = new_plan()
    plan.add({0: 9, 1: 9, 2: 9})
    assert plan.next() is None
    short = plan.rest()
    assert short is not None
    assert Place(1) == short.after == plan.place
    assert plan.rest() is None
    plan.add({})
    assert plan.rest() is None
    assert Place(2) == plan.place
    plan.add({3: 9})
    assert 1 == plan.waiting
