"""Training from shards that come and go: nothing lost, nothing twice, the same after a kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eagled.config import TrainConfig
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.shards.reader import Sample
from eagled.train.checkpoint import checkpoints, load_checkpoint
from eagled.train.metrics import StepRecord
from eagled.train.stream_feed import StreamFeed, StreamSpec
from eagled.train.team import Team
from eagled.train.trainer import RunSpec, Trainer, TrainResult
from tests.unit.train.kit import geometry, learnable, lines, sample, target_ends, vocabulary
from tests.unit.train.stream_kit import ToyRing, manifest, write_shard

pytestmark = pytest.mark.usefixtures("one_thread")
SHARDS, EACH = 7, 6
TOTAL = 100


class Killed(Exception):  # noqa: N818 - not an error: what a SIGKILL does to this process
    """The trainer is gone."""


@pytest.fixture(name="one_thread")
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(folder: Path, cap: int = 3, held: int = 1) -> ToyRing:
    """Return a ring through which some samples come, the last of each shard held out."""
    samples = learnable(SHARDS * EACH)
    parts = [samples[i : i + EACH] for i in range(0, len(samples), EACH)]
    shards = folder / "shards"
    written = [write_shard(shards, p[: EACH - held], p[EACH - held :]) for p in parts]
    return ToyRing(written, cap)


def trained_samples(held: int = 1) -> list[Sample]:
    """Return the samples that are trained on."""
    return [s for i, s in enumerate(learnable(SHARDS * EACH)) if i % EACH < EACH - held]


def stream(ring: ToyRing, folder: Path, **settings: object) -> tuple[StreamFeed, RunSpec]:
    """Return the feed of a run that goes on from its newest checkpoint."""
    config = TrainConfig.model_validate(
        {
            "device": "cpu", "ttt_steps": 3, "batch_tokens": 30, "lr": 1e-2, "max_steps": TOTAL,
            "checkpoint_every": 4, "eval_every": 3, **settings,
        }
    )  # fmt: skip
    found = checkpoints(folder / "checkpoints")
    record = load_checkpoint(found[-1]).feed if found else {}
    run = RunSpec(folder, config, 3, geometry(), vocabulary(), {"stream": True})
    feed = StreamFeed(StreamSpec(folder, config, 3, {"target_hash": "t1"}, record), alone())
    ring.register()
    feed.begin(ring)
    return feed, run


def alone() -> Team:
    """Return a team of one."""
    return Team(0, 1, torch.device("cpu"))


def train(
    ring: ToyRing,
    folder: Path,
    at: Callable[[StepRecord], None] = lambda _: None,
    **settings: object,
) -> TrainResult:
    """Go on to the end of the stream."""
    feed, run = stream(ring, folder, **settings)
    return Trainer(run, alone(), target_ends(), feed, at).run()


def kill_at(step: int) -> Callable[[StepRecord], None]:
    """Return what kills a trainer while it writes the line of a step."""

    def at(record: StepRecord) -> None:
        if record.step == step:
            raise Killed

    return at


def steps(folder: Path) -> list[dict[str, Any]]:
    """Return the step lines of a run."""
    return [line for line in lines(folder) if line["kind"] == "step"]


def test_everything_is_learnt_once_and_goes(tmp_path: Path) -> None:
    """All rows are read once; every shard is given back, in order, and after its checkpoint."""
    ring = made(tmp_path)
    names = [s.name for s in (*ring.there, *ring.coming)]
    release = ring.release

    def checked(names: Sequence[str]) -> None:
        last = load_checkpoint(checkpoints(tmp_path / "run/checkpoints")[-1]).feed
        assert set(names) <= {row[0] for row in last["shards"][: last["learnt"]]}
        release(names)

    ring.release = checked  # type: ignore[method-assign]  # looks at the disk first
    result = train(ring, tmp_path / "run")
    rows = sum(len(s["input_ids"]) - 1 for s in trained_samples())

    assert (True, True) == (result.over, result.finished)
    assert rows == sum(line["tokens"] for line in steps(tmp_path / "run"))
    assert names == ring.released
    assert [] == list((tmp_path / "shards").iterdir())


def test_the_losses_do_not_depend_on_when_shards_come(tmp_path: Path) -> None:
    """All at once, one at a time, or now and then: the same lines, estimates included."""
    train(made(tmp_path / "a", cap=SHARDS), tmp_path / "a/run")
    slow = made(tmp_path / "b", cap=3)
    slow.patience = 0.3
    train(slow, tmp_path / "b/run")

    assert lines(tmp_path / "a/run") == lines(tmp_path / "b/run")


@pytest.mark.parametrize("cap", [2, 4])
def test_a_kill_at_any_step_changes_nothing(tmp_path: Path, cap: int) -> None:
    """Killed after each step in turn, while lines are written: the lines of an unbroken run."""
    train(made(tmp_path / "whole", cap), tmp_path / "whole/run")
    whole = lines(tmp_path / "whole/run")
    ring = made(tmp_path / "broken", cap)

    for step in range(1, len(steps(tmp_path / "whole/run")), 2):
        with pytest.raises(Killed):
            train(ring, tmp_path / "broken/run", kill_at(step))
    train(ring, tmp_path / "broken/run")

    assert whole == lines(tmp_path / "broken/run")
    assert SHARDS == len(ring.released)


def test_a_kill_between_checkpoint_and_release_reads_nothing_twice(tmp_path: Path) -> None:
    """What the checkpoint has and the ring still gives is given back at once."""
    train(made(tmp_path / "whole"), tmp_path / "whole/run")
    ring = made(tmp_path / "broken")
    release, ring.release = ring.release, _die  # type: ignore[method-assign]  # a kill there
    with pytest.raises(Killed):
        train(ring, tmp_path / "broken/run")
    assert [] == ring.released
    ring.release = release  # type: ignore[method-assign]  # and back
    train(ring, tmp_path / "broken/run")

    assert lines(tmp_path / "whole/run") == lines(tmp_path / "broken/run")
    assert SHARDS == len(ring.released)


def _die(names: object) -> None:
    raise Killed(names)


def test_a_checkpoint_has_the_order_and_the_place(tmp_path: Path) -> None:
    """The names of the shards begun, oldest first, and what their samples come to."""
    ring = made(tmp_path)
    names = [s.name for s in (*ring.there, *ring.coming)]
    train(ring, tmp_path / "run", max_steps=9)
    last = load_checkpoint(checkpoints(tmp_path / "run/checkpoints")[-1])
    shards = last.feed["shards"]
    taken = sum(line["tokens"] for line in steps(tmp_path / "run"))
    rows = sum(row[2] for row in shards)

    assert names[: len(shards)] == [row[0] for row in shards]
    assert 0 < len(shards) < SHARDS
    assert 9 == last.step
    assert 0 <= rows - taken <= shards[-1][2]
    assert max(len(s["input_ids"]) for s in trained_samples()) >= last.facts["longest_tokens"] > 9


def test_estimates_are_of_the_shards_begun(tmp_path: Path) -> None:
    """Held-out samples are never trained on; each estimate has one more for each shard begun."""
    result = train(made(tmp_path), tmp_path / "run")
    every: list[dict[str, Any]] = lines(tmp_path / "run")
    found = [line["samples"] for line in every if line["kind"] == "estimate"]

    assert result.before is None
    assert result.after is not None
    assert SHARDS == result.after.samples == found[-1]
    assert found == sorted(found)
    assert 1 <= found[0] < SHARDS


def test_no_more_samples_are_kept_than_an_estimate_takes(tmp_path: Path) -> None:
    """The first `eval_samples` held-out samples stay, over a restart too."""
    ring = made(tmp_path)
    train(ring, tmp_path / "run", max_steps=TOTAL, eval_samples=3)
    feed, _ = stream(ring, tmp_path / "run", eval_samples=3)
    held = feed.held_out()

    assert held is not None
    assert 3 == len(held.source)


def test_a_ring_that_is_too_small_makes_short_steps(tmp_path: Path) -> None:
    """One shard at a time and steps of many: each shard is a step, nothing is lost, all goes."""
    ring = made(tmp_path, cap=1)
    result = train(ring, tmp_path / "run", batch_tokens=4096)

    assert SHARDS == result.step == len(ring.released)


def test_shards_without_training_samples_go_too(tmp_path: Path) -> None:
    """A shard of held-out samples, and one whose samples carry no loss, are given back."""
    folder = tmp_path / "shards"
    good, held, long = learnable(4), learnable(3, seed=200), [sample(40, 6, 90 + i) for i in (0, 1)]
    ring = ToyRing(
        [write_shard(folder, good), write_shard(folder, [], held), write_shard(folder, long),
         write_shard(folder, [], [sample(9, 6, 300)])], cap=1,
    )  # fmt: skip
    result = train(ring, tmp_path / "run", max_tokens=30)

    assert 4 == len(ring.released)
    assert 2 == result.left_out
    assert result.after is not None
    assert 4 == result.after.samples


def test_a_run_stops_while_it_waits_and_goes_on(tmp_path: Path) -> None:
    """SIGTERM with an empty ring ends the run with a checkpoint; more shards, and it goes on."""
    whole = made(tmp_path / "whole")
    train(whole, tmp_path / "whole/run")
    ring = made(tmp_path / "broken")
    ring.stalled = True
    feed, run = stream(ring, tmp_path / "broken/run")
    trainer = Trainer(run, alone(), target_ends(), feed)
    trainer_stops_when_it_waits(trainer, feed)
    result = trainer.run()
    assert (False, False) == (result.over, result.finished)
    ring.stalled = False
    train(ring, tmp_path / "broken/run")

    assert lines(tmp_path / "whole/run") == lines(tmp_path / "broken/run")


def trainer_stops_when_it_waits(trainer: Trainer, feed: StreamFeed) -> None:
    """Have a run be asked to stop as soon as it waits for shards."""

    def waiting() -> None:
        trainer.stop = True

    object.__setattr__(feed._spec, "waiting", waiting)


def test_a_daemon_that_is_gone_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    """The steps done are kept, and the error says that nobody answers."""
    ring = made(tmp_path)

    def gone(record: StepRecord) -> None:
        ring.away = record.step >= 5

    with pytest.raises(UnreachableError):
        train(ring, tmp_path / "run", gone, checkpoint_every=1000, eval_every=1000)
    kept = load_checkpoint(checkpoints(tmp_path / "run/checkpoints")[-1])
    ring.away = False
    train(ring, tmp_path / "run", checkpoint_every=1000, eval_every=1000)
    train(made(tmp_path / "b"), tmp_path / "b/run", checkpoint_every=1000, eval_every=1000)

    assert kept.step >= 5
    assert lines(tmp_path / "b/run") == lines(tmp_path / "run")


def test_a_stream_without_a_length_is_refused(tmp_path: Path) -> None:
    """The schedule needs its end: the setting is named."""
    with pytest.raises(ConfigError, match=r"train\.max_samples"):
        stream(made(tmp_path), tmp_path / "run", max_samples=5)
    with pytest.raises(ConfigError, match=r"train\.max_steps"):
        stream(made(tmp_path), tmp_path / "run", max_steps=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target_hash": "t2"}, "'t2'.*'t1'"),
        ({"tokenizer_hash": "k2"}, "tokenizer_hash"),
        ({"layers": (1, 2, 3)}, "layers"),
    ],
)
def test_a_shard_of_another_model_is_refused(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    """The second shard differs: both values are named, and it stays in the ring."""
    folder = tmp_path / "shards"
    first = write_shard(folder, learnable(6))
    second = write_shard(folder, learnable(6), (), manifest(**change))
    ring = ToyRing([first, second])
    with pytest.raises(ArtifactError, match=named):
        train(ring, tmp_path / "run")

    assert Path(second.path).exists()


def test_shards_without_final_states_are_refused(tmp_path: Path) -> None:
    """There is no teacher in them: the setting is named."""
    bare = learnable(2)
    for one in bare:
        one["last"], one["last_positions"] = one["last"][:0], one["last_positions"][:0]
    ring = ToyRing([write_shard(tmp_path / "shards", bare, (), manifest(last="none"))])
    with pytest.raises(ConfigError, match=r"extract\.last"):
        train(ring, tmp_path / "run")


def test_a_lost_lease_is_told(tmp_path: Path) -> None:
    """A shard that went before it was read, and one that went while it was half learnt."""
    ring = made(tmp_path)
    Path(ring.there[0].path).unlink()
    with pytest.raises(ArtifactError, match=r"disk\.lease_s"):
        train(ring, tmp_path / "run")

    ring = made(tmp_path / "half")
    with pytest.raises(Killed):
        train(ring, tmp_path / "half/run", kill_at(9))
    last = load_checkpoint(checkpoints(tmp_path / "half/run/checkpoints")[-1])
    assert last.feed["used"] > 0
    ring.release([last.feed["shards"][-1][0]])
    with pytest.raises(ArtifactError, match="in the midst of this shard"):
        train(ring, tmp_path / "half/run")
