"""Which tokens of a sample are stored: a longest length, and a window before the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Trim:
    """A trim policy; 0 switches a part off.

    Attributes:
        max_tokens: most tokens of a sample. The end of the answer goes first; but a prompt that
            would take more than half of them is cut at its beginning.
        keep_prompt: most tokens kept before the first supervised one.
    """

    max_tokens: int = 0
    keep_prompt: int = 0

    def span(self, n_tokens: int, first: int) -> tuple[int, int]:
        """Return start and end of what is kept of a sample.

        Args:
            n_tokens: its tokens.
            first: position of the first supervised token.
        """
        start = max(0, first - self.keep_prompt) if self.keep_prompt else 0
        if self.max_tokens and n_tokens - start > self.max_tokens:
            start = max(start, first - self.max_tokens // 2)
            return start, min(n_tokens, start + self.max_tokens)
        return start, n_tokens

    def span_of(self, loss_mask: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return the span of a sample with this mask; one without supervised tokens is kept."""
        if not loss_mask.any():
            return 0, len(loss_mask)
        return self.span(len(loss_mask), int(loss_mask.argmax()))
