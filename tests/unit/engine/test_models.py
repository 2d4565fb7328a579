"""Other families than Llama, from random weights: served exactly, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from eagled.engine.forward import SlotModel, load_model
from eagled.engine.slab import Slab
from eagled.errors import ConfigError
from tests.unit.engine.conftest import prompt

_SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 800, "max_position_embeddings": 128,
    "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_LENGTHS = (5, 17, 40)


def _saved(config: Any, folder: Path) -> Path:
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**_SIZES, tie_word_embeddings=True),
        Qwen2Config(**_SIZES, use_sliding_window=False),
        Qwen3Config(**_SIZES, head_dim=16),
        MistralConfig(**_SIZES, sliding_window=None),
        MistralConfig(**_SIZES, sliding_window=128),
        GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=800, n_positions=128),
    ],
    ids=["llama-tied", "qwen2", "qwen3", "mistral", "mistral-wide-window", "gpt2"],
)
def test_a_batched_step_equals_the_plain_forward(config: Any, tmp_path: Path) -> None:
    """For each family, one decode step over ragged rows gives the model's own logits."""
    model, _ = load_model(
        _saved(config, tmp_path / "m"), dtype="float32", context_length=None, device="cpu"
    )
    prompts = [prompt(n, seed=n) for n in _LENGTHS]
    slab = Slab(model.shape, 128)
    for row, ids in enumerate(prompts):
        slab.add()
        model.forward(slab, row, [ids[:-1]], [0])

    ours = model.forward(slab, 0, [ids[-1:] for ids in prompts], [n - 1 for n in _LENGTHS])

    with torch.inference_mode():
        plain = torch.stack([model._model(torch.tensor([ids])).logits[0, -1] for ids in prompts])
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_a_model_without_the_masked_attention_is_refused(tmp_path: Path) -> None:
    """A family that cannot take a 4-D mask is refused when it is loaded."""
    config = BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=800)
    folder = _saved(config, tmp_path / "m")

    with pytest.raises(ConfigError, match="Bloom"):
        load_model(folder, dtype="float32", context_length=128, device="cpu")


def test_a_model_that_computes_otherwise_is_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start-up comparison notices when positions are off by one."""
    real = SlotModel.forward

    def shifted(
        self: SlotModel, slab: Slab, first: int, ids: list[list[int]], starts: list[int]
    ) -> torch.Tensor:
        return real(self, slab, first, ids, [start + (start > 0) for start in starts])

    monkeypatch.setattr(SlotModel, "forward", shifted)

    with pytest.raises(ConfigError, match="computes other logits than 'llama' itself"):
        load_model(tiny_model, dtype="float32", context_length=None, device="cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_serves_the_same_logits(tiny_model: Path) -> None:
    """On CUDA a ragged batched step gives the model's own logits."""
    model, _ = load_model(tiny_model, dtype="float32", context_length=None, device="cuda")
    prompts = [prompt(n, seed=n) for n in _LENGTHS]
    slab = Slab(model.shape, 128)
    for row, ids in enumerate(prompts):
        slab.add()
        model.forward(slab, row, [ids[:-1]], [0])

    ours = model.forward(slab, 0, [ids[-1:] for ids in prompts], [n - 1 for n in _LENGTHS])

    with torch.inference_mode():
        plain = torch.stack(
            [model._model(torch.tensor([ids], device="cuda")).logits[0, -1] for ids in prompts]
        )
    torch.testing.assert_close(ours, plain.cpu(), rtol=1e-3, atol=1e-3)
