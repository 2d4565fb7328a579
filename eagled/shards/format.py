"""The layout of a hidden-state shard: names, dtypes, shapes, header metadata.

A shard is a safetensors file of n samples with T tokens in all, no padding between them:

    offsets         i64  [n + 1]       sample i is tokens offsets[i] .. offsets[i + 1]
    input_ids       i32  [T]           prompt and answer ids, as sent and as returned
    last_positions  i32  [P]           row of each `last` vector, from its sample's row 0
    aux             bf16 [T - n, L*D]  row j of sample i is at offsets[i] - i + j
    last            bf16 [P, D]        final hidden state after the final norm
    loss_mask       u8   [T]           1 on the tokens that the target produced
    pad             u8   [1..7]        only where the tensor before it would end unaligned

A sample's last token has no row: nothing follows it, so it has no target. Row j of `last` is kept
under the policy `supervised` exactly when loss_mask[j + 1] is 1 (its target is supervised).
`aux` and `last` can be stored otherwise (`codecs.py`), each by its own codec:

    lossless   X u8 [B] blocks of r rows and one layer: r*D bytes without exponent, then the zstd
               frame of the exponents; X_blocks i64 [F + 1] where each begins
    fp8        X e4m3 [rows, L*D] and X_scale f32 [rows, L] (`last` is one layer)

Metadata: `format`, `manifest` (JSON, `ShardManifest`), `samples` (JSON list, `SampleEntry`) and,
where a codec loses something, `codec_errors` (JSON, by tensor and layer).

If you change the layout, bump SHARD_FORMAT and change writer.py, stored.py, verify.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from eagled.artifacts import sha256_json
from eagled.errors import ArtifactError
from eagled.shards.container import NUMPY_DTYPE, Container, read_container

SHARD_FORMAT = "eagled-shard/1"  # raw and untrimmed: what every version reads
SHARD_FORMAT_2 = "eagled-shard/2"  # with codecs, or cut samples
_READ = (SHARD_FORMAT, SHARD_FORMAT_2)
SHARD_SUFFIX = ".safetensors"
PLAIN_DTYPES: dict[str, str] = {
    "offsets": "I64",
    "input_ids": "I32",
    "last_positions": "I32",
    "loss_mask": "U8",
}
STATES = ("aux", "last")  # the tensors that have a codec
CODEC_DTYPES: dict[str, dict[str, str]] = {  # by suffix of the tensor's name
    "raw": {"": "BF16"},
    "lossless": {"": "U8", "_blocks": "I64"},
    "fp8": {"": "F8_E4M3", "_scale": "F32"},
}
PAD = "pad"
Codec: TypeAlias = Literal["raw", "lossless", "fp8"]
LastPolicy: TypeAlias = Literal["supervised", "all", "none"]
Bits: TypeAlias = npt.NDArray[np.uint16]  # bfloat16 values as their bit patterns


_ADDED: dict[str, Any] = {"codec_last": "raw", "max_tokens": 0, "keep_prompt": 0}


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
        codec: how `aux` is stored.
        last_norm: `post`, after the target's final norm.
        codec_last: how `last` is stored.
        max_tokens: most tokens of a sample that are stored; 0 is no limit.
        keep_prompt: most tokens before the first supervised one that are stored; 0 is all.
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
    codec: Codec = "raw"
    last_norm: str = "post"
    codec_last: Codec = "raw"
    max_tokens: int = 0
    keep_prompt: int = 0

    @property
    def aux_width(self) -> int:
        """L * D, the columns of `aux`."""
        return len(self.layers) * self.hidden_size

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON-ready values; what format 1 has not is left out when unset.

        So the digest of a shard that an older version wrote stays what its database has.
        """
        row = {**dataclasses.asdict(self), "layers": list(self.layers)}
        return {k: v for k, v in row.items() if k not in _ADDED or v != _ADDED[k]}

    @property
    def format(self) -> str:
        """The tag of files with this manifest: 1 wherever a reader of format 1 can read them."""
        plain = self.codec == "raw" and all(getattr(self, k) == v for k, v in _ADDED.items())
        return SHARD_FORMAT if plain else SHARD_FORMAT_2

    def codec_of(self, name: str) -> Codec:
        """Return the codec of `aux` or `last`."""
        return self.codec if name == "aux" else self.codec_last

    def layers_of(self, name: str) -> int:
        """Return how many layers lie side by side in `aux` or `last`."""
        return len(self.layers) if name == "aux" else 1

    def digest(self) -> str:
        """Return the hash that the database keeps of it."""
        return sha256_json(self.to_dict())


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """One sample in the header.

    Attributes:
        uid: in hex.
        sample: its number in the database.
        attempt: of the extraction.
        n_last: its rows of `last`.
        dataset: name of its dataset.
        skip: tokens left out at its beginning.
        cut: tokens left out at its end.
    """

    uid: str
    sample: int
    attempt: int
    n_last: int
    dataset: str
    skip: int = 0
    cut: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready values; a whole sample has neither skip nor cut."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v or k not in ("skip", "cut")}


