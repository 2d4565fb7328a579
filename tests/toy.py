"""The toy tokenizer: 283 ids (256 bytes, 12 merges, 15 markers) and its two chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

TOY = Path(__file__).parent / "data" / "toy"


def load_toy_tokenizer(template: str = "chat_template.jinja") -> Any:
    """Return the toy tokenizer with one of its templates: file name of a template in `TOY`."""
    tokenizer = AutoTokenizer.from_pretrained(TOY)
    tokenizer.chat_template = (TOY / template).read_text(encoding="utf-8")
    return tokenizer
