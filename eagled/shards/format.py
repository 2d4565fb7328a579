"""The layout of a hidden-state shard: names, dtypes, shapes, header metadata.

A shard is a safetensors file of n samples with T tokens in all, no padding:

    offsets         i64  [n + 1]       sample i is tokens offsets[i] .. offsets[i + 1]
    input_ids       i32  [T]           prompt and answer ids, as sent and as returned
    last_positions  i32  [P]           row of each `last` vector, from its sample's row 0
    aux             bf16 [T - n, L*D]  row j of sample i is at offsets[i] - i + j
    last            bf16 [P, D]        final hidden state after the final norm
    loss_mask       u8   [T]           1 on the tokens that the target produced

A sample's last token has no row: nothing follows it, so it has no target. Row j of `last` is kept
under the policy `supervised` exactly when loss_mask[j + 1] is 1 (its target is supervised).
Metadata: `format`, `manifest` (JSON, `ShardManifest`), `samples` (JSON list, `SampleEntry`).

If you change the layout, bump SHARD_FORMAT and change writer.py, reader.py, verify.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from eagled.artifacts import sha256_json
from eagled.errors import ArtifactError
from eagled.shards.container import Container, read_container

SHARD_FORMAT = "eagled-shard/1"
SHARD_SUFFIX = ".safetensors"
DTYPES: dict[str, str] = {  # in file order: widest first, so that every tensor is aligned
    "offsets": "I64",
    "input_ids": "I32",
    "last_positions": "I32",
    "aux": "BF16",
    "last": "BF16",
    "loss_mask": "U8",
}
LastPolicy: TypeAlias = Literal["supervised", "all", "none"]
Bits: TypeAlias = npt.NDArray[np.uint16]  # bfloat16 values as their bit patterns


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """What the states in a shard are; shards that differ in it are never mixed.

    Attributes:
        target: folder name or hub id of the target model.
        revision: commit of the hub repository, or None.
        target_hash: SHA-256 over the model's config and the names and sizes of its weight files.
        tokenizer_hash: SHA-256 of the tokenizer file.
        n_layers: decoder layers of the target.
        hidden_size: D.
        vocab_size: V, the exclusive upper bound of ids.
        layers: boundary ids; k is the residual stream that enters layer k.
        last: which final hidden states are kept.
        compute_dtype: dtype of the forward pass; the file holds bf16 in any case.
        backend: program and version that computed the states.
        eagled: version of eagled.
        codec: how `aux` and `last` are stored.
        last_norm: `post`, after the target's final norm.
    """

    target: str
    revision: str | None
    target_hash: str
    tokenizer_hash: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    layers: tuple[int, ...]
    last: LastPolicy
    compute_dtype: str
    backend: str
    eagled: str
    codec: str = "raw"
    last_norm: str = "post"

    @property
    def aux_width(self) -> int:
        """L * D, the columns of `aux`."""
        return len(self.layers) * self.hidden_size

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON-ready values."""
        return {**dataclasses.asdict(self), "layers": list(self.layers)}

    def digest(self) -> str:
        """Return the hash that the database keeps of it."""
        return sha256_json(self.to_dict())


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """One sample in the header: `uid` in hex, `n_last` rows of `last`."""

    uid: str
    sample: int
    attempt: int
    n_last: int
    dataset: str


@dataclass(frozen=True, slots=True)
class StatesSample:
    """One accepted sample, ready to be written.

    Shapes for T tokens: input_ids i32 [T], loss_mask u8 [T], aux bits [T-1, L*D],
    last bits [P, D], last_positions i32 [P].
    """

    uid: str
    sample: int
    attempt: int
    dataset: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    aux: Bits
    last: Bits
    last_positions: npt.NDArray[np.int32]

    @property
    def entry(self) -> SampleEntry:
        """The sample's line in the header."""
        n_last = len(self.last_positions)
        return SampleEntry(self.uid, self.sample, self.attempt, n_last, self.dataset)


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """A parsed shard header whose tensors have the right names, dtypes and shapes."""

    container: Container
    manifest: ShardManifest
    samples: tuple[SampleEntry, ...]

    @property
    def n_tokens(self) -> int:
        """T, tokens of all samples."""
        return self.container.tensors["input_ids"].shape[0]


def last_positions(loss_mask: npt.NDArray[np.uint8], policy: LastPolicy) -> npt.NDArray[np.int32]:
    """Return the rows whose final hidden state is kept, ascending, i32 [P].

    Rows are 0 .. T-2. `supervised` keeps row j when token j + 1 is supervised, `all` keeps each.
    """
    if policy == "none":
        return np.empty(0, np.int32)
    if policy == "all":
        return np.arange(len(loss_mask) - 1, dtype=np.int32)
    return np.flatnonzero(loss_mask[1:]).astype(np.int32)


def manifest_from_json(raw: str, where: object) -> ShardManifest:
    """Return the manifest of a header.

    Raises:
        ArtifactError: if a field is missing or unknown.
    """
    try:
        value = orjson.loads(raw)
        return ShardManifest(**{**value, "layers": tuple(value["layers"])})
    except (orjson.JSONDecodeError, TypeError, KeyError) as exc:
        raise ArtifactError(f"{where}: the shard's manifest is not understood: {exc}") from exc


def read_shard_header(path: Path) -> ShardHeader:
    """Return the header of a shard without reading its data.

    Raises:
        ArtifactError: if the file is torn, not a shard, of another format, or its tensors do not
            have the layout of this module.
    """
    container = read_container(path)
    tag = container.metadata.get("format")
    if tag != SHARD_FORMAT:
        container.require(DTYPES)
        raise ArtifactError(f"{path}: format is {tag!r}, this version reads {SHARD_FORMAT!r}")
    container.require(DTYPES)
    manifest = manifest_from_json(container.metadata.get("manifest", ""), path)
    samples = _entries(container.metadata.get("samples", ""), path)
    _check_shapes(container, manifest, samples)
    return ShardHeader(container, manifest, samples)


def _entries(raw: str, where: Path) -> tuple[SampleEntry, ...]:
    try:
        return tuple(SampleEntry(**row) for row in orjson.loads(raw))
    except (orjson.JSONDecodeError, TypeError) as exc:
        raise ArtifactError(f"{where}: the shard's list of samples is not understood") from exc


def shapes(
    manifest: ShardManifest, n: int, n_tokens: int, n_last: int
) -> Mapping[str, tuple[int, ...]]:
    """Return the shape that each tensor of a shard must have."""
    return {
        "offsets": (n + 1,),
        "input_ids": (n_tokens,),
        "last_positions": (n_last,),
        "aux": (n_tokens - n, manifest.aux_width),
        "last": (n_last, manifest.hidden_size),
        "loss_mask": (n_tokens,),
    }


def _check_shapes(
    container: Container, manifest: ShardManifest, samples: tuple[SampleEntry, ...]
) -> None:
    n_tokens = sum(container.tensors["input_ids"].shape)
    n_last = sum(s.n_last for s in samples)
    for name, want in shapes(manifest, len(samples), n_tokens, n_last).items():
        info = container.tensors[name]
        if (info.dtype, info.shape) != (DTYPES[name], want):
            raise ArtifactError(
                f"{container.path}: {name} is {info.dtype}{list(info.shape)}, "
                f"expected {DTYPES[name]}{list(want)}"
            )
