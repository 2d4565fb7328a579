"""Read shards as a PyTorch map-style dataset.

Guarantee: `dataset[i]` maps files read-only and copies one sample; the order is that of the given
paths, then of the file. Files whose manifests differ in what the states are (target, layers, last,
norm) are refused together. Of a sample that lies in two files (its claim was lost after the first
was written) only the newest attempt is given. Price: the headers of all files are parsed when the
dataset is made; files stay mapped, in a bounded number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from eagled.artifacts import require_same
from eagled.errors import ArtifactError
from eagled.shards.container import map_arrays
from eagled.shards.format import (
    SHARD_SUFFIX,
    SampleEntry,
    ShardHeader,
    ShardManifest,
    read_shard_header,
)

_MAX_OPEN = 32  # mapped files a dataset; a mapping costs address space, not memory
_SAME = ("target_hash", "tokenizer_hash", "layers", "hidden_size", "last", "last_norm", "codec")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of T tokens.

    Attributes:
        uid: sample uid in hex.
        dataset: name of its dataset.
        input_ids: i64 [T].
        loss_mask: bool [T].
        aux: bf16 [T-1, L*D], row j belongs to token j.
        last: bf16 [P, D], after the final norm.
        last_positions: i64 [P], rows of `last` counted from the sample's row 0.
    """

    uid: str
    dataset: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    last_positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class _OpenShard:
    arrays: dict[str, npt.NDArray[Any]]
    last_starts: npt.NDArray[np.int64]  # [n + 1], rows of `last` before each sample


class ShardDataset(Dataset[Sample]):
    """Samples of shard files, by index (`dataset[i]`) or by uid (`dataset.by_uid(hex)`)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._headers = [read_shard_header(path) for path in paths]
        for header in self._headers[1:]:
            _check_alike(self._headers[0], header)
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._places = _places(self._headers)
        self._by_uid = {self.entry(i).uid: i for i in range(len(self._places))}

    @classmethod
    def from_folder(cls, folder: Path) -> ShardDataset:
        """Return the dataset of all shards in `folder`, by name.

        Raises:
            ArtifactError: if there are none, or one is torn or unlike the others.
        """
        paths = sorted(folder.glob(f"*{SHARD_SUFFIX}"))
        if not paths:
            raise ArtifactError(f"{folder} holds no shards")
        return cls(paths)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._sample(*self._places[index])

    @property
    def manifest(self) -> ShardManifest:
        """The manifest of the first shard; the others agree on what the states are."""
        if not self._headers:
            raise ArtifactError("the dataset has no shards")
        return self._headers[0].manifest

    @property
    def uids(self) -> tuple[str, ...]:
        """Sample uids in index order."""
        return tuple(self._by_uid)

    def entry(self, index: int) -> SampleEntry:
        """Return the header's line of one sample, without touching its data."""
        shard, i = self._places[index]
        return self._headers[shard].samples[i]

    def by_uid(self, uid: str) -> Sample:
        """Return the sample with this uid (hex).

        Raises:
            KeyError: if no shard has it.
        """
        return self[self._by_uid[uid]]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mappings behind: a loader's worker process maps the files itself."""
        return {**self.__dict__, "_open": OrderedDict()}

    def _sample(self, shard: int, i: int) -> Sample:
        opened = self._mapped(shard)
        arrays, entry = opened.arrays, self._headers[shard].samples[i]
        start, end = (int(x) for x in arrays["offsets"][i : i + 2])
        last = slice(int(opened.last_starts[i]), int(opened.last_starts[i + 1]))
        return Sample(
            uid=entry.uid,
            dataset=entry.dataset,
            input_ids=torch.from_numpy(arrays["input_ids"][start:end].astype(np.int64)),
            loss_mask=torch.from_numpy(arrays["loss_mask"][start:end].astype(np.bool_)),
            aux=_bf16(arrays["aux"][start - i : end - i - 1]),  # [T-1, L*D]
            last=_bf16(arrays["last"][last]),  # [P, D]
            last_positions=torch.from_numpy(arrays["last_positions"][last].astype(np.int64)),
        )

    def _mapped(self, shard: int) -> _OpenShard:
        opened = self._open.pop(shard, None)
        if opened is None:
            header = self._headers[shard]
            n_last = [s.n_last for s in header.samples]
            starts = np.concatenate([[0], np.cumsum(n_last, dtype=np.int64)])
            opened = _OpenShard(map_arrays(header.container), starts)
        self._open[shard] = opened
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        return opened


def _places(headers: Sequence[ShardHeader]) -> list[tuple[int, int]]:
    """Return (shard, index in it) of every sample, in order; of a uid the newest attempt only.

    Raises:
        ArtifactError: if the same attempt is there twice.
    """
    best: dict[str, tuple[int, int, int]] = {}  # uid -> attempt, shard, index
    for shard, header in enumerate(headers):
        for i, entry in enumerate(header.samples):
            attempt = best[entry.uid][0] if entry.uid in best else -1
            if attempt == entry.attempt:
                raise ArtifactError(f"sample {entry.uid} is in these shards twice")
            if entry.attempt > attempt:
                best[entry.uid] = (entry.attempt, shard, i)
    return sorted((shard, i) for _, shard, i in best.values())


def _bf16(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    """Return a copy of bf16 bit patterns as a tensor."""
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def _check_alike(first: ShardHeader, other: ShardHeader) -> None:
    for name in _SAME:
        require_same(
            name,
            getattr(first.manifest, name),
            getattr(other.manifest, name),
            where=str(other.container.path),
        )
