"""Held-out samples of a stream: copied beside the run, since their shards go.

Guarantee: the samples of a shard are in one file, named by the shard's number and durable before
`keep` returns; doing it again gives the same file. At most so many samples are kept in all, the
first ones. Price: their states as bf16, outside the ring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from eagled.artifacts import fsync_dir
from eagled.shards.format import SHARD_SUFFIX, Bits, StatesSample, read_shard_header
from eagled.shards.reader import Sample, ShardDataset
from eagled.shards.scan import remove_leftovers
from eagled.shards.writer import ShardWriter
from eagled.train.data import pick
from eagled.train.feed import HeldOut

_OWNER = "train"


class HeldSamples:
    """The folder of one run's held-out samples."""

    def __init__(self, folder: Path, most: int, begun: int) -> None:
        """Take over what the first `begun` shards gave; a run that goes on makes the rest again."""
        self._folder, self._most = folder, most
        if folder.exists():
            remove_leftovers(folder, _OWNER)
        kept = self._files(begun)
        self._count = sum(len(read_shard_header(path).samples) for path in kept)
        self._read: tuple[list[Path], HeldOut] | None = None

    def keep(self, number: int, data: ShardDataset, which: Sequence[int]) -> None:
        """Copy samples of shard `number`, as many as there is room for."""
        which = which[: self._most - self._count]
        if not which:
            return
        plain = dataclasses.replace(data.manifest, codec="raw", codec_last="raw")
        writer = ShardWriter(self._folder, plain, owner=_OWNER)
        for i in which:
            writer.append(_plain(data, i))
        writer.finish().path.replace(self._path(number))
        fsync_dir(self._folder)
        self._count += len(which)

    def read(
        self, begun: int, max_tokens: int, lane_of: Callable[[int], str] | None
    ) -> HeldOut | None:
        """Return what the first `begun` shards gave; None if nothing of it carries loss."""
        files = self._files(begun)
        if not files:
            return None
        if self._read is None or self._read[0] != files:
            data = ShardDataset(files)
            items = pick(data, range(len(data)), max_tokens)
            self._read = files, HeldOut(data, items, lane_of)
        held = self._read[1]
        return held if held.items.index else None

    def _files(self, begun: int) -> list[Path]:
        return [path for n in range(begun) if (path := self._path(n)).exists()]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}{SHARD_SUFFIX}"


def _plain(data: ShardDataset, index: int) -> StatesSample:
    sample: Sample = data[index]
    entry = data.entry(index)
    return StatesSample(
        uid=entry.uid, sample=entry.sample, attempt=entry.attempt, dataset=entry.dataset,
        input_ids=sample["input_ids"].numpy().astype(np.int32),
        loss_mask=sample["loss_mask"].numpy().astype(np.uint8),
        aux=_bits(sample["aux"]), last=_bits(sample["last"]),
        last_positions=sample["last_positions"].numpy().astype(np.int32),
        skip=entry.skip, cut=entry.cut,
    )  # fmt: skip


def _bits(states: torch.Tensor) -> Bits:
    """Return bf16 states as their bit patterns."""
    return states.contiguous().view(torch.int16).numpy().view(np.uint16)
