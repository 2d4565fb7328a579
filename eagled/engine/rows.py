"""What travels through the slot loop: rows, groups of rows, and what comes out at the end.

A `Row` belongs to the loop's thread from admission to its answer; `Ending`, `Result` and `Load`
are frozen and may cross threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from eagled.engine.params import GenerateRequest
from eagled.engine.slab import KvShape, Slab


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an answer ended; `matched` for stop, `length` for length, `message` for the rest."""

    kind: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One finished request; `elapsed_s` counts from its submission."""

    request: GenerateRequest
    output_ids: tuple[int, ...]
    ending: Ending
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the loop is; tokens are those held in the cache, rates are per second."""

    running: int
    waiting: int
    used_tokens: int
    gen_tok_per_s: float
    beat_age_s: float


@dataclass(eq=False, slots=True)
class Row:
    """A request on its way; `tokens` counts what its slab row holds."""

    request: GenerateRequest
    on_done: Callable[[Result], None]
    rng: np.random.Generator
    submitted: float = field(default_factory=time.monotonic)
    output: list[int] = field(default_factory=list)
    tokens: int = 0
    ending: Ending | None = None


class Group:
    """Decoding rows of similar length; row i of the list is row i of the slab."""

    def __init__(self, shape: KvShape, width: int) -> None:
        self.slab = Slab(shape, width)
        self.rows: list[Row] = []

    def join(self, row: Row, source: Slab, index: int) -> None:
        """Copy a row in from another slab."""
        self.slab.adopt(source, index, row.tokens)
        self.rows.append(row)

    def leave(self, index: int) -> None:
        """Drop a row; the last one takes its place."""
        self.slab.remove(index, self.rows[-1].tokens)
        last = self.rows.pop()
        if index < len(self.rows):
            self.rows[index] = last
