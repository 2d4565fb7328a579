"""What generation must know of the target model, read from its folder as plain JSON.

Neither transformers nor the tokenizer is loaded: the daemon uses this. Nested text configurations
(`text_config`, as multimodal models have them) are read too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eagled.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of the target model: rows of its embedding, and its context (None: not stated)."""

    vocab_size: int
    context: int | None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        ConfigError: if it cannot be read or is not an object.
    """
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as exc:
        raise ConfigError(f"target.model: cannot read {path}: {exc}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"target.model: {path} holds no JSON object")
    return value


def read_model_facts(folder: Path) -> ModelFacts:
    """Return the facts in the model's config.json.

    Raises:
        ConfigError: if it is missing or names no vocabulary size.
    """
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    vocab = _positive(inner.get("vocab_size")) or _positive(config.get("vocab_size"))
    if vocab is None:
        raise ConfigError(f"target.model: {folder / 'config.json'} names no vocab_size")
    return ModelFacts(vocab, _positive(inner.get("max_position_embeddings")))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
