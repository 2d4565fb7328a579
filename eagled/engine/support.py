"""Which models the embedded server can run, decided from their configuration alone.

Guarantee: a model whose attention is not plain and full is refused at start, by name of the
property, instead of giving wrong tokens later. What the configuration does not tell is caught by
the numeric self-check in `forward.load_model`. Torch is not needed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from eagled.errors import ConfigError

_WHAT_WORKS = (
    "what works: decoder-only models with plain full attention (Llama, Qwen2, Qwen3, SmolLM2, "
    "Mistral without a window); serve others with SGLang and list its URL under [[servers]]"
)
DTYPES = ("auto", "bfloat16", "float16", "float32")
_FULL = {"full_attention", "attention", "full", "global"}
_KIND_LISTS = ("layer_types", "layers_block_type", "block_types", "attention_layers")
_RECURRENT_KEYS = (
    "ssm_cfg",
    "mamba_d_state",
    "state_size",
    "linear_num_key_heads",
    "ssm_state_size",
)


def check_model_config(config: Any, context_length: int) -> None:  # noqa: ANN401 - any PreTrainedConfig
    """Refuse a model that the slot loop cannot serve.

    Args:
        config: a transformers configuration, or anything with the same attributes.
        context_length: tokens that will be served; a window at least that long never acts.

    Raises:
        ConfigError: naming every property that stands in the way, and what works instead.
    """
    checks = (
        _architecture(config),
        _latent_attention(config),
        _recurrent_layers(config),
        _window(config, context_length),
    )
    problems = tuple(problem for problem in checks if problem)
    if problems:
        kind = getattr(config, "model_type", "unknown")
        raise ConfigError(
            f"the embedded engine cannot serve this model (model_type {kind!r})",
            (*problems, _WHAT_WORKS),
        )


def require_model_folder(folder: Path) -> None:
    """Check that `folder` can be a model folder at all, before anything heavy is imported.

    Raises:
        ConfigError: if it holds no configuration.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it holds no config.json")


def resolve_context_length(config: Any, wanted: int | None) -> int:  # noqa: ANN401 - as above
    """Return the context length to serve.

    Raises:
        ConfigError: if more is wanted than the model's positions allow, or nothing is known.
    """
    most = getattr(config, "max_position_embeddings", None)
    if wanted is None:
        if most is None:
            raise ConfigError("the model names no max_position_embeddings; give --context-length")
        return int(most)
    if most is not None and wanted > most:
        raise ConfigError(
            f"--context-length {wanted} is beyond the model's {most} positions "
            f"(max_position_embeddings); use {most} or less"
        )
    return wanted


def stop_ids(config: Any, tokenizer: Any, folder: Path) -> frozenset[int]:  # noqa: ANN401 - as above
    """Return every end id named by the generation config, the model config or the tokenizer."""
    found: set[int] = set()
    sources = [
        getattr(config, "eos_token_id", None),
        _generation_config(folder).get("eos_token_id"),
        getattr(tokenizer, "eos_token_id", None),
    ]
    for source in sources:
        if isinstance(source, int):
            found.add(source)
        elif source:
            found.update(int(i) for i in source)
    return frozenset(found)


def _generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc
    return value if isinstance(value, dict) else {}


def _architecture(config: Any) -> str | None:  # noqa: ANN401 - as above
    if getattr(config, "is_encoder_decoder", False):
        return "is_encoder_decoder: an encoder-decoder model has no plain continuation"
    return None


def _latent_attention(config: Any) -> str | None:  # noqa: ANN401 - as above
    rank = getattr(config, "kv_lora_rank", None)
    if rank:
        return f"kv_lora_rank = {rank}: multi-head latent attention (MLA) has another cache"
    return None


def _recurrent_layers(config: Any) -> str | None:  # noqa: ANN401 - as above
    lists = {name: set(getattr(config, name, None) or ()) for name in _KIND_LISTS}
    for name, kinds in lists.items():
        if other := sorted(kinds - _FULL - {"sliding_attention"}):
            return f"{name} holds {', '.join(other)}: linear, hybrid or local attention"
    keys = [key for key in _RECURRENT_KEYS if getattr(config, key, None)]
    if keys and not any(lists.values()):
        return f"{keys[0]} is set: a recurrent (state-space or linear-attention) model"
    return None


def _window(config: Any, context_length: int) -> str | None:  # noqa: ANN401 - as above
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    if window >= context_length:
        return None
    return (
        f"sliding_window = {window} is shorter than the context length {context_length}: "
        f"window attention is not implemented (serve it with --context-length {window} or less)"
    )
