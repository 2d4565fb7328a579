"""Which rows of a batch belong to which request, from launch to file.

Guarantee: a request's file gets the rows of one uninterrupted computation, in token order: rows of
a pass that was retracted, overtaken or aborted are not handed on (each row carries the epoch of
its request). One copy per batch goes from the GPU straight into pinned shared memory, on the
stream on which SGLang copies its own results, so the next forward pass does not wait for it.
The scheduler waits only when the ring is full, at most `stall_s`; then the states of that batch
are given up, never the requests. Price: some microseconds of Python per request and batch.
"""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from eagled.sglang_plugin.outlet import Outlet, ring_capacity
from eagled.sglang_plugin.ring import Region, Ring
from eagled.sglang_plugin.settings import CaptureSettings
from eagled.sglang_plugin.spoolfile import FileFacts, is_safe_rid
from eagled.sglang_plugin.writer import leave_note

_ATTRIBUTE = "eagled_capture"  # of SGLang's request object
_BF16_BYTES = 2


@dataclass(eq=False)
class Capture:
    """One request's capture.

    Attributes:
        key: its number in messages.
        rid: the request.
        generation: of the writer process that has its file.
        epoch: rises when the rows so far become void.
        error: why its states are given up.
    """

    key: int
    rid: str
    generation: int
    epoch: int = 0
    error: str = ""


@dataclass(eq=False)
class Plan:
    """The captured rows of one batch; it stands where SGLang keeps the batch's hidden states.

    Attributes:
        packed: the rows on the device, [rows, (L+1)*D] bf16; None once copied.
        entries: per capture: first row, rows, epoch at launch.
        region: where the rows are in the ring; None before the copy or when given up.
        ring: the ring that `region` is part of.
        parts: what turned out to be valid: (capture, offset in the ring, bytes).
    """

    packed: torch.Tensor | None
    entries: dict[Capture, tuple[int, int, int]]
    region: Region | None = None
    ring: Ring | None = None
    parts: list[tuple[int, int, int]] = field(default_factory=list)


