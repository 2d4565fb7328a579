"""Claims, answers, failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eagled.clock import FakeClock
from eagled.errors import UsageError
from eagled.store import SampleFilter
from eagled.store.ops.generation import share_out
from eagled.tokens import pack_ids, unpack_ids
from eagled.types import Answer, Failure, Fence, Finish, SampleState
from tests.unit.store.helpers import (
    ANSWER,
    conversation,
    filled,
    generate,
    opened,
    problems,
    record,
    rows_of,
    state_counts,
)


async def test_answer_is_stored_exactly(tmp_path: Path) -> None:
    """The ids that were completed come back bit for bit, with who answered and how it ended."""
    output = pack_ids([282, 256, 258, 271])
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 5)
        accepted = await store.complete(claim.fence, Answer(output, Finish.LENGTH, "srv", 2.25))
        found = await store.sample(claim.uid.hex())

    assert accepted
    assert found is not None
    assert found.output is not None
    assert [282, 256, 258, 271] == unpack_ids(found.output.z, found.output.crc).tolist()
    assert (SampleState.GENERATED, Finish.LENGTH) == (found.row.state, found.row.finish)
    assert ("srv", 2.25, False) == (found.server, found.elapsed_s, found.checked)


async def test_claim_holds_the_stored_prompt(tmp_path: Path) -> None:
    """A claim carries exactly the prompt that was enqueued."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 1)

    assert [1, 2, 3] == unpack_ids(claim.prompt.z, claim.prompt.crc).tolist()
    assert ("a", "short", 0, 0) == (claim.dataset, claim.lane, claim.turn, claim.failures)
    assert Fence(1, 1, 1) == claim.fence


async def test_stale_completions_are_dropped_and_counted(tmp_path: Path) -> None:
    """Only the holder of (attempt, epoch) completes, and only once."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (old,) = await store.claim("short", 1)
        assert await store.give_back([old.fence]) == 1
        (new,) = await store.claim("short", 1)
        other_epoch = Fence(new.fence.sample_id, new.fence.attempt, new.fence.epoch + 1)
        answers = [
            await store.complete(fence, ANSWER)
            for fence in (old.fence, other_epoch, new.fence, new.fence)
        ]

    assert [False, False, True, False] == answers
    assert store.stale_completions == 3
    assert new.fence.attempt == 2


async def test_one_fence_completes_once_within_a_transaction(tmp_path: Path) -> None:
    """The same completion sent twice at the same moment counts once."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 1)
        both = await asyncio.gather(*(store.complete(claim.fence, ANSWER) for _ in range(2)))

    assert [True, False] == both


async def test_waiting_claims_of_a_lane_share_one_transaction(tmp_path: Path) -> None:
    """Claims that wait together are dealt out without overlap, in one commit."""
    async with opened(tmp_path) as store:
        await filled(store, 30)
        before = store.commits
        many = await asyncio.gather(*(store.claim("short", 3) for _ in range(12)))
        commits = store.commits - before

    ids = [claim.fence.sample_id for claims in many for claim in claims]
    assert list(range(1, 31)) == sorted(ids)
    assert [3] * 10 + [0, 0] == [len(claims) for claims in many]
    assert commits == 1


def test_share_out_takes_turns() -> None:
    """Places go round; what a short queue leaves goes to the others."""
    assert [3, 2, 2] == share_out([9, 9, 9], 7)
    assert [1, 5, 1] == share_out([1, 9, 1], 7)
    assert [2, 0] == share_out([2, 0], 7)
    assert [] == share_out([], 7)


async def test_priority_first_then_round_robin(tmp_path: Path) -> None:
    """A dataset of higher priority goes first; equal ones take turns, also over single claims."""
    async with opened(tmp_path) as store:
        for name, priority in (("low", 0), ("b", 5), ("c", 5)):
            await filled(store, 4, name=name, priority=priority)
        order = [(await store.claim("short", 1))[0].dataset for _ in range(4)]
        rest = [claim.dataset for claim in await store.claim("short", 6)]

    assert order in (["b", "c", "b", "c"], ["c", "b", "c", "b"])
    assert ["b", "b", "c", "c", "low", "low"] == sorted(rest)
    assert ["low", "low"] == rest[-2:]


