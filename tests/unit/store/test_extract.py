"""Extraction claims and shards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eagled.errors import ArtifactError
from eagled.paths import StatePaths
from eagled.store import ShardCommit, Store, StoreReader
from eagled.types import ExtractJob, SampleState, ShardMember, ShardRecord, TextVerdict
from tests.faults import fault_file, fault_row
from tests.unit.store.helpers import filled, generate, opened, problems, state_counts

SHARD = ShardRecord("s-1.safetensors", "a" * 64, 1000, 3, 18, "m")


async def ready(store: Store, n: int) -> None:
    """Bring `n` samples to where extraction takes them."""
    await filled(store, n)
    await generate(store, n)
    verdicts = [TextVerdict(j.sample_id, j.attempt, None) for j in await store.text_jobs(n)]
    assert n == await store.settle_text(verdicts, lane_of=lambda _: "short")


def members(jobs: list[ExtractJob]) -> list[ShardMember]:
    """Return the jobs as members in order."""
    return [ShardMember(job.fence, i) for i, job in enumerate(jobs)]


async def test_claim_stays_in_the_token_budget(tmp_path: Path) -> None:
    """Samples of 6 tokens: a budget of 13 takes two; one that is over it is taken alone."""
    async with opened(tmp_path) as store:
        await ready(store, 4)
        two = await store.claim_extract(10, 13, worker="w")
        one = await store.claim_extract(10, 1, worker="w")

    assert (2, 1) == (len(two), len(one))
    assert (3, 3, 1) == (two[0].prompt.n, two[0].output.n, two[0].fence.attempt)


@pytest.mark.fault("F05")
async def test_what_lacks_states_is_decided_from_what_is_there(tmp_path: Path) -> None:
    """Three of six, then the other three, then the one whose shard was deleted; never more."""
    fault = json.loads(fault_file("prep/cached_filter.json").read_text())
    assert "second run does 3, third run does 1" in fault_row("F05")["expect"]
    done = []
    async with opened(tmp_path) as store:
        await ready(store, fault["samples"])
        for limit in (3, 6):
            jobs = await store.claim_extract(limit, 1000, worker="w")
            for job in jobs:
                name = f"s-{job.fence.sample_id}.safetensors"
                shard = replace(SHARD, name=name, n_samples=1, n_tokens=6)
                await store.commit_shard(shard, members([job]))
            done.append(len(jobs))
        await store.drop_shard("s-2.safetensors", "deleted")
    async with opened(tmp_path) as store:
        jobs = await store.claim_extract(6, 1000, worker="w")
        done.append(len(jobs))

    assert len(fault["steps"]) == len(done)
    assert [3, 3, 1] == done
    assert [2] == [job.fence.sample_id for job in jobs]


async def test_unchecked_answers_are_not_extracted(tmp_path: Path) -> None:
    """Only what passed its output check gets hidden states."""
    async with opened(tmp_path) as store:
        await filled(store, 1)
        await generate(store, 1)

        assert [] == await store.claim_extract(5, 100, worker="w")


async def test_shard_commit_is_fenced_and_repeatable(tmp_path: Path) -> None:
    """Members whose claim was taken back are stale; the same commit again changes nothing."""
    async with opened(tmp_path) as store:
        await ready(store, 3)
        jobs = await store.claim_extract(3, 100, worker="w")
        await store.fail_extract(jobs[0].fence, "rows", "4 for 6", final=False)
        with store.subscribe() as feed:
            first = await store.commit_shard(SHARD, members(jobs))
            acks = {(await anext(feed)).uid for _ in range(2)}
        again = await store.commit_shard(SHARD, members(jobs))
        with pytest.raises(ArtifactError, match="recorded with checksum"):
            await store.commit_shard(replace(SHARD, sha256="b" * 64), members(jobs))
        counts = await state_counts(store)
        held = await store.shard_members(SHARD.name)

    assert ShardCommit(2, 1) == first == again
    assert {SampleState.GENERATED: 1, SampleState.EXTRACTED: 2} == counts
    assert [(1, jobs[1].uid), (2, jobs[2].uid)] == [(m.index, m.uid) for m in held]
    assert {jobs[1].uid.hex(), jobs[2].uid.hex()} == acks


async def test_shard_without_a_live_member_is_not_recorded(tmp_path: Path) -> None:
    """A file whose samples all went elsewhere leaves no row."""
    async with opened(tmp_path) as store:
        await ready(store, 2)
        jobs = await store.claim_extract(2, 100, worker="w")
        released = await store.release_extract("w")
        result = await store.commit_shard(SHARD, members(jobs))
        shards = await store.shards()

    assert released == 2
    assert ShardCommit(0, 2) == result
    assert [] == shards


async def test_lost_shard_sends_its_samples_back(tmp_path: Path) -> None:
    """Dropping a shard says why and has its members extracted again, their answers untouched."""
    async with opened(tmp_path) as store:
        await ready(store, 3)
        await store.commit_shard(SHARD, members(await store.claim_extract(3, 100, worker="w")))
        dropped = await store.drop_shard(SHARD.name, "checksum differs")
        again = await store.drop_shard(SHARD.name, "checksum differs")
        (shard,) = await store.shards()
        jobs = await store.claim_extract(3, 100, worker="w")

    assert (3, 0) == (dropped, again)
    assert shard.dropped == "checksum differs"
    assert [2, 2, 2] == [job.fence.attempt for job in jobs]
    assert [] == list(problems(tmp_path))


async def test_release_is_by_worker(tmp_path: Path) -> None:
    """What one worker held goes back when it dies; another's stays; None takes all."""
    async with opened(tmp_path) as store:
        await ready(store, 3)
        await store.claim_extract(1, 100, worker="a")
        await store.claim_extract(2, 100, worker="b")
        mine = await store.release_extract("a")
        rest = await store.release_extract()

    assert (1, 2) == (mine, rest)


async def test_bad_states_are_final_and_can_be_extracted_again(tmp_path: Path) -> None:
    """A sample without usable states fails as such; a retry extracts, it does not generate."""
    async with opened(tmp_path) as store:
        await ready(store, 1)
        (job,) = await store.claim_extract(1, 100, worker="w")
        final = await store.fail_extract(job.fence, "nan", "position 1", final=True)
        stale = await store.fail_extract(job.fence, "nan", "position 1", final=True)
        (group,) = await store.failures()
        retried = await store.retry([job.fence.sample_id], 0)
        counts = await state_counts(store)

    assert (True, False) == (final, stale)
    assert (SampleState.FAILED, "bad_states", "nan: position 1") == (
        group.state, group.reason, group.detail,
    )  # fmt: skip
    assert retried == 1
    assert {SampleState.GENERATED: 1} == counts


async def test_reader_freezes_accepted_answers(tmp_path: Path) -> None:
    """A frozen list holds what is accepted, whatever extraction did with it, and gives bodies."""
    async with opened(tmp_path) as store:
        await ready(store, 505)
        await store.commit_shard(SHARD, members(await store.claim_extract(2, 100, worker="w")))
        await store.claim_extract(1, 100, worker="w")
        with StoreReader(StatePaths(tmp_path).database) as reader:
            frozen = reader.freeze()
            bodies = list(reader.bodies([member.id for member in frozen]))

    assert len(frozen) == len(bodies) == 505
    assert [(f.id, f.attempt, f.crc) for f in frozen] == [
        (b.id, b.attempt, b.output.crc) for b in bodies
    ]
    assert {"a"} == {b.dataset for b in bodies}
