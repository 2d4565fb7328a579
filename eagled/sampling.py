"""Sampling as it is sent: dataset override, then [sampling], then the target's own defaults.

Guarantee: every field is a number that the server is told; nothing is left to its defaults, so
two servers sample alike. A field that nobody names is off (temperature and top_p 1, top_k -1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from eagled.config import Config, SamplingConfig
from eagled.errors import ConfigError
from eagled.server.model_folder import read_json

_MAX_SEED = (1 << 31) - 1  # fits the signed 32-bit integer that samplers commonly take
_TOP_K_OFF = -1


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling of one dataset. `top_k` -1 is off; `temperature` 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_new_tokens: int
    seed: int | None

    @property
    def greedy(self) -> bool:
        """Return whether the same prompt always gives the same answer."""
        return self.temperature == 0

    def json_members(self) -> bytes:
        """Return the constant members of `sampling_params`, without braces.

        Markers are kept in the text and the stop token stays in it, so that a person who reads
        the server's text sees what the ids say.
        """
        members = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        return orjson.dumps(members)[1:-1]

    def seed_of(self, uid: bytes) -> int | None:
        """Return the seed of one sample: the base seed plus a number of its own identity."""
        if self.seed is None:
            return None
        return (self.seed + int.from_bytes(uid[:4], "little")) & _MAX_SEED


def resolve_sampling(config: Config, dataset: str, defaults: SamplingConfig) -> ResolvedSampling:
    """Return the sampling of `dataset`; `defaults` are the target's (see `model_defaults`)."""
    layers = (config.sampling_of(dataset), config.sampling, defaults)

    def first(field: str, off: float) -> float:
        found = (getattr(layer, field) for layer in layers)
        return float(next((value for value in found if value is not None), off))

    return ResolvedSampling(
        temperature=first("temperature", 1.0),
        top_p=first("top_p", 1.0),
        top_k=int(first("top_k", _TOP_K_OFF)) or _TOP_K_OFF,
        min_p=first("min_p", 0.0),
        max_new_tokens=_max_new_tokens(layers[0], config.sampling),
        seed=next((layer.seed for layer in layers if layer.seed is not None), None),
    )


def _max_new_tokens(own: SamplingConfig, general: SamplingConfig) -> int:
    """Return the dataset's limit if it names one; a default that was not written yields."""
    named = "max_new_tokens" in own.model_fields_set
    return own.max_new_tokens if named else general.max_new_tokens


def model_defaults(folder: Path) -> SamplingConfig:
    """Return the sampling in the model folder's generation_config.json; empty if there is none.

    Raises:
        ConfigError: if the file is there and broken, or holds values out of range.
    """
    path = folder / "generation_config.json"
    if not path.exists():
        return SamplingConfig()
    raw = read_json(path)
    fields = {name: raw.get(name) for name in ("temperature", "top_p", "top_k", "min_p")}
    if raw.get("do_sample") is False and fields["temperature"] is None:
        fields["temperature"] = 0.0
    try:
        return SamplingConfig.model_validate(fields)
    except ValueError as exc:
        raise ConfigError(f"target.model: {path} holds sampling out of range: {exc}") from exc
