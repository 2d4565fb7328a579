"""The order of a trainer's samples: complete, repeatable, resumable, split over ranks."""

from __future__ import annotations

import json

import pytest

from eagled.errors import ArtifactError
from eagled.shards import ShardSampler

N = 23


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_share_an_epoch_without_overlap(world: int) -> None:
    """Together the ranks see each sample at most once, equally many each, all but a short rest."""
    parts = [list(ShardSampler(N, seed=7, rank=r, world_size=world)) for r in range(world)]

    seen = [i for part in parts for i in part]
    assert {N // world} == {len(part) for part in parts}
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(range(N))


def test_order_depends_on_seed_and_epoch_only() -> None:
    """The same seed gives the same order again; another seed or epoch gives another one."""
    first = list(ShardSampler(N, seed=7))
    other = ShardSampler(N, seed=7)
    other.next_epoch()

    assert list(ShardSampler(N, seed=7)) == first
    assert sorted(other) == sorted(first)
    assert list(other) != first
    assert list(ShardSampler(N, seed=8)) != first
    assert list(ShardSampler(N, seed=8, shuffle=False)) == list(range(N))


def test_resume_continues_where_the_trainer_stood() -> None:
    """The state goes through JSON; what was fetched ahead but not consumed is read again."""
    sampler = ShardSampler(N, seed=1)
    whole = list(sampler)
    ahead = iter(sampler)
    for _ in range(9):
        next(ahead)
    sampler.advance(6)
    resumed = ShardSampler(N, seed=1)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))

    assert (list(resumed), len(resumed)) == (whole[6:], N - 6)


def test_resume_with_another_number_of_ranks_loses_nothing() -> None:
    """Four ranks stop after two samples each; three continue with exactly the rest."""
    four = [ShardSampler(N, seed=3, rank=r, world_size=4) for r in range(4)]
    done = [i for s in four for i in list(s)[:2]]
    four[0].advance(2)
    three = [ShardSampler(N, seed=3, rank=r, world_size=3) for r in range(3)]
    for s in three:
        s.load_state_dict(four[0].state_dict())

    rest = [i for s in three for i in s]
    assert sorted(done + rest) == sorted(range(N))


def test_a_foreign_state_is_refused() -> None:
    """A state of another seed or data set names both values."""
    state = ShardSampler(N, seed=1).state_dict()

    with pytest.raises(ArtifactError, match=r"seed is 1, not 2"):
        ShardSampler(N, seed=2).load_state_dict(state)
    with pytest.raises(ArtifactError, match=r"n is 23, not 9"):
        ShardSampler(9, seed=1).load_state_dict(state)


def test_ranks_that_cannot_be_are_refused() -> None:
    """A rank outside the world, or fewer samples than ranks, would hang a collective."""
    with pytest.raises(ArtifactError, match="rank 2"):
        ShardSampler(N, rank=2, world_size=2)
    with pytest.raises(ArtifactError, match="too few"):
        ShardSampler(3, rank=0, world_size=4)
