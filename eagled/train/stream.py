"""Which samples make up each optimiser step of a stream of shards.

Guarantee: the steps are a function of the shards' order, the seed and the sizes alone, not of when
the shards came: each shard's samples are shuffled by the seed and its number, and put behind those
before; a step takes from the front. Between two steps the place is two numbers, from which the
same steps follow. The exceptions are `rest` calls, which a place after them remembers.
Price: samples are shuffled within their shard only. Pure: no files, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagled.train.data import Pack


@dataclass(frozen=True, slots=True)
class Place:
    """Between two steps.

    Attributes:
        learnt: shards of which every sample is in a step before.
        used: samples of the next shard that are.
    """

    learnt: int = 0
    used: int = 0

    @property
    def begun(self) -> int:
        """Shards of which anything was used."""
        return self.learnt + (self.used > 0)


@dataclass(frozen=True, slots=True)
class StreamStep:
    """One optimiser step: the batches of all processes in order, and the place behind it."""

    packs: tuple[Pack, ...]
    after: Place


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A sample that no step has: its shard, its turn there, its number in the source, its rows."""

    shard: int
    turn: int
    index: int
    rows: int


class StreamPlan:
    """Shards in, steps out."""

    def __init__(
        self, *, batch_tokens: int, batches: int, seed: int, place: Place | None = None
    ) -> None:
        """Begin at a place.

        Args:
            batch_tokens: most rows of a batch; a longer sample is a batch of its own.
            batches: batches an optimiser step, of all processes together.
            seed: of the order within a shard.
            place: from an earlier plan; the next shard is number `place.learnt`.
        """
        self._batch_tokens, self._batches, self._seed = batch_tokens, batches, seed
        self._place = place or Place()
        self._skip = self._place.used
        self._shards = self._place.learnt
        self._sizes: dict[int, int] = {}  # samples of the shards that are not learnt
        self._queue: deque[_Waiting] = deque()

    @property
    def shards(self) -> int:
        """Shards so far; the number of the next one."""
        return self._shards

    @property
    def waiting(self) -> int:
        """Samples that no step has yet."""
        return len(self._queue)

    def add(self, rows: Mapping[int, int]) -> int:
        """Put a shard behind the others, and return its number.

        Args:
            rows: rows of each of its usable samples, by number in the source; maybe none.
        """
        number, self._shards = self._shards, self._shards + 1
        self._sizes[number] = len(rows)
        indices = sorted(rows)
        order = np.random.default_rng([self._seed, number]).permutation(len(indices)).tolist()
        skip, self._skip = self._skip, 0
        self._queue.extend(
            _Waiting(number, turn, indices[i], rows[indices[i]])
            for turn, i in enumerate(order)
            if turn >= skip
        )
        return number

    def next(self) -> StreamStep | None:
        """Return the next whole step; None if that takes more shards."""
        packs, taken = self._fill()
        # the last batch is whole only if the sample behind it did not fit
        return self._take(packs, taken) if taken < len(self._queue) else None

    def rest(self) -> StreamStep | None:
        """Return what is left as a step of its own, None if that is nothing; all is learnt then.

        To be asked when `next` gives none.
        """
        packs, taken = self._fill()
        step = self._take(packs, taken) if taken else None
        self._place = Place(self._shards)
        self._sizes.clear()
        return None if step is None else StreamStep(step.packs, self._place)

    @property
    def place(self) -> Place:
        """Behind the last step that was handed out."""
        return self._place

    def _fill(self) -> tuple[list[Pack], int]:
        """Return the batches from the front, at most a step's, and how many samples they have."""
        packs: list[Pack] = []
        current: list[int] = []
        held = 0
        for n, item in enumerate(self._queue):
            if current and held + item.rows > self._batch_tokens:
                packs.append(tuple(current))
                current, held = [], 0
                if len(packs) == self._batches:
                    return packs, n
            current.append(item.index)
            held += item.rows
        if current:
            packs.append(tuple(current))
        return packs, len(self._queue)

    def _take(self, packs: list[Pack], taken: int) -> StreamStep:
        items = [self._queue.popleft() for _ in range(taken)]
        last = items[-1]
        whole = last.turn + 1 == self._sizes[last.shard]
        self._place = Place(last.shard + 1) if whole else Place(last.shard, last.turn + 1)
        self._sizes = {n: size for n, size in self._sizes.items() if n >= self._place.learnt}
        return StreamStep(tuple(packs), self._place)
