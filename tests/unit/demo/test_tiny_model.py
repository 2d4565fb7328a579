"""The tiny model folder that other tests stand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagled.artifacts import sha256_file
from tests.tiny_model import MARKERS, make_tiny_model

QUESTION = {"role": "user", "content": "How far?"}
CALL = {"function": {"name": "search", "arguments": {"query": "moon"}}}


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    """The tiny model's tokenizer."""
    return AutoTokenizer.from_pretrained(tiny_model)


def test_same_seed_same_bytes(tmp_path: Path, tiny_model: Path) -> None:
    """A second folder of the same seed holds the same bytes; another seed changes the weights."""
    again = make_tiny_model(tmp_path / "again")
    other = make_tiny_model(tmp_path / "other", seed=1)
    names = sorted(p.name for p in tiny_model.iterdir())
    differs = [n for n in names if sha256_file(tiny_model / n) != sha256_file(other / n)]

    assert names == sorted(p.name for p in again.iterdir())
    assert [] == [n for n in names if sha256_file(tiny_model / n) != sha256_file(again / n)]
    assert ["model.safetensors"] == differs


def test_markers_are_single_ids_and_bytes_round_trip(tokenizer: Any) -> None:
    """Every marker is one id of its own, and any text comes back unchanged."""
    text = "naïve 12345\t\n  日本 🙂 def f(x):"

    assert list(range(len(MARKERS))) == tokenizer.convert_tokens_to_ids(list(MARKERS))
    assert text == tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=False)


def test_vocabulary_is_the_tokenizers(tiny_model: Path, tokenizer: Any) -> None:
    """The model has exactly as many ids as the tokenizer, untied, eight layers, float32."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    config = model.config

    assert (len(tokenizer), 8, False) == (
        config.vocab_size,
        config.num_hidden_layers,
        config.tie_word_embeddings,
    )
    assert "torch.float32" == str(model.dtype)
    assert (0.7, 0.95) == (model.generation_config.temperature, model.generation_config.top_p)


def test_template_opens_thinking_only_on_request(tokenizer: Any) -> None:
    """The prompt ends in the assistant header, or in an open think block with thinking=True."""
    head = "<|im_start|>user\nHow far?<|im_end|>\n<|im_start|>assistant\n"
    shared: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}

    assert head == tokenizer.apply_chat_template([QUESTION], **shared)
    assert head + "<think>\n" == tokenizer.apply_chat_template([QUESTION], thinking=True, **shared)


def test_template_keeps_reasoning_after_the_last_user_turn_only(tokenizer: Any) -> None:
    """Reasoning of earlier turns is dropped, that of the turn with the tool call is kept."""
    early = {"role": "assistant", "content": "Far.", "reasoning_content": "old"}
    late = {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "384000 km"}
    text = tokenizer.apply_chat_template(
        [QUESTION, early, QUESTION, late, result], tools=[{"type": "function"}], tokenize=False
    )

    assert (False, True) == ("old" in text, "<think>\nnew\n</think>" in text)
    assert '<tool_call>\n{"name": "search", "arguments": {"query": "moon"}}\n</tool_call>' in text
    assert "<tool_response>\n384000 km\n</tool_response><|im_end|>\n" in text
    assert '{"type": "function"}' in text
