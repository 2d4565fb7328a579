"""Ids of text that the library's own `apply_chat_template` rendered.

Guarantee: the same ids as `apply_chat_template(tokenize=True)`, which renders once more and calls
the tokenizer on the result without adding special tokens. A shorter way through the compiled
tokenizer, without offsets and masks, is taken after it gave the same ids for the first texts.
Price: these first texts are encoded twice.
"""

from __future__ import annotations

from typing import Any

_COMPARED_TEXTS = 32


class RenderedText:
    """Encodes with one fast tokenizer of the library."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - transformers has no types
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._short = hasattr(self._backend, "encode_batch_fast")
        self._compared = 0

    def ids(self, text: str) -> list[int]:
        """Return the ids of rendered text, in which control tokens are control tokens."""
        if not self._short or self._is_changed():
            return self._by_library(text)
        ids = list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        if self._compared < _COMPARED_TEXTS:
            self._compared += 1
            expected = self._by_library(text)
            self._short = ids == expected
            return expected
        return ids

    def _is_changed(self) -> bool:
        """Return whether a call of the library left settings in the compiled tokenizer."""
        backend = self._backend
        return bool(backend.truncation or backend.padding or backend.encode_special_tokens)

    def _by_library(self, text: str) -> list[int]:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return [int(i) for i in ids]
