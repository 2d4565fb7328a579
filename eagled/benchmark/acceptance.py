"""What verify steps yielded, by the server's own counts.

Two numbers are easily taken for each other, so each has its own name here and in every report:
`length` is tokens a verify step, the target's own token counted (1.0 for a draft that is never
right); `right_guesses` is guesses that were right a verify step (0.0 for the same draft). SGLang's
`spec_accept_length` is neither: it also counts the first token, which the prefill makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

DEFINITION = (
    "Accepted length is tokens a verify step: 1 + right guesses / verify steps, the target's own "
    "token counted; 1.00 is a draft that is never right."
)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Verify steps of one answer, or of many.

    Attributes:
        verifies: verify steps; 0 from a server that does not speculate.
        right: guesses that were right.
        histogram: item i counts the verify steps with i right guesses; empty if not told.
    """

    verifies: int = 0
    right: int = 0
    histogram: tuple[int, ...] = ()

    def __add__(self, other: Speculation) -> Speculation:
        pairs = zip_longest(self.histogram, other.histogram, fillvalue=0)
        return Speculation(
            self.verifies + other.verifies, self.right + other.right, tuple(map(sum, pairs))
        )

    @property
    def length(self) -> float | None:
        """Tokens a verify step; None without one."""
        return 1 + self.right / self.verifies if self.verifies else None

    @property
    def right_guesses(self) -> float | None:
        """Right guesses a verify step; None without one."""
        return self.right / self.verifies if self.verifies else None

    @property
    def by_position(self) -> list[float]:
        """Share of right guesses at each position, given that those before were right.

        It ends with the last position that a verify step has reached.
        """
        reached = [sum(self.histogram[i:]) for i in range(len(self.histogram))]
        return [after / before for before, after in pairwise(reached) if before]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "accepted_length": _rounded(self.length), "verify_steps": self.verifies,
            "right_guesses": self.right, "right_guesses_a_step": _rounded(self.right_guesses),
            "by_position": [round(share, 4) for share in self.by_position],
            "histogram": list(self.histogram),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Speculation:
        """Return what `to_dict` gave."""
        return cls(value["verify_steps"], value["right_guesses"], tuple(value["histogram"]))


def speculation_of(meta: Mapping[str, Any]) -> Speculation:
    """Return what a reply's `meta_info` tells; its counts are absent where nothing was verified."""
    return Speculation(
        _count(meta.get("spec_verify_ct")),
        _count(meta.get("spec_num_correct_drafts")),
        tuple(_count(n) for n in meta.get("spec_correct_drafts_histogram") or ()),
    )


def total(parts: Iterable[Speculation]) -> Speculation:
    """Return the sum."""
    return sum(parts, Speculation())


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