async def test_priority_and_pause_change_without_touching_samples(tmp_path: Path) -> None:
    """A dataset's pause and priority apply to the next claim; its samples are not rewritten."""
    async with opened(tmp_path) as store:
        await filled(store, 3, name="a")
        await filled(store, 3, name="b")
        before = await store.samples()
        await store.set_dataset("a", paused=True, uid=0)
        paused = {c.dataset for c in await store.claim("short", 1)}
        await store.set_dataset("a", paused=False, priority=9, uid=0)
        first = {c.dataset for c in await store.claim("short", 3)}
        after = await store.samples(SampleFilter(state=SampleState.QUEUED))

    assert {"b"} == paused
    assert {"a"} == first
    assert {r.id: r.updated_ms for r in after}.items() <= {
        r.id: r.updated_ms for r in before
    }.items()


async def test_paused_lane_gives_nothing(tmp_path: Path) -> None:
    """A paused lane claims nothing and writes nothing."""
    async with opened(tmp_path) as store:
        await filled(store, 3)
        await store.set_lane("short", paused=True, uid=0)
        before = store.commits
        assert [] == await store.claim("short", 3)
        assert before == store.commits
        assert [] == await store.claim("no such lane", 3)


async def test_retries_and_later_turns_go_first(tmp_path: Path) -> None:
    """What was begun is finished before something new starts."""
    async with opened(tmp_path) as store:
        await filled(store, 4)
        first, second = await store.claim("short", 2)
        await store.give_back([second.fence])
        await store.fail(first.fence, Failure("X", "", charge=True, retry_in_s=0))
        ids = [claim.fence.sample_id for claim in await store.claim("short", 3)]

    assert [1, 2, 3] == ids


async def test_failed_attempt_waits_then_comes_back(tmp_path: Path) -> None:
    """A retry waits its time by the monotonic clock and returns with its charge."""
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 1)
        failure = Failure("ServerBusyError", "a\x1b[31mb", charge=True, retry_in_s=30)
        assert await store.fail(claim.fence, failure) is SampleState.RETRY_WAIT
        early = await store.wake_retries()
        clock.advance(30)
        woken = await store.wake_retries()
        (again,) = await store.claim("short", 1)
        found = await store.sample(claim.uid.hex())

    assert (0, 1) == (early, woken)
    assert (2, 1) == (again.fence.attempt, again.failures)
    assert found is not None
    assert ["a␛[31mb"] == [row.detail for row in found.failures_log]


async def test_last_failure_cancels_later_turns(tmp_path: Path) -> None:
    """A given-up turn takes its waiting successors with it, each with a reason."""
    async with opened(tmp_path) as store:
        await filled(store, 1, turns=3)
        (claim,) = await store.claim("short", 1)
        failure = Failure("too_many_failures", "x", charge=True, retry_in_s=None)
        state = await store.fail(claim.fence, failure)
        stale = await store.fail(claim.fence, failure)
        counts = await state_counts(store)
        groups = {(g.state, g.reason): g.n for g in await store.failures()}

    assert (SampleState.FAILED, None) == (state, stale)
    assert {SampleState.FAILED: 1, SampleState.CANCELLED: 2} == counts
    assert groups[SampleState.CANCELLED, "predecessor"] == 2


async def test_giving_back_charges_nobody(tmp_path: Path) -> None:
    """An interrupted claim is queued again with its attempt risen and no failure."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 1)
        assert await store.give_back([claim.fence]) == 1
        assert await store.give_back([claim.fence]) == 0
        found = await store.sample(claim.uid.hex())

    assert found is not None
    assert (SampleState.QUEUED, 1, 0, 0) == (
        found.row.state, found.row.attempt, found.row.failures, found.crashes,
    )  # fmt: skip


async def test_sample_in_flight_at_three_crashes_is_quarantined(tmp_path: Path) -> None:
    """A sample that goes down with three servers is set aside."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        for _ in range(3):
            (claim,) = await store.claim("short", 1)
            await store.give_back([claim.fence], crashed=True, max_crashes=3)
        found = await store.sample(claim.uid.hex())

    assert found is not None
    assert (SampleState.FAILED, "quarantined", 3) == (
        found.row.state, found.row.reason, found.crashes,
    )  # fmt: skip


