"""A stream of small shards in a folder, with a cap, as a daemon's ring gives it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from eagled.errors import UnreachableError
from eagled.shards.format import ShardManifest, StatesSample
from eagled.shards.reader import Sample
from eagled.shards.writer import ShardWriter
from eagled.train.supply import Leased, Outlook
from tests.unit.train.kit import VOCAB, WIDTH, geometry


def manifest(**changes: object) -> ShardManifest:
    """Return what the shards of the toy target say."""
    values: dict[str, object] = {
        "target": "toy", "revision": None, "target_hash": "t1", "tokenizer_hash": "k1",
        "n_layers": 8, "hidden_size": WIDTH, "vocab_size": VOCAB, "layers": geometry().layers,
        "last": "supervised", "compute_dtype": "float32", "backend": "test", "eagled": "0",
    }  # fmt: skip
    return ShardManifest(**{**values, **changes})  # type: ignore[arg-type]  # given by name


def write_shard(
    folder: Path,
    samples: Sequence[Sample],
    held: Sequence[Sample] = (),
    says: ShardManifest | None = None,
) -> Leased:
    """Write a shard of training and held-out samples."""
    writer = ShardWriter(folder, says or manifest())
    for number, sample in enumerate([*samples, *held]):
        writer.append(stored(sample, number))
    made = writer.finish()
    train, holdout = (tuple(s["uid"] for s in part) for part in (samples, held))
    return Leased(made.path.name, str(made.path), made.record.file_bytes, train, holdout)


def stored(sample: Sample, number: int) -> StatesSample:
    """Return a sample as a shard takes it, in bfloat16."""
    aux, last = (
        states.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16)
        for states in (sample["aux"], sample["last"])
    )
    return StatesSample(
        sample["uid"], number, 1, sample["dataset"], sample["input_ids"].numpy().astype(np.int32),
        sample["loss_mask"].numpy().astype(np.uint8), aux, last,
        sample["last_positions"].numpy().astype(np.int32),
    )  # fmt: skip


class ToyRing:
    """What outlives a trainer: shards that are there, at most `cap` of them, and those to come."""

    def __init__(self, coming: Sequence[Leased], cap: int = 3) -> None:
        self.coming, self.cap = list(coming), cap
        self.there: list[Leased] = []
        self.held: list[str] = []
        self.released: list[str] = []
        self.lazy = random.Random(0)  # noqa: S311 - when shards come
        self.patience = 1.0  # chance that a question is answered with a shard
        self.away = self.stalled = False  # nobody answers; nothing comes for now
        self._fill()

    @property
    def cap_bytes(self) -> int:
        """The cap in bytes: shards are about as large as the first."""
        return self.cap * max((s.bytes for s in (*self.there, *self.coming)), default=0)

    def register(self) -> None:
        """A trainer begins: all that is there is handed out again."""
        self.held = []

    def take(self, wait_s: float) -> Leased | None:
        """Hand out the oldest shard that the trainer does not hold."""
        if self.away:
            raise UnreachableError("nobody answers")
        self._fill()
        if not wait_s and self.lazy.random() > self.patience:
            return None
        for shard in self.there:
            if shard.name not in self.held:
                self.held.append(shard.name)
                return shard
        return None

    def outlook(self) -> Outlook:
        """Say whether more comes."""
        full = bool(self.coming) and len(self.there) >= self.cap and not self.stalled
        return Outlook(not self.coming, full, full)

    def release(self, names: Sequence[str]) -> None:
        """Remove shards for good."""
        for shard in [s for s in self.there if s.name in names]:
            self.there.remove(shard)
            Path(shard.path).unlink()
            self.released.append(shard.name)

    def _fill(self) -> None:
        while self.coming and len(self.there) < self.cap and not self.stalled:
            self.there.append(self.coming.pop(0))
