"""Output checks and the turns that follow."""

from __future__ import annotations

from pathlib import Path

from eagled.store import Store
from eagled.tokens import pack_ids, unpack_ids
from eagled.types import SampleState, TextVerdict
from tests.unit.store.helpers import ANSWER, filled, generate, opened, problems, state_counts

PROMPT = pack_ids([4, 5, 6, 7])


async def accept(store: Store, **extra: object) -> int:
    """Accept all answers that wait."""
    verdicts = [
        TextVerdict(job.sample_id, job.attempt, None, **extra)  # type: ignore[arg-type]  # fields of the verdict
        for job in await store.text_jobs(100)
    ]
    return await store.settle_text(verdicts, lane_of=lambda n: "short" if n < 100 else None)


async def test_job_holds_what_the_next_turn_needs(tmp_path: Path) -> None:
    """A job carries prompt, answer, conversation and all earlier answers in turn order."""
    async with opened(tmp_path) as store:
        await filled(store, 1, turns=3)
        await generate(store, 1)
        (first,) = await store.text_jobs(5)
        await accept(store, next_prompt=PROMPT)
        await generate(store, 1)
        (second,) = await store.text_jobs(5)
        none = await store.text_jobs(5, exclude={second.sample_id})

    assert (0, (), True) == (first.turn, first.answers, first.has_next)
    assert (1, (ANSWER.output,), True) == (second.turn, second.answers, second.has_next)
    assert PROMPT == second.prompt
    assert second.conversation == b"body"
    assert [] == none


async def test_accepted_answer_queues_the_next_turn(tmp_path: Path) -> None:
    """The next turn is queued with the exact prompt, in the lane that fits, before new work."""
    async with opened(tmp_path) as store:
        await filled(store, 2, turns=2)
        await generate(store, 1)
        settled = await accept(store, next_prompt=PROMPT)
        (claim,) = await store.claim("short", 1)

    assert settled == 1
    assert claim.turn == 1
    assert [4, 5, 6, 7] == unpack_ids(claim.prompt.z, claim.prompt.crc).tolist()


async def test_rejected_answer_cancels_what_follows(tmp_path: Path) -> None:
    """A broken answer is rejected with its reason and all later turns are cancelled."""
    async with opened(tmp_path) as store:
        await filled(store, 1, turns=3)
        (claim,) = await generate(store, 1)
        verdict = TextVerdict(claim.fence.sample_id, 1, "unclosed_think", "cut\x00")
        settled = await store.settle_text([verdict, verdict], lane_of=lambda _: "short")
        counts = await state_counts(store)
        found = await store.sample(claim.uid.hex())

    assert settled == 1  # the second one is stale
    assert {SampleState.REJECTED: 1, SampleState.CANCELLED: 2} == counts
    assert found is not None
    assert ("unclosed_think", "cut␀") == (found.row.reason, found.row.detail)
    assert found.output is not None  # kept for a person to look at


async def test_next_turn_that_fits_no_lane_is_rejected(tmp_path: Path) -> None:
    """Too long a next prompt rejects that turn with a reason and cancels the rest."""
    async with opened(tmp_path) as store:
        await filled(store, 1, turns=3)
        await generate(store, 1)
        await accept(store, next_prompt=pack_ids([1] * 200))
        groups = {(g.state, g.reason): g.n for g in await store.failures()}

    assert {
        (SampleState.REJECTED, "next_turn_too_long"): 1,
        (SampleState.CANCELLED, "predecessor"): 1,
    } == groups


async def test_next_turn_that_cannot_be_rendered_is_rejected(tmp_path: Path) -> None:
    """The text worker's reason is kept."""
    async with opened(tmp_path) as store:
        await filled(store, 1, turns=2)
        await generate(store, 1)
        await accept(store, next_reason="next_turn_template", detail="undefined")
        groups = {(g.state, g.reason): g.detail for g in await store.failures()}

    assert {(SampleState.REJECTED, "next_turn_template"): "undefined"} == groups


async def test_verdict_on_an_older_attempt_is_stale(tmp_path: Path) -> None:
    """A verdict names the attempt it saw; after a retry it counts for nothing."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        (claim,) = await generate(store, 1)
        number = claim.fence.sample_id
        await store.reject([number], "again", 0)
        await store.retry([number], 0)
        await generate(store, 1)
        stale = await store.settle_text(
            [TextVerdict(number, 1, "empty_answer")], lane_of=lambda _: "short"
        )
        counts = await state_counts(store)

    assert stale == 0
    assert {SampleState.GENERATED: 1} == counts


async def test_retry_of_a_too_long_turn_renders_again(tmp_path: Path) -> None:
    """A refused next turn waits again, its predecessor is worked off again, cancelled ones too."""
    async with opened(tmp_path) as store:
        await filled(store, 1, turns=3)
        await generate(store, 1)
        await accept(store, next_prompt=pack_ids([1] * 200))
        refused = [r for r in await store.samples() if r.state is SampleState.REJECTED]
        retried = await store.retry([refused[0].id], 0)
        counts = await state_counts(store)
        await accept(store, next_prompt=PROMPT)
        (claim,) = await store.claim("short", 1)

    assert retried == 1
    assert {SampleState.GENERATED: 1, SampleState.WAITING: 2} == counts
    assert claim.turn == 1
    assert [] == list(problems(tmp_path))