async def test_cancelled_claim_gives_back_what_it_took(tmp_path: Path) -> None:
    """A caller that is cancelled while its claim is being written strands no sample."""
    async with opened(tmp_path) as store:
        await filled(store, 5)
        task = asyncio.create_task(store.claim("short", 5))
        await asyncio.sleep(0)  # let it reach the writer's queue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            rows = await store.samples()
            while {(row.state, row.attempt) for row in rows} != {(SampleState.QUEUED, 1)}:
                rows = await store.samples()
        again = await store.claim("short", 5)

    assert len(again) == 5


async def test_guilty_operation_fails_alone(tmp_path: Path) -> None:
    """One caller's broken data fails that caller; the others in its transaction succeed."""
    broken = conversation("bad", 1, lane="nowhere")
    async with opened(tmp_path) as store:
        number = await filled(store, 2)
        claims = await store.claim("short", 2)
        results = await asyncio.gather(
            store.complete(claims[0].fence, ANSWER),
            store.add_conversations(number, [broken]),
            store.complete(claims[1].fence, ANSWER),
            return_exceptions=True,
        )
        alive = await store.add_dataset(record("later"))

    assert isinstance(results[1], UsageError)
    assert [True, True] == [results[0], results[2]]
    assert alive == 2
    assert [] == list(problems(tmp_path))


async def test_answers_are_announced_after_commit(tmp_path: Path) -> None:
    """A subscriber hears of each stored answer once, with attempt and checksum."""
    async with opened(tmp_path) as store:
        await filled(store, 2)
        with store.subscribe() as feed:
            claims = await generate(store, 2)
            acks = [await anext(feed), await anext(feed)]

    assert [c.uid.hex() for c in claims] == [a.uid for a in acks]
    assert [(SampleState.GENERATED, 1, ANSWER.output.crc)] * 2 == [
        (a.kind, a.attempt, a.crc) for a in acks
    ]


async def test_request_ids_are_unique_and_of_one_length(tmp_path: Path) -> None:
    """A request id names lineage, epoch, sample and attempt and never begins another one."""
    async with opened(tmp_path) as store:
        ids = [store.rid(Fence(*f)) for f in ((1, 1, 1), (1, 11, 1), (11, 1, 1), (2**40, 9, 300))]

    assert {63} == {len(i) for i in ids}
    assert len(set(ids)) == 4
    assert all(i.startswith(store.lineage.hex()) for i in ids)


async def test_an_answer_so_far_comes_with_the_next_claim(tmp_path: Path) -> None:
    """Kept ids survive a restart, go with each claim until the answer is complete, then go."""
    so_far = pack_ids([5, 6, 7])
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 1)
        kept = await store.extend(claim.fence, so_far, extended=1, elapsed_s=2.0, lane="long")
        stale = await store.extend(claim.fence, so_far, extended=2, elapsed_s=2.0, lane="long")
        assert [] == await store.claim("short", 1)
        await store.claim("long", 1)
    async with opened(tmp_path) as store:
        (again,) = await store.claim("long", 1)
        done = Answer(pack_ids([5, 6, 7, 8]), Finish.STOP, "srv", 1.5, extended=1)
        assert await store.complete(again.fence, done)
        found = await store.sample(again.uid.hex())

    assert (True, False) == (kept, stale)
    assert (so_far, 1, 6) == (again.partial, again.extended, again.n_sent)
    assert found is not None
    assert (1, 4, 3.5) == (found.row.extended, found.row.n_output, found.elapsed_s)
    assert [] == rows_of(tmp_path, "SELECT * FROM partial")
    assert not problems(tmp_path)


async def test_a_sample_that_is_left_out_keeps_no_answer_so_far(tmp_path: Path) -> None:
    """Rejected while it waits to be continued, then retried: the answer begins again."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await store.claim("short", 1)
        await store.extend(claim.fence, pack_ids([5]), extended=1, elapsed_s=1.0, lane="short")
        await store.reject([claim.fence.sample_id], "not wanted", 0)
        await store.retry([claim.fence.sample_id], 0)
        (again,) = await store.claim("short", 1)

    assert (None, 0) == (again.partial, again.extended)
    assert [] == rows_of(tmp_path, "SELECT * FROM partial")
