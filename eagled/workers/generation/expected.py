"""How long an answer is expected to get, learned by dataset and length of the prompt.

Guarantee: an estimate from the first request on (a guess, then what was seen), and none of the
early bias: the first answers to arrive are the short ones, so what still runs counts with the
tokens that it has by now. Constant memory: `BUCKETS` cells a dataset.
Price: recording and asking are O(1).

Of a mean that may drift, about the last `MEMORY` answers of a cell count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

BUCKETS = 24  # by doubling of the prompt's tokens
MEMORY = 2000.0  # answers that a cell remembers
GUESS = 1024.0  # tokens, before anything is known
GUESS_WEIGHT = 4.0  # answers that a guess counts for
FADE = 4.0  # a cell with so many answers for each running request needs no correction


@dataclass(slots=True)
class _Cell:
    """One dataset and bucket; `started` is the sum of the start times of what runs."""

    answers: float = 0.0
    tokens: float = 0.0
    running: int = 0
    started: float = 0.0


class Expected:
    """Expected answer tokens; `now` is monotonic seconds throughout."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int], _Cell] = {}
        self._pace = 0.0

    def pace(self, tok_per_s: float) -> None:
        """Note how fast one running request makes tokens; 0 is unknown."""
        self._pace = tok_per_s

    def of(self, dataset: str, n_prompt: int, max_new: int, now: float) -> float:
        """Return the tokens of answer to expect, at most `max_new`."""
        cell = self._cells.get((dataset, bucket(n_prompt)))
        own = self._mean(cell, now) if cell is not None else None
        return min(float(max_new), own if own is not None else self._of_dataset(dataset, now))

    def _of_dataset(self, dataset: str, now: float) -> float:
        known = [c for (name, _), c in self._cells.items() if name == dataset]
        answers = sum(c.answers for c in known)
        if not answers:
            return GUESS
        tokens = sum(c.tokens + self._made(c, now) for c in known)
        return (tokens + GUESS * GUESS_WEIGHT) / (answers + GUESS_WEIGHT)

    def _mean(self, cell: _Cell, now: float) -> float | None:
        if cell.answers < GUESS_WEIGHT:
            return None
        return (cell.tokens + self._made(cell, now) + GUESS) / (cell.answers + 1.0)

    def _made(self, cell: _Cell, now: float) -> float:
        """Return the tokens that running requests have made so far, as far as they matter."""
        if not cell.running:
            return 0.0
        matters = max(0.0, 1.0 - cell.answers / (FADE * cell.running))
        return matters * self._pace * max(0.0, cell.running * now - cell.started)

    # -- what happened

    def sent(self, dataset: str, n_prompt: int, now: float) -> None:
        """Count a request as running."""
        cell = self._cells.setdefault((dataset, bucket(n_prompt)), _Cell())
        cell.running += 1
        cell.started += now

    def ended(self, dataset: str, n_prompt: int, started: float, n_out: int | None) -> None:
        """Count it no more; `n_out` is the length of its answer, None if it has none."""
        cell = self._cells.setdefault((dataset, bucket(n_prompt)), _Cell())
        cell.running = max(0, cell.running - 1)
        cell.started = cell.started - started if cell.running else 0.0
        if n_out is None:
            return
        if cell.answers >= MEMORY:
            cell.answers *= 1 - 1 / MEMORY
            cell.tokens *= 1 - 1 / MEMORY
        cell.answers += 1
        cell.tokens += n_out

    # -- over restarts

    def to_json(self) -> str:
        """Return what was learned."""
        rows = [
            [dataset, place, round(cell.answers, 1), round(cell.tokens)]
            for (dataset, place), cell in sorted(self._cells.items())
            if cell.answers
        ]
        return orjson.dumps({"v": 1, "cells": rows}).decode()

    def load(self, text: str) -> None:
        """Take over what an earlier life learned; what is not readable is left out."""
        try:
            raw = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        rows = raw.get("cells") if isinstance(raw, dict) else None
        for row in rows if isinstance(rows, list) else []:
            match row:
                case [str(dataset), int(place), int() | float() as answers, int() | float() as n]:
                    if 0 <= place < BUCKETS and answers > 0 and n >= 0:
                        self._cells[dataset, place] = _Cell(float(answers), float(n))
                case _:
                    continue

    def table(self, now: float) -> Mapping[str, dict[str, Any]]:
        """Return what is expected of each dataset, for people."""
        names = sorted({name for name, _ in self._cells})
        return {
            name: {
                "expected_tokens": round(self._of_dataset(name, now)),
                "answers": round(sum(c.answers for (n, _), c in self._cells.items() if n == name)),
            }
            for name in names
        }


def bucket(n_prompt: int) -> int:
    """Return the bucket of a prompt: the number of its doublings."""
    return min(BUCKETS - 1, max(0, n_prompt).bit_length())
