"""Where a run's optimiser steps come from: a frozen corpus here, a stream in `stream_feed.py`.

A feed is made for one run and one process of it. All processes of a run get the same steps in the
same order, each its own batches of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from eagled.config import TrainConfig
from eagled.train.data import Items, Loader, Plan, Source, make_plan, some, usable
from eagled.train.rows import Batch
from eagled.train.team import Team

Steps: TypeAlias = Generator[tuple[int, list[Batch]], None, None]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Samples that are not trained on, and the lane of a prompt length if lanes are known."""

    source: Source
    items: Items
    lane_of: Callable[[int], str] | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What training samples came to.

    Attributes:
        samples: that carry loss.
        rows: of them.
        left_out: samples without any row that carries loss.
        cut: samples longer than the limit.
        longest_rows: of one sample.
    """

    samples: int = 0
    rows: int = 0
    left_out: int = 0
    cut: int = 0
    longest_rows: int = 0

    @classmethod
    def of(cls, items: Items) -> Counts:
        """Return those of some samples."""
        longest = max(items.rows, default=0)
        return cls(len(items.index), sum(items.rows), items.left_out, items.cut, longest)

    def __add__(self, other: Counts) -> Counts:
        """Return those of both."""
        return Counts(
            self.samples + other.samples, self.rows + other.rows,
            self.left_out + other.left_out, self.cut + other.cut,
            max(self.longest_rows, other.longest_rows),
        )  # fmt: skip


class Driver(Protocol):
    """What a feed asks of the trainer that takes its steps."""

    step: int

    def checkpoint(self) -> None:
        """Write a durable checkpoint of the steps done; every process calls it."""

    def stopping(self) -> bool:
        """Return whether any process was asked to stop; every process calls it."""


class Feed(Protocol):
    """Optimiser steps, and what is told about them."""

    @property
    def total(self) -> int:
        """Optimiser steps that the learning rate is planned for."""

    @property
    def over(self) -> bool:
        """Whether no further step comes, although `total` may not be reached."""

    def first(self) -> Tensor:
        """Return the states of one training sample, [T-1, L*D]; asked before the first step."""

    def steps(self, driver: Driver) -> Steps:
        """Yield each optimiser step's number, from `driver.step`, and this process's batches."""

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, from 0."""

    def ends_epoch(self, step: int) -> bool:
        """Return whether an epoch ends after so many steps."""

    def held_out(self) -> HeldOut | None:
        """Return the samples that an estimate after the last step yielded is made of."""

    def counts(self) -> Counts:
        """Return what the training samples came to, so far."""

    def facts(self) -> Mapping[str, Any]:
        """Return what only the data can tell, for whoever reads a checkpoint."""

    def record(self) -> Mapping[str, Any]:
        """Return the JSON-ready place in the data after the last step yielded."""

    def wants_checkpoint(self) -> bool:
        """Return whether a checkpoint would free much; the same in every process."""

    def saved(self) -> None:
        """Note that `record()` is in a durable checkpoint."""


class CorpusFeed:
    """The samples of a source that does not change, for some epochs."""

    over = False

    def __init__(
        self,
        source: Source,
        config: TrainConfig,
        *,
        seed: int,
        team: Team,
        held_out: HeldOut | None = None,
    ) -> None:
        """Plan all steps.

        Raises:
            ArtifactError: if no sample carries loss.
        """
        self._source, self._config, self._team, self._held = source, config, team, held_out
        self.items = some(usable(source, config.max_tokens), config.max_samples, seed)
        self._counts = Counts.of(self.items)
        plan = make_plan(
            self.items, epochs=config.epochs, batch_tokens=config.batch_tokens,
            batches=config.accumulation * team.world, seed=seed,
        )  # fmt: skip
        self.plan = _limited(plan, config.max_steps)

    @property
    def total(self) -> int:
        """Optimiser steps of the plan."""
        return len(self.plan)

    def first(self) -> Tensor:
        """Return the states of the first usable sample, [T-1, L*D]."""
        return self._source[self.items.index[0]]["aux"]

    def steps(self, driver: Driver) -> Steps:
        """Yield the steps of the plan, loaded ahead."""
        loader = Loader(
            self._source, self.plan, steps=self._config.ttt_steps, start=driver.step,
            max_tokens=self._config.max_tokens, rank=self._team.rank, world=self._team.world,
            pin=self._team.device.type == "cuda",
        )  # fmt: skip
        with loader:
            yield from loader

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, from 0."""
        return self.plan.epoch_of(step)

    def ends_epoch(self, step: int) -> bool:
        """Return whether an epoch ends after so many steps."""
        return step in self.plan.epoch_ends

    def held_out(self) -> HeldOut | None:
        """Return the held-out samples of the corpus."""
        return self._held

    def counts(self) -> Counts:
        """Return what the training samples come to."""
        return self._counts

    def facts(self) -> Mapping[str, Any]:
        """Return nothing: a corpus is known before the run."""
        return {}

    def record(self) -> Mapping[str, Any]:
        """Return nothing: the step tells the place."""
        return {}

    def wants_checkpoint(self) -> bool:
        """Return that none is needed."""
        return False

    def saved(self) -> None:
        """Nothing waits for it."""


def _limited(plan: Plan, max_steps: int) -> Plan:
    if not max_steps or max_steps >= len(plan):
        return plan
    ends = (*(e for e in plan.epoch_ends if e < max_steps), max_steps)
    return Plan(plan.steps[:max_steps], ends)
