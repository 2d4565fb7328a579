"""Ids to text for replies and stop strings; without a tokenizer every text is empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagled.engine.params import Sampling

_IDS_PER_CHAR = 4  # a byte-level token may be one byte, a character is up to four


class TextDecoder:
    """Decodes answers with the model folder's tokenizer."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - untyped library
        self._tokenizer = tokenizer
        self._size = len(tokenizer) if tokenizer is not None else 0

    def decode(self, ids: Sequence[int], sampling: Sampling) -> str:
        """Return the text of `ids`; ids beyond the tokenizer are left out."""
        if self._tokenizer is None:
            return ""
        known = [i for i in ids if i < self._size]
        text: str = self._tokenizer.decode(known, skip_special_tokens=sampling.skip_special_tokens)
        return text

    def find_stop(self, ids: Sequence[int], sampling: Sampling) -> str | None:
        """Return the stop string that the end of `ids` has just completed."""
        if not sampling.stop or self._tokenizer is None:
            return None
        tail = ids[-(_IDS_PER_CHAR * max(map(len, sampling.stop)) + 1) :]
        text = self.decode(tail, sampling)
        return next((stop for stop in sampling.stop if stop in text), None)

    def answer_text(self, ids: Sequence[int], sampling: Sampling, matched: int | str | None) -> str:
        """Return the text of an answer, cut before what stopped it unless asked otherwise."""
        if matched is None or sampling.no_stop_trim:
            return self.decode(ids, sampling)
        if isinstance(matched, int):
            return self.decode(ids[:-1], sampling)
        text = self.decode(ids, sampling)
        place = text.find(matched)
        return text if place < 0 else text[:place]
