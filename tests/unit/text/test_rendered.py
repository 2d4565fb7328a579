"""Rendered text becomes the ids that the library itself gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from eagled.text.rendered import RenderedText
from tests.toy import TOY

TEXTS = [
    f"<|im_user|>user<|im_middle|>Say {n} \u00e9\u4f60 <think>!<|im_end|>\n" for n in range(60)
]


@pytest.fixture
def tokenizer() -> Any:
    """A toy tokenizer of its own, so that a test may change it."""
    return AutoTokenizer.from_pretrained(Path(TOY))


def test_ids_are_those_of_the_library(tokenizer: Any) -> None:
    """For every text, the compared first ones and those behind them."""
    rendered = RenderedText(tokenizer)

    assert [tokenizer(t, add_special_tokens=False)["input_ids"] for t in TEXTS] == [
        rendered.ids(t) for t in TEXTS
    ]


def test_settings_of_the_library_are_respected(tokenizer: Any) -> None:
    """Truncation or plain control tokens left behind by a call do not change ids."""
    rendered = RenderedText(tokenizer)
    expected = [rendered.ids(text) for text in TEXTS]
    tokenizer(TEXTS[0], truncation=True, max_length=3)
    after_truncation = [rendered.ids(text) for text in TEXTS]
    tokenizer.backend_tokenizer.encode_special_tokens = True
    after_plain = [rendered.ids(text) for text in TEXTS]

    assert (expected, expected) == (after_truncation, after_plain)


def test_another_result_ends_the_short_way(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose own call gives other ids is asked, not the compiled tokenizer below it."""
    kind = type(tokenizer)
    real = kind.__call__

    def other(self: Any, text: str, **options: Any) -> Any:
        found = real(self, text, **options)
        return {"input_ids": [*found["input_ids"], 0]}

    monkeypatch.setattr(kind, "__call__", other)
    rendered = RenderedText(tokenizer)

    assert [0] * 60 == [rendered.ids(text)[-1] for text in TEXTS]
