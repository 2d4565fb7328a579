"""Read shards as a PyTorch map-style dataset.

Guarantee: `dataset[i]` maps files read-only and copies one sample; without a corpus the order is
that of the given paths, then of the file, with one it is the corpus's. Files that differ in what
the states are (target, layers, last, norm) are refused together; how they are stored may differ.
Of a sample that lies in two files (its claim was lost after the first was written) only the
newest attempt is given. Price: the headers of all files are parsed when the dataset is made; files
stay mapped, in a bounded number. In which order to read, and how to resume, is `sampler.py`.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from eagled.artifacts import require_same
from eagled.errors import ArtifactError
from eagled.shards.codecs_torch import as_bf16, decode_fp8_strips
from eagled.shards.format import (
    SHARD_SUFFIX,
    SampleEntry,
    ShardHeader,
    ShardManifest,
    read_shard_header,
)
from eagled.shards.members import CorpusMember, read_members
from eagled.shards.stored import MappedShard, map_shard
from eagled.shards.whole import check_name
from eagled.train.corpus import Corpus

_MAX_OPEN = 32  # mapped files a dataset; a mapping costs address space, not memory
_SAME = ("target_hash", "tokenizer_hash", "layers", "hidden_size", "last", "last_norm")


class Sample(TypedDict):
    """One sample of T tokens.

    Keys:
        uid: sample uid in hex.
        dataset: name of its dataset.
        input_ids: i64 [T].
        skip: tokens of the sample that are not stored, before token 0 here.
        loss_mask: bool [T], true on the tokens that the target produced.
        aux: bf16 [T-1, L*D], row j is the state of token j, from which j + 1 is predicted.
        last: bf16 [P, D], after the final norm.
        last_positions: i64 [P], rows of `last` counted from the sample's row 0.
    """

    uid: str
    dataset: str
    skip: int
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    last_positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sample lies, and what the corpus says of it."""

    shard: int
    index: int
    member: CorpusMember | None = None


class ShardDataset(Dataset[Sample]):
    """Samples of shard files, by index (`dataset[i]`) or by uid (`dataset.by_uid(hex)`)."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        corpus: Corpus | None = None,
        split: str | None = None,
        partial: bool = False,
        checksums: bool = False,
    ) -> None:
        """Parse the headers of `paths`.

        Args:
            paths: the shard files.
            corpus: give only its members, in its order; each is compared with its checksum there
                when it is read.
            split: `train` or `holdout` of that corpus; None is both.
            partial: accept that members of the corpus have no states here.
            checksums: read each file whole when it is first used, and compare its SHA-256.

        Raises:
            ArtifactError: if a file is torn or unlike the others, or members are missing.
        """
        self._headers = [read_shard_header(path) for path in paths]
        for header in self._headers[1:]:
            _check_alike(self._headers[0], header)
        self._checksums = checksums
        self._checked: set[int] = set()
        self._open: OrderedDict[int, MappedShard] = OrderedDict()
        places = _places(self._headers)
        if corpus is not None:
            places = _of_corpus(places, self._headers, list(read_members(corpus, split)), partial)
        self._places = places
        self._by_uid = {self.entry(i).uid: i for i in range(len(self._places))}

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        corpus: Corpus | None = None,
        split: str | None = None,
        partial: bool = False,
        checksums: bool = False,
    ) -> ShardDataset:
        """Return the dataset of all shards in `folder`, by name; the arguments are those above.

        Raises:
            ArtifactError: if there are none, or one is torn or unlike the others.
        """
        paths = sorted(folder.glob(f"*{SHARD_SUFFIX}"))
        if not paths:
            raise ArtifactError(f"{folder} holds no shards")
        return cls(paths, corpus=corpus, split=split, partial=partial, checksums=checksums)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._sample(self._places[index])

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
        place = self._places[index]
        return self._headers[place.shard].samples[place.index]

    def length(self, index: int) -> int:
        """Return the tokens T of one sample; its file is mapped, its states are not read."""
        place = self._places[index]
        span = self._mapped(place.shard).tokens(place.index)
        return int(span.stop) - int(span.start)

    def mask(self, index: int) -> torch.Tensor:
        """Return `loss_mask` of one sample, bool [T]; its states are not read."""
        place = self._places[index]
        shard = self._mapped(place.shard)
        mask = shard.arrays["loss_mask"][shard.tokens(place.index)]
        return torch.from_numpy(mask.astype(np.bool_))

    def by_uid(self, uid: str) -> Sample:
        """Return the sample with this uid (hex).

        Raises:
            KeyError: if no shard has it.
        """
        return self[self._by_uid[uid]]

    def verify(self) -> None:
        """Read every file whole and compare its SHA-256 with the one in its name.

        Raises:
            ArtifactError: naming the first file that was altered.
        """
        for header in self._headers:
            check_name(header.container.path)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mappings behind: a loader's worker process maps the files itself."""
        return {**self.__dict__, "_open": OrderedDict()}

    def _sample(self, place: _Place) -> Sample:
        i, shard = place.index, self._mapped(place.shard)
        arrays, entry = shard.arrays, shard.header.samples[i]
        ids = arrays["input_ids"][shard.tokens(i)]
        if place.member is not None:
            _check_member(place.member, entry, ids, shard.header.container.path)
        mask = arrays["loss_mask"][shard.tokens(i)]
        positions = arrays["last_positions"][shard.rows("last", i)]
        return Sample(
            uid=entry.uid,
            dataset=entry.dataset,
            skip=entry.skip,
            input_ids=torch.from_numpy(ids.astype(np.int64)),
            loss_mask=torch.from_numpy(mask.astype(np.bool_)),
            aux=_states(shard, "aux", i),  # [T-1, L*D]
            last=_states(shard, "last", i),  # [P, D]
            last_positions=torch.from_numpy(positions.astype(np.int64)),
        )

    def _mapped(self, shard: int) -> MappedShard:
        opened = self._open.pop(shard, None)
        if opened is None:
            opened = self._map(shard)
        self._open[shard] = opened
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        return opened

    def _map(self, shard: int) -> MappedShard:
        header = self._headers[shard]
        if self._checksums and shard not in self._checked:
            check_name(header.container.path)
            self._checked.add(shard)
        return map_shard(header)


