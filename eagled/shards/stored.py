"""The states of one sample out of a mapped shard, whatever its codec.

Guarantee: only the bytes of the asked sample are touched. Numpy only, so that verification needs no
torch; what comes back are bf16 bits, which the caller may change (a copy, never the mapping).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagled.errors import ArtifactError
from eagled.shards.codecs import decode_fp8, decode_lossless, n_blocks
from eagled.shards.container import copied, map_arrays, prefetch
from eagled.shards.format import STATES, Bits, ShardHeader, ShardManifest, layout


@dataclass(frozen=True, slots=True)
class MappedShard:
    """A shard whose tensors are mapped.

    Attributes:
        header: its header.
        arrays: tensors by name.
        starts: for `aux` and `last`, the first row of each sample, i64 [n + 1].
        blocks: for tensors stored lossless, the first block of each sample, i64 [n + 1].
    """

    header: ShardHeader
    arrays: Mapping[str, npt.NDArray[Any]]
    starts: Mapping[str, npt.NDArray[np.int64]]
    blocks: Mapping[str, npt.NDArray[np.int64]]

    def tokens(self, index: int) -> slice:
        """Return where the tokens of one sample lie."""
        start, end = self.arrays["offsets"][index : index + 2]
        return slice(int(start), int(end))

    def rows(self, name: str, index: int) -> slice:
        """Return which rows of `aux` or `last` are those of one sample."""
        start, end = self.starts[name][index : index + 2]
        return slice(int(start), int(end))

    def states(self, name: str, index: int) -> Bits:
        """Return `aux` or `last` of one sample as bf16 bits, [rows, L*D].

        Raises:
            ArtifactError: if a compressed block is damaged.
        """
        manifest, rows = self.header.manifest, self.rows(name, index)
        codec = manifest.codec_of(name)
        if codec == "lossless":
            return self._lossless(name, index, rows.stop - rows.start)
        if codec == "fp8":
            return decode_fp8(*self.codes(name, index), manifest.hidden_size)
        return copied(self.arrays[name][rows])

    def codes(self, name: str, index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Return fp8 codes [rows, L*D] and scales [rows, L] of one sample, still mapped."""
        rows = self.rows(name, index)
        codes = self.arrays[name][rows]
        prefetch(codes)
        return codes, self.arrays[name + "_scale"][rows]

    def _lossless(self, name: str, index: int, rows: int) -> Bits:
        manifest, data = self.header.manifest, self.arrays[name]
        first, end = (int(x) for x in self.blocks[name][index : index + 2])
        bounds = self.arrays[name + "_blocks"][first : end + 1].tolist()
        if any(a > b for a, b in itertools.pairwise(bounds)) or bounds[-1] > len(data):
            raise ArtifactError(f"{self.header.container.path}: the blocks of {name} do not rise")
        prefetch(data[bounds[0] : bounds[-1]])
        blocks = [data[a:b] for a, b in itertools.pairwise(bounds)]
        return decode_lossless(blocks, rows, manifest.layers_of(name), manifest.hidden_size)


def map_shard(header: ShardHeader) -> MappedShard:
    """Map a shard's tensors.

    Raises:
        ArtifactError: if the file changed since its header was read, or its offsets, rows and
            blocks do not fit each other.
    """
    manifest = header.manifest
    arrays = map_arrays(header.container, layout(manifest))
    offsets = arrays["offsets"].astype(np.int64)
    if int(offsets[0]) != 0 or int(offsets[-1]) != header.n_tokens or (np.diff(offsets) < 2).any():  # noqa: PLR2004 - a row and its target
        raise ArtifactError(
            f"{header.container.path}: offsets do not rise from 0 to the token count by 2 or more"
        )
    n_last = [s.n_last for s in header.samples]
    starts = {
        "aux": offsets - np.arange(len(offsets)),
        "last": np.concatenate([[0], np.cumsum(n_last, dtype=np.int64)]),
    }
    blocks = {
        name: _first_blocks(starts[name], manifest, name)
        for name in STATES
        if manifest.codec_of(name) == "lossless"
    }
    for name, first in blocks.items():
        have = len(arrays[name + "_blocks"]) - 1
        if have != int(first[-1]):
            raise ArtifactError(
                f"{header.container.path}: {name} has {have} blocks, {int(first[-1])} expected"
            )
    return MappedShard(header, arrays, starts, blocks)


def _first_blocks(
    starts: npt.NDArray[np.int64], manifest: ShardManifest, name: str
) -> npt.NDArray[np.int64]:
    layers, hidden = manifest.layers_of(name), manifest.hidden_size
    counts = [n_blocks(int(rows), layers, hidden) for rows in np.diff(starts)]
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
