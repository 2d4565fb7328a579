"""What a run writes while it trains: metrics.jsonl, one line a step or estimate.

Guarantee: lines are whole; after a kill the file is cut back to the checkpoint that the run goes on
from, so every step is there once. Times stand under `timing` and nowhere else: without it, the file
of a resumed run on one CPU is byte for byte that of an uninterrupted one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eagled.train.accept import Estimate
from eagled.train.objective import StepSums

METRICS_NAME = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimiser step; sums are over all processes.

    Attributes:
        step: from 1.
        total: steps of the run.
        epoch: from 0.
        lr: learning rate.
        loss: the weighted total that was descended.
        grad_norm: before clipping.
        sums: of the rows, by K.
        tokens: rows that were read.
        seconds: the step took, with its log line.
    """

    step: int
    total: int
    epoch: int
    lr: float
    loss: float
    grad_norm: float
    sums: StepSums
    tokens: int
    seconds: float

    @property
    def accept_length(self) -> float:
        """1 + expected right guesses in a row, from real prefixes, on this step's samples."""
        right, length = 1.0, 1.0
        for chain, prefix in zip(self.sums.chain.tolist(), self.sums.prefix.tolist(), strict=True):
            right *= chain / prefix if prefix else 0.0
            length += right
        return length

    def to_dict(self) -> dict[str, Any]:
        """Return the line of metrics.jsonl."""
        rows = self.sums.rows.clamp_min(1)
        return {
            "kind": "step", "step": self.step, "epoch": self.epoch, "lr": self.lr,
            "loss": self.loss, "grad_norm": self.grad_norm,
            "loss_by_step": (self.sums.loss / rows).tolist(),
            "agree_by_step": (self.sums.agree / rows).tolist(),
            "hit_by_step": (self.sums.hit / rows).tolist(),
            "accept_length": self.accept_length, "tokens": self.tokens,
            "supervised": int(self.sums.rows[0]),
            "timing": {"seconds": self.seconds, "tok_per_s": self.tokens / self.seconds},
        }  # fmt: skip


class Metrics:
    """The writer of one run's metrics.jsonl."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / METRICS_NAME
        self.path.touch()

    def step(self, record: StepRecord) -> None:
        """Add a step's line."""
        self._add(record.to_dict())

    def estimate(self, step: int, estimate: Estimate) -> None:
        """Add the line of a held-out estimate."""
        self._add({"kind": "estimate", "step": step, **estimate.to_dict()})

    def has(self, step: int) -> bool:
        """Return whether the last line is the estimate after a step."""
        lines = read_metrics(self.path.parent)
        return bool(lines) and (lines[-1]["kind"], lines[-1]["step"]) == ("estimate", step)

    def size(self) -> int:
        """Return the bytes of all lines so far, on disk when this returns."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def cut(self, size: int) -> None:
        """Forget everything after the first `size` bytes."""
        with self.path.open("r+b") as file:
            file.truncate(size)

    def _add(self, line: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run, without a torn last one; empty if there are none."""
    path = folder / METRICS_NAME
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [orjson.loads(line) for line in lines]
