"""Real tokenizers from the cache that scripts/fetch_tokenizers.sh fills; tests skip without it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from eagled.config import TargetConfig
from eagled.text.render import Renderer

TEMPLATES = Path(__file__).parents[2] / "data" / "templates"
_CACHE = Path(
    os.environ.get("EAGLED_TOKENIZERS") or Path.home() / ".cache" / "eagled" / "tokenizers"
)


def tokenizer_folder(name: str) -> Path:
    """Return the folder of a real tokenizer, or skip the test."""
    folder = _CACHE / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no {folder}: run scripts/fetch_tokenizers.sh (make tokenizers)")
    return folder


@cache
def _loaded(folder: Path) -> Renderer:
    return Renderer.load(TargetConfig(model=str(folder)))


def real_renderer(name: str) -> Renderer:
    """Return the renderer of a real tokenizer with its own chat template."""
    return _loaded(tokenizer_folder(name))


@cache
def _harmony(folder: Path) -> Renderer:
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = (TEMPLATES / "harmony.jinja").read_text(encoding="utf-8")
    stops = tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"])
    return Renderer(tokenizer, extra_eos=frozenset(stops))


def harmony_renderer() -> Renderer:
    """Return gpt-oss's real tokenizer with a harmony template in our own words."""
    return _harmony(tokenizer_folder("gptoss"))
