"""Requests and batches as the plugin sees them, without SGLang."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eagled.sglang_plugin.reply import look
from eagled.sglang_plugin.settings import CaptureSettings
from eagled.sglang_plugin.spoolfile import FileFacts, Receipt
from eagled.sglang_plugin.tap import Tap

LAYERS, HIDDEN = (1, 3), 8
WIDTH = (len(LAYERS) + 1) * HIDDEN
_DEADLINE_S = 30.0


@dataclass
class _Reason:
    kind: str

    def to_json(self) -> dict[str, str]:
        return {"type": self.kind}


@dataclass
class Request:
    """What the plugin reads of SGLang's request."""

    rid: str
    origin_input_ids: list[int]
    output_ids_through_stop: list[int] = field(default_factory=list)
    return_hidden_states: bool = True
    finished_reason: _Reason | None = None

    def finished(self) -> bool:
        """Return whether it has a reason to be finished."""
        return self.finished_reason is not None

    def end(self, kind: str = "length") -> None:
        """Finish it."""
        self.finished_reason = _Reason(kind)


def settings(spool: Path, **more: Any) -> CaptureSettings:
    """Return settings for a spool."""
    spool.mkdir(exist_ok=True)
    return CaptureSettings(spool, LAYERS, **({"reserve_bytes": 0, "writers": 2} | more))


@contextmanager
def tapping(given: CaptureSettings) -> Iterator[Tap]:
    """A tap with its writer process, ended with the block."""
    facts = FileFacts("", LAYERS, HIDDEN, 0, 0, "bfloat16", "test", "model")
    tap = Tap(given, facts, batch_tokens=256)
    try:
        yield tap
    finally:
        tap.close()


def rows_of(seed: int, count: int) -> torch.Tensor:
    """Return `count` rows that no other seed has, [count, WIDTH] bf16."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).bfloat16()


def batch(
    tap: Tap,
    reqs: Sequence[Request],
    counts: Sequence[int],
    packed: torch.Tensor,
    *,
    ends: Sequence[Request] = (),
) -> None:
    """Run one batch from launch to result; requests in `ends` finish with it."""
    plan = tap.plan(reqs, counts, packed, copied=True)
    if plan is not None:
        tap.stage(plan)
        for req in reqs:
            tap.accept(plan, req)
    for req in ends:
        req.end()
    tap.settle(plan, reqs)


def until_settled(spool: Path, rid: str) -> Receipt:
    """Wait for the file or the note of a request."""
    deadline = time.monotonic() + _DEADLINE_S
    while (found := look(spool, rid)).state == "pending":
        assert time.monotonic() < deadline, "neither file nor note"
        time.sleep(0.005)
    return found