@dataclass(frozen=True, slots=True)
class StatesSample:
    """One accepted sample, ready to be written.

    Shapes for T tokens: input_ids i32 [T], loss_mask u8 [T], aux bits [T-1, L*D],
    last bits [P, D], last_positions i32 [P]. `skip` and `cut` tokens were left out before and after
    these.
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
    skip: int = 0
    cut: int = 0

    @property
    def entry(self) -> SampleEntry:
        """The sample's line in the header."""
        n_last = len(self.last_positions)
        return SampleEntry(
            self.uid, self.sample, self.attempt, n_last, self.dataset, self.skip, self.cut
        )


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


def layout(manifest: ShardManifest) -> dict[str, str]:
    """Return the tensors of a shard and their dtypes, in file order but for `pad`.

    `aux` stands first, since it is written while samples come; the others follow widest first.
    """
    coded = {
        name + suffix: dtype
        for name in STATES
        for suffix, dtype in CODEC_DTYPES[manifest.codec_of(name)].items()
    }
    rest = {**PLAIN_DTYPES, **coded}
    first = {"aux": rest.pop("aux")}
    widest = sorted(rest, key=lambda n: -np.dtype(NUMPY_DTYPE[rest[n]]).itemsize)
    return {**first, **{name: rest[name] for name in widest}}


def read_shard_header(path: Path) -> ShardHeader:
    """Return the header of a shard without reading its data.

    Raises:
        ArtifactError: if the file is torn, not a shard, of another format, or its tensors do not
            have the layout of this module.
    """
    container = read_container(path)
    tag = container.metadata.get("format")
    if foreign_format(container):
        raise ArtifactError(
            f"{path}: format is {tag!r}, this version of eagled reads {' and '.join(_READ)}; "
            "a newer version wrote it, or another program"
        )
    container.require((*PLAIN_DTYPES, *STATES))
    if tag is None:
        raise ArtifactError(f"{path}: it does not say its format, so eagled did not write it")
    manifest = manifest_from_json(container.metadata.get("manifest", ""), path)
    samples = _entries(container.metadata.get("samples", ""), path)
    container.require(layout(manifest))
    _check_shapes(container, manifest, samples)
    return ShardHeader(container, manifest, samples)


def foreign_format(container: Container) -> bool:
    """Return whether a file says that it has a format which this version does not read."""
    return container.metadata.get("format") not in (None, *_READ)


def _entries(raw: str, where: Path) -> tuple[SampleEntry, ...]:
    try:
        return tuple(SampleEntry(**row) for row in orjson.loads(raw))
    except (orjson.JSONDecodeError, TypeError) as exc:
        raise ArtifactError(f"{where}: the shard's list of samples is not understood") from exc


def shapes(
    manifest: ShardManifest, n: int, n_tokens: int, n_last: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that follow from the counts; those of lossless blocks do not."""
    rows = {"aux": n_tokens - n, "last": n_last}
    known: dict[str, tuple[int, ...]] = {
        "offsets": (n + 1,),
        "input_ids": (n_tokens,),
        "last_positions": (n_last,),
        "loss_mask": (n_tokens,),
    }
    for name in STATES:
        layers = manifest.layers_of(name)
        if manifest.codec_of(name) != "lossless":
            known[name] = (rows[name], layers * manifest.hidden_size)
        if manifest.codec_of(name) == "fp8":
            known[name + "_scale"] = (rows[name], layers)
    return known


def _check_shapes(
    container: Container, manifest: ShardManifest, samples: tuple[SampleEntry, ...]
) -> None:
    n_tokens = sum(container.tensors["input_ids"].shape)
    n_last = sum(s.n_last for s in samples)
    want = shapes(manifest, len(samples), n_tokens, n_last)
    for name, dtype in layout(manifest).items():
        info = container.tensors[name]
        flat = len(info.shape) == 1
        if info.dtype != dtype or (info.shape != want[name] if name in want else not flat):
            raise ArtifactError(
                f"{container.path}: {name} is {info.dtype}{list(info.shape)}, "
                f"expected {dtype}{list(want.get(name, ['any']))}"
            )