def _places(headers: Sequence[ShardHeader]) -> list[_Place]:
    """Return the place of every sample, in order; of a uid the newest attempt only.

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
    return [_Place(*place) for place in sorted((shard, i) for _, shard, i in best.values())]


def _of_corpus(
    places: Sequence[_Place],
    headers: Sequence[ShardHeader],
    members: Sequence[CorpusMember],
    partial: bool,  # noqa: FBT001 - handed on from a keyword
) -> list[_Place]:
    """Return the places of the corpus's members, in its order.

    Raises:
        ArtifactError: if some have no states here and `partial` is not set, or if none has.
    """
    by_uid = {headers[p.shard].samples[p.index].uid: p for p in places}
    found = [
        _Place(by_uid[m.uid].shard, by_uid[m.uid].index, m) for m in members if m.uid in by_uid
    ]
    missing = len(members) - len(found)
    if missing and (not partial or not found):
        first = next(m.uid for m in members if m.uid not in by_uid)
        raise ArtifactError(
            f"{missing} of {len(members)} samples of the corpus have no hidden states in these "
            f"shards, the first is {first}; extract them, or ask for a partial dataset"
        )
    return found


def _check_member(
    member: CorpusMember, entry: SampleEntry, ids: npt.NDArray[np.int32], path: Path
) -> None:
    """Raise unless the answer's ids are those that the corpus froze; a cut answer passes."""
    answer = ids[member.n_prompt - entry.skip :]
    if not entry.cut and zlib.crc32(answer.tobytes()) != member.crc:
        raise ArtifactError(
            f"{path}: the answer of sample {member.uid} is not the one of the corpus; "
            "extract it again, or merge again"
        )


def _states(shard: MappedShard, name: str, index: int) -> torch.Tensor:
    """Return bf16 states of one sample; torch decodes fp8 several times faster than numpy."""
    if shard.header.manifest.codec_of(name) != "fp8":
        return as_bf16(shard.states(name, index))
    codes, scale = shard.codes(name, index)
    return decode_fp8_strips(codes, scale)


def _check_alike(first: ShardHeader, other: ShardHeader) -> None:
    for name in _SAME:
        require_same(
            name,
            getattr(first.manifest, name),
            getattr(other.manifest, name),
            where=str(other.container.path),
        )
