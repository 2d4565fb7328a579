"""Control tokens come from the tokenizer's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagled.errors import ConfigError
from eagled.train.special import special_ids
from tests.tiny_model import MARKERS


def write(folder: Path, **files: dict[str, Any]) -> Path:
    """Write JSON files by stem."""
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def test_markers_of_the_tiny_model(tiny_model: Path) -> None:
    """Begin, end, think and tool markers are all control tokens, and nothing else is."""
    assert special_ids(tiny_model) == tuple(range(len(MARKERS)))


def test_rules_for_added_tokens(tmp_path: Path) -> None:
    """Special or bracketed tokens count; words, placeholders and ids past the model do not."""
    added = [
        {"id": 3, "content": "<|end|>", "special": True},
        {"id": 4, "content": "</think>", "special": False},
        {"id": 5, "content": "[EOS]", "special": False},
        {"id": 6, "content": "hello", "special": False},
        {"id": 7, "content": "<|reserved_token_1|>", "special": True},
        {"id": 90, "content": "<far>", "special": True},
    ]
    model = write(tmp_path, tokenizer={"added_tokens": added}, config={"vocab_size": 50})

    assert special_ids(model) == (3, 4, 5)


def test_tokenizers_without_tokenizer_json(tmp_path: Path) -> None:
    """The added tokens of tokenizer_config.json and the stop ids of the model's files count."""
    model = write(
        tmp_path,
        tokenizer_config={"added_tokens_decoder": {"8": {"content": "<|im_user|>"}}},
        generation_config={"eos_token_id": [2, 9]},
        config={"text_config": {"vocab_size": 50, "bos_token_id": 1}},
    )

    assert special_ids(model) == (1, 2, 8, 9)


def test_tokenizer_in_its_own_folder(tmp_path: Path) -> None:
    """With `target.tokenizer` the tokens come from there, the stop ids from the model."""
    (tmp_path / "m").mkdir()
    (tmp_path / "t").mkdir()
    model = write(tmp_path / "m", config={"vocab_size": 50, "eos_token_id": 2})
    own = write(tmp_path / "t", tokenizer={"added_tokens": [{"id": 4, "content": "<a>"}]})

    assert special_ids(model, own) == (2, 4)


def test_damaged_file_is_named(tmp_path: Path) -> None:
    """A file that is no JSON is an error, not an empty list."""
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        special_ids(tmp_path)
