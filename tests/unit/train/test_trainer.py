"""A run learns, stops and goes on as if it had not stopped, and refuses to go on as another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagled.config import TrainConfig
from eagled.errors import ArtifactError
from eagled.train.checkpoint import checkpoints, load_checkpoint
from eagled.train.data import MemorySource, make_plan, usable
from eagled.train.feed import CorpusFeed
from eagled.train.schedule import Schedule
from eagled.train.team import Team
from eagled.train.trainer import Trainer
from tests.faults import fault_file
from tests.unit.train.kit import learnable, lines, sample, spec, trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(name="one_thread")
def _one_thread() -> None:
    torch.set_num_threads(1)


def case(name: str) -> dict[str, Any]:
    """Return a fault's settings."""
    return dict(json.loads(fault_file(f"train/{name}.json").read_text(encoding="utf-8")))


def stopped_after(run: Trainer, steps: int) -> Trainer:
    """Have a run stop by itself after so many more steps."""
    left = [steps]

    def count(_: object) -> None:
        left[0] -= 1
        run.stop = left[0] <= 1  # noticed at the end of the step after the one that is logged

    run._report = count
    return run


def test_a_run_learns_and_its_estimate_rises(tmp_path: Path) -> None:
    """On samples that follow a rule, loss falls and held-out answers take fewer verify steps."""
    run = trainer(spec(tmp_path, epochs=20), learnable(24), learnable(6, seed=100))
    result = run.run()
    found = lines(tmp_path)
    losses = [line["loss"] for line in found if line["kind"] == "step"]

    assert result.finished
    assert result.before is not None
    assert result.after is not None
    assert losses[-1] < losses[0] / 2  # type: ignore[operator]  # numbers
    assert result.after.total.length > 1.5 > result.before.total.length
    assert {"set0", "set1"} == set(result.after.datasets)
    assert {"short", "long"} == set(result.after.lanes)
    assert len(losses) == result.total


@pytest.mark.fault("F84")
def test_two_halves_equal_one_run(tmp_path: Path) -> None:
    """20 steps at once and in two halves: same rates, losses, weights and moments, bit for bit."""
    given = case("resume_lr")
    warmup = 4 / given["steps"]
    settings = {"max_steps": given["steps"], "epochs": 50, "warmup": warmup, "ema": 0.9}
    samples = learnable(24)
    trainer(spec(tmp_path / "whole", **settings), samples).run()
    first = stopped_after(
        trainer(spec(tmp_path / "halves", **settings), samples), given["stop_after"]
    )
    assert given["stop_after"] == first.run().step
    second = trainer(spec(tmp_path / "halves", **settings), samples)
    assert second.run().finished

    whole, halves = (
        load_checkpoint(checkpoints(tmp_path / name / "checkpoints")[-1]).tensors
        for name in ("whole", "halves")
    )
    assert lines(tmp_path / "whole") == lines(tmp_path / "halves")
    assert given["steps"] == len(lines(tmp_path / "halves"))
    assert set(whole) == set(halves)
    for name, value in whole.items():
        assert torch.equal(value, halves[name]), name


@pytest.mark.fault("F84")
def test_the_rate_rises_and_falls_as_the_schedule_says() -> None:
    """Linear over four steps, then a cosine to the floor; the step alone decides."""
    given = case("resume_lr")
    schedule = Schedule(1.0, given["steps"], 4, 0.1)
    rates = [schedule.rate(i) for i in range(given["steps"])]

    assert [0.25, 0.5, 0.75, 1.0, 1.0] == rates[:5]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert pytest.approx(0.1) == rates[-1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lr": 2e-2}, "train.lr"),
        ({"max_samples": 5}, "train.max_samples"),
        ({"facts": {"corpus": "c2"}}, "corpus"),
        ({"decay": 1.0}, "decay"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    """Other settings or data are named with both values, and nothing is overwritten."""
    samples = learnable(8)
    trainer(spec(tmp_path, epochs=1), samples).run()

    with pytest.raises(ArtifactError, match=named):
        trainer(spec(tmp_path, epochs=1, **change), samples)


def test_fewer_samples_are_part_of_more() -> None:
    """`max_samples` takes so many, by the seed; more data only adds, and 0 or plenty is all."""
    samples = MemorySource(learnable(12))
    alone = Team(0, 1, torch.device("cpu"))

    def taken(most: int, seed: int = 3) -> tuple[int, ...]:
        return CorpusFeed(samples, TrainConfig(max_samples=most), seed=seed, team=alone).items.index

    assert 4 == len(taken(4)) == len(set(taken(4)))
    assert set(taken(4)) < set(taken(9)) < set(taken(12)) == set(taken(0)) == set(taken(99))
    assert taken(4) != taken(4, seed=4)


@pytest.mark.fault("F86")
def test_rows_without_loss_are_gone_before_training(tmp_path: Path) -> None:
    """Samples whose mask is zero after the cut are left out and counted, and change nothing."""
    assert "all masks zero after the length cut" == case("empty_rank")["batches"]["rank1"]
    good, empty = learnable(6), [sample(30, 9, seed=50 + i) for i in range(3)]
    mixed = trainer(spec(tmp_path / "mixed", max_tokens=20, epochs=1), [*good, *empty])
    alone = trainer(spec(tmp_path / "alone", max_tokens=20, epochs=1), good)

    assert 3 == mixed.run().left_out
    alone.run()
    assert lines(tmp_path / "alone") == lines(tmp_path / "mixed")


def test_samples_without_any_loss_are_refused() -> None:
    """A data set with nothing to learn from is an error, not a run."""
    with pytest.raises(ArtifactError, match="none of 2 samples"):
        usable(MemorySource([sample(30, 9), sample(30, 5)]), 20)


def test_the_plan_uses_every_sample_once_an_epoch() -> None:
    """Two epochs: each sample twice, in another order, no batch over the limit."""
    items = usable(MemorySource(learnable(30)))
    plan = make_plan(items, epochs=2, batch_tokens=48, batches=2, seed=1)
    first = [i for s in plan.steps[: plan.epoch_ends[0]] for p in s for i in p]
    second = [i for s in plan.steps[plan.epoch_ends[0] :] for p in s for i in p]
    rows = dict(zip(items.index, items.rows, strict=True))

    assert list(range(30)) == sorted(first) == sorted(second)
    assert first != second
    assert all(sum(rows[i] for i in p) <= 48 for s in plan.steps for p in s)
    assert plan == make_plan(items, epochs=2, batch_tokens=48, batches=2, seed=1)
