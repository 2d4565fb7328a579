"""Which models are refused, by which property."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import (
    BambaConfig,
    DeepseekV3Config,
    Gemma2Config,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
    T5Config,
)

from eagled.engine.support import check_model_config, resolve_context_length, stop_ids
from eagled.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "context", "named"),
    [
        (MistralConfig(sliding_window=4096), 8192, "sliding_window = 4096"),
        (Gemma2Config(sliding_window=4096), 8192, "sliding_window = 4096"),
        (
            Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=2),
            4096,
            "sliding_window = 64",
        ),
        (DeepseekV3Config(), 4096, "kv_lora_rank = 512"),
        (Qwen3NextConfig(), 4096, "linear_attention"),
        (MambaConfig(), 4096, "linear_attention|recurrent"),
        (SimpleNamespace(state_size=16), 4096, "state_size is set: a recurrent"),
        (BambaConfig(attn_layer_indices=[1]), 4096, "linear_attention|mamba"),
        (GPTNeoConfig(), 2048, "attention_layers holds local"),
        (T5Config(), 512, "encoder-decoder"),
    ],
)
def test_refused_models_are_told_why(config: Any, context: int, named: str) -> None:
    """The message names the property and says what works."""
    with pytest.raises(ConfigError, match=named) as caught:
        check_model_config(config, context)

    assert 78 == caught.value.exit_code
    assert "what works" in caught.value.problems[-1]


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (LlamaConfig(), 2048),
        (Qwen3Config(), 4096),
        (Qwen2Config(use_sliding_window=False, sliding_window=64), 4096),
        (MistralConfig(sliding_window=None), 8192),
        (MistralConfig(sliding_window=4096), 4096),
    ],
)
def test_plain_models_pass(config: Any, context: int) -> None:
    """Full attention passes, and so does a window that the served context never reaches."""
    check_model_config(config, context)


def test_context_length() -> None:
    """The model's own positions are the default and the ceiling."""
    config = SimpleNamespace(max_position_embeddings=2048)

    assert 2048 == resolve_context_length(config, None)
    assert 512 == resolve_context_length(config, 512)
    with pytest.raises(ConfigError, match="4096 is beyond the model's 2048"):
        resolve_context_length(config, 4096)
    with pytest.raises(ConfigError, match="--context-length"):
        resolve_context_length(SimpleNamespace(), None)


def test_end_ids_are_gathered_from_everywhere(tmp_path: Path) -> None:
    """The generation config, the model config and the tokenizer all count."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')

    found = stop_ids(SimpleNamespace(eos_token_id=7), SimpleNamespace(eos_token_id=8), tmp_path)

    assert {5, 6, 7, 8} == set(found)
    assert set() == set(stop_ids(SimpleNamespace(), None, tmp_path / "none"))


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    """Not JSON is a configuration error with the path."""
    (tmp_path / "generation_config.json").write_text("{")

    with pytest.raises(ConfigError, match=r"generation_config\.json is not JSON"):
        stop_ids(SimpleNamespace(), None, tmp_path)
