"""Which samples make up each optimiser step, and loading them ahead of the trainer.

Guarantee: the plan depends on the samples, the seed and the sizes only, so a run that is stopped at
step n continues with the same batches; samples without a supervised row are left out before the
first step, and counted. Nothing is padded: a batch is whole documents up to a number of rows.
Price: lengths and masks of all samples are read once at the start; one thread loads ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch

from eagled.errors import ArtifactError
from eagled.shards.reader import Sample
from eagled.train.rows import Batch, align, pack

_AHEAD = 3  # optimiser steps that are loaded before they are needed


class Source(Protocol):
    """Samples by index; `ShardDataset` is one."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> Sample:
        """Return one sample."""

    def mask(self, index: int) -> torch.Tensor:
        """Return the loss mask of one sample, bool [T]."""


class MemorySource:
    """Samples that are in memory already."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = list(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def mask(self, index: int) -> torch.Tensor:
        """Return the loss mask of one sample."""
        return self._samples[index]["loss_mask"]


@dataclass(frozen=True, slots=True)
class Items:
    """The usable samples of a source.

    Attributes:
        index: their numbers in the source, ascending.
        rows: rows of each, T - 1 after the cut.
        left_out: samples without any row that carries loss after the cut.
        cut: samples that are longer than the limit.
    """

    index: tuple[int, ...]
    rows: tuple[int, ...]
    left_out: int
    cut: int


def usable(source: Source, max_tokens: int = 0) -> Items:
    """Return the samples that carry loss.

    Args:
        source: all samples.
        max_tokens: where longer ones are cut; 0 never.

    Raises:
        ArtifactError: if none is left.
    """
    found = pick(source, range(len(source)), max_tokens)
    if not found.index:
        raise ArtifactError(
            f"none of {len(source)} samples has a supervised token within {max_tokens or 'any'} "
            "tokens: raise train.max_tokens, or look at the loss masks"
        )
    return found


def pick(source: Source, which: Collection[int], max_tokens: int = 0) -> Items:
    """Return those of some samples that carry loss, maybe none."""
    index, rows, cut = [], [], 0
    for i in which:
        mask = source.mask(i)
        n = min(len(mask), max_tokens or len(mask))
        cut += n < len(mask)
        if bool((mask[1 : n - 1] & mask[2:n]).any()):  # a supervised input with a stored successor
            index.append(i)
            rows.append(n - 1)
    return Items(tuple(index), tuple(rows), len(which) - len(index), cut)


def some(items: Items, most: int, seed: int) -> Items:
    """Return at most so many of the items, chosen by the seed; 0 is all.

    A smaller choice is part of a larger one with the same seed.
    """
    if not most or most >= len(items.index):
        return items
    order = np.random.default_rng(seed).permutation(len(items.index))
    chosen = sorted(order[:most].tolist())
    index = tuple(items.index[i] for i in chosen)
    return replace(items, index=index, rows=tuple(items.rows[i] for i in chosen))


Pack = tuple[int, ...]  # sample numbers of one batch


@dataclass(frozen=True, slots=True)
class Plan:
    """All optimiser steps of a run: for each, the batches of all processes in order."""

    steps: tuple[tuple[Pack, ...], ...]
    epoch_ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, from 0."""
        return sum(end <= step for end in self.epoch_ends)


def make_plan(items: Items, *, epochs: float, batch_tokens: int, batches: int, seed: int) -> Plan:
    """Return the plan of a run.

    Args:
        items: the usable samples.
        epochs: passes over them; a fraction ends in the middle of one.
        batch_tokens: most rows of a batch; a longer sample is a batch of its own.
        batches: batches an optimiser step, of all processes together.
        seed: of the order; each epoch has its own.
    """
    steps: list[tuple[Pack, ...]] = []
    ends: list[int] = []
    whole = int(np.ceil(epochs))
    for epoch in range(whole):
        packs = _packs(items, batch_tokens, np.random.default_rng([seed, epoch]))
        share = min(1.0, epochs - epoch)
        packs = packs[: max(1, round(share * len(packs)))]
        steps.extend(tuple(packs[i : i + batches]) for i in range(0, len(packs), batches))
        ends.append(len(steps))
    return Plan(tuple(steps), tuple(ends))


def _packs(items: Items, batch_tokens: int, rng: np.random.Generator) -> list[Pack]:
    return _fill(items, rng.permutation(len(items.index)).tolist(), batch_tokens)


def in_order(items: Items, batch_tokens: int) -> list[Pack]:
    """Return all samples once, in their order, for evaluation."""
    return _fill(items, range(len(items.index)), batch_tokens)


def _fill(items: Items, order: Iterable[int], batch_tokens: int) -> list[Pack]:
    packs: list[Pack] = []
    current: list[int] = []
    held = 0
    for i in order:
        if current and held + items.rows[i] > batch_tokens:
            packs.append(tuple(current))
            current, held = [], 0
        current.append(items.index[i])
        held += items.rows[i]
    return [*packs, tuple(current)]


def load_pack(source: Source, which: Pack, *, steps: int, max_tokens: int) -> Batch | None:
    """Return a batch, or None if no sample of it carries loss."""
    documents = [align(source[i], max_tokens) for i in which]
    kept = [d for d in documents if d is not None]
    return pack(kept, steps) if kept else None


class Loader:
    """Batches of this process, a few optimiser steps ahead of the trainer; a context manager."""

    def __init__(
        self,
        source: Source,
        plan: Plan,
        *,
        steps: int,
        max_tokens: int,
        start: int = 0,
        rank: int = 0,
        world: int = 1,
        pin: bool = False,
    ) -> None:
        """Begin to load at optimiser step `start`; `steps` is K."""
        self._source, self._plan = source, plan
        self._steps, self._max_tokens, self._pin = steps, max_tokens, pin
        self._start, self._rank, self._world = start, rank, world
        self._pool = ThreadPoolExecutor(1, "eagled-load")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[tuple[int, list[Batch]]]:
        """Yield each optimiser step's number and this process's batches of it (maybe none)."""
        numbers = iter(range(self._start, len(self._plan)))
        ahead: list[tuple[int, Future[list[Batch]]]] = []
        for _ in range(_AHEAD):
            self._submit(numbers, ahead)
        while ahead:
            number, future = ahead.pop(0)
            yield number, future.result()
            self._submit(numbers, ahead)

    def _submit(self, numbers: Iterator[int], ahead: list[tuple[int, Future[list[Batch]]]]) -> None:
        number = next(numbers, None)
        if number is not None:
            ahead.append((number, self._pool.submit(self._load, number)))

    def _load(self, number: int) -> list[Batch]:
        mine = self._plan.steps[number][self._rank :: self._world]
        loaded = [
            load_pack(self._source, which, steps=self._steps, max_tokens=self._max_tokens)
            for which in mine
        ]
        batches = [b for b in loaded if b is not None]
        return [b.pinned() for b in batches] if self._pin else batches
