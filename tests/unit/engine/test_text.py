"""Answer texts and stop strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from eagled.engine.params import Sampling
from eagled.engine.text import TextDecoder


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    """The tiny model's tokenizer."""
    return AutoTokenizer.from_pretrained(tiny_model)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_special_tokens_are_left_out_unless_wanted(tokenizer: Any) -> None:
    """skip_special_tokens is on by default."""
    decoder = TextDecoder(tokenizer)
    ids = [*_ids(tokenizer, "hello"), tokenizer.eos_token_id]

    assert "hello" == decoder.decode(ids, Sampling())
    assert "hello<|im_end|>" == decoder.decode(ids, Sampling(skip_special_tokens=False))


def test_a_stop_string_is_found_across_tokens_and_cut(tokenizer: Any) -> None:
    """A stop string counts wherever token borders fall; the text ends before it."""
    decoder, sampling = TextDecoder(tokenizer), Sampling(stop=("zz", "lo wé"))
    ids = _ids(tokenizer, "hello wé")

    assert [None, "lo wé"] == [decoder.find_stop(x, sampling) for x in (ids[:-2], ids)]
    assert "hel" == decoder.answer_text(ids, sampling, "lo wé")
    kept = Sampling(stop=("lo wé",), no_stop_trim=True)
    assert "hello wé" == decoder.answer_text(ids, kept, "lo wé")


def test_a_stop_id_is_cut_from_the_text_only(tokenizer: Any) -> None:
    """The last id, when it stopped the answer, is not in the text."""
    ids = _ids(tokenizer, "hello!")

    assert "hello" == TextDecoder(tokenizer).answer_text(ids, Sampling(), ids[-1])


def test_ids_beyond_the_tokenizer_and_no_tokenizer(tokenizer: Any) -> None:
    """Padding ids of the model's vocabulary have no text; neither has anything without one."""
    ids = [*_ids(tokenizer, "hello"), len(tokenizer) + 5]

    assert "hello" == TextDecoder(tokenizer).decode(ids, Sampling())
    assert "" == TextDecoder(None).decode(ids, Sampling())
    assert TextDecoder(None).find_stop(ids, Sampling(stop=("h",))) is None