class Tap:
    """Captures of one scheduler process.

    Args:
        settings: the plugin's.
        facts: what all files of this server have in common.
        batch_tokens: the most rows of one batch.
    """

    def __init__(self, settings: CaptureSettings, facts: FileFacts, batch_tokens: int) -> None:
        self._spool = settings.spool
        self._facts = facts
        self._row_bytes = facts.width * _BF16_BYTES
        self._outlet = Outlet(settings, ring_capacity(settings, self._row_bytes * batch_tokens))
        self._keys = itertools.count(1)
        self._vanished: deque[int] = deque()  # captures whose request went without a result
        self._watches: dict[int, weakref.finalize[Any, Capture]] = {}

    def plan(
        self, reqs: Sequence[Any], rows: Sequence[int], packed: torch.Tensor, *, copied: bool
    ) -> Plan | None:
        """Return the plan of a batch that was just launched, or None if nobody asks.

        Args:
            reqs: the batch's requests.
            rows: how many rows each has.
            packed: [at least sum(rows), (L+1)*D] bf16, on the device.
            copied: whether `packed` is safe from the next forward pass; the output of a CUDA
                graph is not.
        """
        self._sweep()
        entries: dict[Capture, tuple[int, int, int]] = {}
        spans: list[tuple[int, int]] = []
        at = taken = 0
        for req, count in zip(reqs, rows, strict=True):
            if req.return_hidden_states and not req.finished():
                capture = self._capture_of(req)
                entries[capture] = (taken, count, capture.epoch)
                spans.append((at, at + count))
                taken += count
            at += count
        if not entries:
            return None
        if packed.shape[0] < at or packed.shape[1] != self._facts.width:
            shape = tuple(packed.shape)
            _give_up(entries, f"states of shape {shape}, expected ({at}, {self._facts.width})")
            return Plan(None, entries)
        return Plan(select_rows(packed, spans, copied=copied), entries)

    def _capture_of(self, req: Any) -> Capture:
        found: Capture | None = getattr(req, _ATTRIBUTE, None)
        if found is not None:
            return found
        found = Capture(next(self._keys), str(req.rid), self._outlet.generation)
        setattr(req, _ATTRIBUTE, found)
        if is_safe_rid(found.rid):
            self._outlet.send("begin", found.key, found.rid)
            self._watches[found.key] = weakref.finalize(found, self._vanished.append, found.key)
        else:
            found.error = f"rid {found.rid!r} cannot be a file name"
        return found

    def _sweep(self) -> None:
        """Drop the files of requests that went away without a result."""
        while self._vanished:
            key = self._vanished.popleft()
            if self._watches.pop(key, None) is not None:
                self._outlet.send("drop", key, "")

    def stage(self, plan: Plan) -> None:
        """Start the copy of a plan's rows into the ring, on the current stream."""
        packed, plan.packed = plan.packed, None
        if packed is None:
            return
        region = self._outlet.reserve(packed.shape[0] * self._row_bytes)
        if region is None:
            _give_up(plan.entries, "the writer does not keep up: no room in the ring")
            return
        plan.region, plan.ring = region, self._outlet.ring
        target = self._outlet.memory[region.offset : region.offset + region.nbytes]
        target.view(torch.bfloat16).view(packed.shape).copy_(packed, non_blocking=True)
        if packed.is_cuda:
            packed.record_stream(torch.cuda.current_stream(packed.device))

    def accept(self, plan: Plan, req: Any) -> None:
        """Note that a request's rows of this batch are valid."""
        capture: Capture | None = getattr(req, _ATTRIBUTE, None)
        if capture is None or capture not in plan.entries or plan.region is None:
            return
        first, count, epoch = plan.entries[capture]
        if epoch == capture.epoch and capture.generation == self._outlet.generation:
            offset = plan.region.offset + first * self._row_bytes
            plan.parts.append((capture.key, offset, count * self._row_bytes))

    def settle(self, plan: Plan | None, reqs: Iterable[Any]) -> None:
        """Hand a batch's valid rows to the writer, then close what has finished."""
        if plan is not None and plan.region is not None:
            region, plan.region = plan.region, None
            if plan.ring is self._outlet.ring:
                self._outlet.send_rows(region, plan.parts)
        for req in reqs:
            capture: Capture | None = getattr(req, _ATTRIBUTE, None)
            if capture is not None and req.finished():
                setattr(req, _ATTRIBUTE, None)
                self._close(capture, req)

    def _close(self, capture: Capture, req: Any) -> None:
        if (watch := self._watches.pop(capture.key, None)) is None:
            return  # never begun: its rid is no file name
        watch.detach()
        aborted = req.finished_reason.to_json().get("type") == "abort"
        if capture.generation != self._outlet.generation:
            if not aborted:
                leave_note(self._spool, capture.rid, "the writer process died")
        elif aborted or capture.error:
            self._outlet.send("drop", capture.key, "" if aborted else capture.error)
        else:
            self._finish(capture, list(req.origin_input_ids), list(req.output_ids_through_stop))

    def _finish(self, capture: Capture, prompt: list[int], output: list[int]) -> None:
        facts = replace(
            self._facts, rid=capture.rid, prompt_tokens=len(prompt), output_tokens=len(output)
        )
        ids = array("i", prompt + output).tobytes()
        self._outlet.send("finish", capture.key, asdict(facts), ids)

    def retracted(self, req: Any) -> None:
        """Void the rows of a request that gave its memory back; it is computed again."""
        capture: Capture | None = getattr(req, _ATTRIBUTE, None)
        if capture is not None and capture.key in self._watches:
            capture.epoch += 1
            self._outlet.send("reset", capture.key)

    def close(self) -> None:
        """End the writer process after everything that was handed on."""
        self._outlet.close()


def select_rows(
    packed: torch.Tensor, spans: Sequence[tuple[int, int]], *, copied: bool
) -> torch.Tensor:
    """Return the rows of `spans` [(first, end)], in order, as one tensor.

    With `copied` it may share memory with `packed`.
    """
    merged: list[tuple[int, int]] = []
    for first, end in spans:
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    if len(merged) == 1:
        rows = packed[merged[0][0] : merged[0][1]]
        return rows if copied else rows.clone()
    index = torch.tensor([i for first, end in merged for i in range(first, end)])
    return packed.index_select(0, index.to(packed.device, non_blocking=True))


def _give_up(captures: Iterable[Capture], error: str) -> None:
    for capture in captures:
        capture.error = capture.error or error
