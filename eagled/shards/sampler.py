"""In which order a trainer reads samples, split over ranks, and where it stands in an epoch.

Guarantee: the order depends on seed and epoch only, not on the number of ranks, of loader workers
or on how samples lie in files; every rank gets equally many, so that collective operations pair up.
Price: up to `world_size - 1` samples at the end of an epoch are left out of it (others each time).
The position is what the trainer says it consumed (`advance`), never what a loader fetched ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from eagled.errors import ArtifactError


class ShardSampler(Sampler[int]):
    """Indices of one rank for the rest of the current epoch; give it to a `DataLoader`."""

    def __init__(
        self, n: int, *, seed: int = 0, rank: int = 0, world_size: int = 1, shuffle: bool = True
    ) -> None:
        """Start at the beginning of epoch 0.

        Args:
            n: samples of the dataset.
            seed: of the shuffle; each epoch has its own order.
            rank: this process, 0 to world_size - 1.
            world_size: processes that share the samples.
            shuffle: False reads in index order.
        """
        if not 0 <= rank < world_size:
            raise ArtifactError(f"rank {rank} is outside 0..{world_size - 1}")
        if n < world_size:
            raise ArtifactError(f"{n} samples are too few for {world_size} processes")
        self._n, self._seed, self._shuffle = n, seed, shuffle
        self._rank, self._world = rank, world_size
        self._epoch, self._done = 0, 0

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    def __len__(self) -> int:
        """Samples that this rank still has in this epoch."""
        return (self._n - self._done) // self._world

    def __iter__(self) -> Iterator[int]:
        order = self.order()
        end = self._done + len(self) * self._world
        yield from (int(i) for i in order[self._done + self._rank : end : self._world])

    def order(self) -> npt.NDArray[np.int64]:
        """Return the whole epoch's order, [n], equal on all ranks."""
        if not self._shuffle:
            return np.arange(self._n)
        return np.random.default_rng([self._seed, self._epoch]).permutation(self._n)

    def advance(self, samples: int) -> None:
        """Count `samples` of this rank (and as many of each other) as consumed."""
        self._done += samples * self._world

    def next_epoch(self) -> None:
        """Begin the next epoch with its own order."""
        self._epoch, self._done = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return where all ranks stand together; it can be loaded with another number of ranks."""
        return {"epoch": self._epoch, "done": self._done, "seed": self._seed, "n": self._n,
                "shuffle": self._shuffle}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ArtifactError: if it is of another seed or another number of samples.
        """
        ours = {"seed": self._seed, "n": self._n, "shuffle": self._shuffle}
        differs = [f"{k} is {state[k]!r}, not {v!r}" for k, v in ours.items() if state[k] != v]
        if differs:
            raise ArtifactError(f"the data order to resume is another one: {'; '.join(differs)}")
        self._epoch, self._done = state["epoch"], state["done"]
