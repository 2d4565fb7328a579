"""Sizes of a draft, read from the target's config: no torch but for the rotary frequencies.

Guarantee: a draft takes width, heads, MLP, norm and rotary settings from its target unless told
otherwise, and keeps them with its checkpoints, so that what is served is what was trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagled.artifacts import read_json
from eagled.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_MLA_HEAD_DIM = 128  # what drafts of latent-attention targets use; hidden / heads is not usable
_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Geometry:
    """Everything that decides the shape of a draft and how it is run.

    Attributes:
        hidden_size: D, the draft's width; the target's, whose embedding it reads.
        target_hidden_size: Dt.
        intermediate_size: width of the MLP.
        n_heads: query heads.
        n_kv_heads: key and value heads.
        head_dim: E.
        vocab_size: V.
        draft_vocab_size: Vd.
        rms_norm_eps: of all norms.
        max_positions: longest context that the draft is said to cover.
        layers: boundary ids of the aux states, low to high.
        target_layers: decoder layers of the target.
        target_type: the target's `model_type`, which decides how engines count layers.
        rope: `rope_theta` and, for scaled ones, the target's scaling settings.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    max_positions: int
    layers: tuple[int, ...]
    target_layers: int
    target_type: str
    rope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_aux(self) -> int:
        """Layers that `fc` reads."""
        return len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {**dataclasses.asdict(self), "layers": list(self.layers), "rope": dict(self.rope)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Geometry:
        """Return what `to_dict` gave."""
        return cls(**{**value, "layers": tuple(value["layers"])})

    def rope_frequencies(self) -> tuple[Tensor, float]:
        """Return inverse frequencies [E / 2] and the factor on cosine and sine."""
        import torch

        kind = rope_type(self.rope)
        if kind == "default":
            exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
            return 1.0 / (self.rope["rope_theta"] ** exponents), 1.0
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = LlamaConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.n_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_positions,
            rope_parameters={**self.rope, "rope_type": kind},
        )
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return frequencies, float(factor)


def rope_type(rope: Mapping[str, Any]) -> str:
    """Return the kind of rotary scaling, `default` for none."""
    return str(rope.get("rope_type", rope.get("type")) or "default")


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings of a model config in one form, whichever it is written in.

    `rope_theta` always; a scaled rope adds `rope_type` and its own settings.
    """
    inner = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if inner and all(isinstance(v, Mapping) for v in inner.values()):  # one entry a layer type
        inner = inner.get("full_attention") or next(iter(inner.values()))
    theta = config.get("rope_theta") or inner.get("rope_theta") or _DEFAULT_THETA
    kind = rope_type(inner)
    if kind == "default":
        return {"rope_theta": float(theta)}
    rest = {k: v for k, v in inner.items() if k not in ("type", "rope_type", "rope_theta")}
    return {"rope_theta": float(theta), "rope_type": kind, **rest}


def target_config(folder: Path) -> dict[str, Any]:
    """Return the language part of a target's config.json.

    Raises:
        ArtifactError: if there is none.
    """
    config = read_json(folder / "config.json")
    return dict(config.get("text_config") or config)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a configuration may set of a draft's shape; 0 is the target's."""

    intermediate_size: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    max_positions: int = 0


def geometry_for(
    folder: Path, *, draft_vocab_size: int, layers: tuple[int, ...], wishes: Wishes | None = None
) -> Geometry:
    """Return the geometry of a draft for the target in `folder`.

    Raises:
        ConfigError: if the target's config lacks a size.
        ArtifactError: if there is no target.
    """
    config, wish = target_config(folder), wishes or Wishes()
    hidden, heads = (_size(config, key, folder) for key in ("hidden_size", "num_attention_heads"))
    latent = bool(config.get("kv_lora_rank"))
    head_dim = _MLA_HEAD_DIM if latent else int(config.get("head_dim") or hidden // heads)
    heads = wish.n_heads or heads
    kv = wish.n_kv_heads or min(heads, int(config.get("num_key_value_heads") or heads))
    if heads % kv:
        raise ConfigError(f"train.kv_heads = {kv} does not divide the {heads} query heads")
    return Geometry(
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=wish.intermediate_size or _size(config, "intermediate_size", folder),
        n_heads=heads,
        n_kv_heads=kv,
        head_dim=head_dim,
        vocab_size=_size(config, "vocab_size", folder),
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
        max_positions=wish.max_positions or _size(config, "max_position_embeddings", folder),
        layers=layers,
        target_layers=_size(config, "num_hidden_layers", folder),
        target_type=str(config.get("model_type", "")),
        rope=rope_settings(config),
    )


def _size(config: Mapping[str, Any], key: str, folder: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{folder / 'config.json'} has no usable {key}")
    return value
