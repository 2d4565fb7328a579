"""The slot loop: requests join between steps, one thread runs the network.

Each turn of the loop feeds at most one chunk of prompt and then takes one decode step of one group
(rows of similar length), so neither long prompts nor long rows hold up the others for more than
that. Greedy rows take the argmax; a row that fails is answered alone.

Guarantee: every submitted request is answered exactly once, through its `on_done`, from the loop's
thread; tokens reserved never exceed `max_total_tokens`, since a request's whole need is reserved
when it joins. Price: an answer that ends early has held more than it used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from eagled.engine.params import GenerateRequest, Limits
from eagled.engine.rows import Ending, Group, Load, Result, Row
from eagled.engine.sampling import draw, make_rng
from eagled.engine.slab import KvShape, Slab, width_for
from eagled.errors import RequestRejectedError, ServerBusyError, ServerUnavailableError

if TYPE_CHECKING:
    import torch

    from eagled.engine.text import TextDecoder

logger = logging.getLogger(__name__)

PREFILL_CHUNK_TOKENS = 256  # prompt tokens between two decode steps
NAN_MARK = "NaN happened"  # SGLang's own sign of broken logits; clients know it
_IDLE_WAIT_S = 1.0  # the idle loop shows its pulse this often
_RATE_WINDOW_S = 5.0  # tokens/s are averaged over this


class SlotForward(Protocol):
    """What the loop needs of a model."""

    @property
    def shape(self) -> KvShape:
        """The cache's shape."""

    def forward(
        self, slab: Slab, first: int, ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        """Return logits [B, V] after feeding `ids` to rows from `first` on."""


class SlotLoop:
    """Runs requests on a model; `submit` and `abort` may be called from any thread."""

    def __init__(
        self, model: SlotForward, limits: Limits, eos_ids: frozenset[int], decoder: TextDecoder
    ) -> None:
        self._model = model
        self._limits = limits
        self._eos_ids = eos_ids
        self._decoder = decoder
        self._wake = threading.Condition()
        self._live: dict[str, Row] = {}
        self._queue: deque[Row] = deque()
        self._aborted: set[str] = set()
        self._closing = False
        self._prefilling: tuple[Row, Slab] | None = None
        self._groups: dict[int, Group] = {}
        self._turn = 0
        self._reserved = 0
        self._beat = time.monotonic()
        self._rate: deque[tuple[float, int]] = deque()
        self._thread = threading.Thread(target=self._main, name="slot-loop", daemon=True)
        self.on_death: Callable[[], None] = lambda: None

    # ── called from any thread ──────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def closing(self) -> bool:
        """Whether new requests are refused."""
        return self._closing

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: GenerateRequest, on_done: Callable[[Result], None]) -> None:
        """Queue a request.

        Raises:
            RequestRejectedError: if its rid is live.
            ServerBusyError: if the queue is full.
            ServerUnavailableError: if the loop has ended.
        """
        row = Row(request, on_done, make_rng(request.sampling.seed))
        with self._wake:
            if self._closing:
                raise ServerUnavailableError("The server is shutting down.")
            if request.rid in self._live:
                detail = f"Duplicate request ID detected: {request.rid}"
                raise RequestRejectedError("refused_by_server", detail)
            most = self._limits.max_queued
            if most is not None and self._waiting() >= most:
                raise ServerBusyError("The request queue is full.")
            self._live[request.rid] = row
            self._queue.append(row)
            self._wake.notify()

    def abort(self, rid: str) -> None:
        """End a request with what it has so far; unknown rids are ignored."""
        with self._wake:
            if rid in self._live:
                self._aborted.add(rid)
                self._wake.notify()

    def abort_all(self) -> None:
        """End every request with what it has so far."""
        with self._wake:
            self._aborted.update(self._live)
            self._wake.notify()

    def stop(self, grace_s: float, abort_s: float) -> bool:
        """End the thread, blocking, and return whether it ended.

        New requests are refused at once; live ones may finish within `grace_s` and are then
        aborted with what they have, for which `abort_s` must be longer than one step.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(grace_s)
        self.abort_all()
        self._thread.join(abort_s)
        return not self._thread.is_alive()

    def load(self) -> Load:
        """Return how busy the loop is now."""
        with self._wake:
            now = time.monotonic()
            rows = [row for group in self._groups.values() for row in group.rows]
            feeding = self._prefilling
            held = sum(row.tokens for row in rows) + (feeding[0].tokens if feeding else 0)
            tokens = sum(n for at, n in self._rate if now - at < _RATE_WINDOW_S)
            waiting = len(self._queue)
            return Load(
                running=len(self._live) - waiting,
                waiting=waiting,
                used_tokens=held,
                gen_tok_per_s=tokens / _RATE_WINDOW_S,
                beat_age_s=now - self._beat if self._thread.is_alive() else float("inf"),
            )

    # ── the thread ──────────────────────────────────────────────────────────────────────────

    def _main(self) -> None:
        try:
            while self._wait_for_work():
                self._apply_aborts()
                self._feed_prompts()
                self._decode_one_group()
        except Exception:
            logger.exception("the slot loop died")
        finally:
            self._fail_all()
            self.on_death()

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._beat = time.monotonic()
            while not self._live:
                if self._closing:
                    return False
                self._wake.wait(_IDLE_WAIT_S)
                self._beat = time.monotonic()
            return True

    def _fail_all(self) -> None:
        with self._wake:
            self._closing = True
            rows = list(self._live.values())
        for row in rows:
            row.ending = Ending("error", message="the engine stopped")
            self._answer(row)

    def _apply_aborts(self) -> None:
        with self._wake:
            rids, self._aborted = self._aborted, set()
            gone = [self._live[rid] for rid in rids if rid in self._live]
            for row in gone:
                row.ending = Ending("abort", message="Aborted by request")
            waiting = [row for row in self._queue if row.ending]
            self._queue = deque(row for row in self._queue if not row.ending)
        for row in waiting:
            self._answer(row)
        if self._prefilling and self._prefilling[0].ending:
            self._finish_prefill(None)
        for group in tuple(self._groups.values()):
            self._settle(group)

    # prompts

    def _feed_prompts(self) -> None:
        budget = PREFILL_CHUNK_TOKENS
        while budget > 0 and (self._prefilling or self._admit()):
            if self._prefilling:
                budget -= self._feed_chunk(budget)

    def _waiting(self) -> int:
        """Count the requests that no free slot will take at once."""
        running = len(self._live) - len(self._queue)
        return len(self._queue) - max(self._limits.slots - running, 0)

    def _admit(self) -> bool:
        """Take the next request that slots and pool have room for; first come, first served."""
        with self._wake:
            if not self._queue or len(self._live) - len(self._queue) >= self._limits.slots:
                return False
            charge = self._charge(self._queue[0])
            if self._reserved + charge > self._limits.max_total_tokens:
                return False
            row = self._queue.popleft()
            self._reserved += charge
        try:
            slab = Slab(self._model.shape, self._width(len(row.request.input_ids)))
            slab.add()
        except Exception as exc:  # noqa: BLE001 - no memory for this one; the others go on
            self._fail(row, exc)
            self._release(row)
            return True
        self._prefilling = (row, slab)
        return True

    def _feed_chunk(self, budget: int) -> int:
        assert self._prefilling is not None  # noqa: S101 - the caller has just admitted one
        row, slab = self._prefilling
        ids = row.request.input_ids[row.tokens : row.tokens + budget]
        try:
            logits = self._model.forward(slab, 0, [ids], [row.tokens])
        except Exception as exc:  # noqa: BLE001 - one prompt's fault is answered, not spread
            self._fail(row, exc)
            self._finish_prefill(None)
            return len(ids)
        row.tokens += len(ids)
        if row.tokens == len(row.request.input_ids):
            self._finish_prefill(logits)
        return len(ids)

    def _finish_prefill(self, logits: torch.Tensor | None) -> None:
        assert self._prefilling is not None  # noqa: S101 - only called while one is there
        row, slab = self._prefilling
        if logits is not None:
            if row.request.sampling.max_new_tokens == 0:
                row.ending = Ending("length", length=0)
            else:
                self._advance([row], logits)
        self._prefilling = None
        if not row.ending:
            self._place(row, slab, 0)
        if row.ending:
            self._release(row)

    # decoding

    def _decode_one_group(self) -> None:
        if not self._groups:
            return
        widths = sorted(self._groups)
        group = self._groups[widths[self._turn % len(widths)]]
        self._turn += 1
        self._step(group, 0, group.rows)
        self._settle(group)

    def _step(self, group: Group, first: int, rows: list[Row]) -> None:
        ids = [[row.output[-1]] for row in rows]
        try:
            logits = self._model.forward(group.slab, first, ids, [row.tokens for row in rows])
        except Exception as exc:  # noqa: BLE001 - found by stepping alone, then answered alone
            if len(rows) == 1:
                self._fail(rows[0], exc)
                return
            logger.warning("a step of %d rows failed, stepping them one by one: %r", len(rows), exc)
            for index, row in enumerate(rows):
                self._step(group, first + index, [row])
            return
        for row in rows:
            row.tokens += 1
        self._advance(rows, logits)

    def _advance(self, rows: list[Row], logits: torch.Tensor) -> None:
        """Give each row its next token and see whether that ends it."""
        best_ids = logits.argmax(-1)
        best = logits.gather(-1, best_ids[:, None])[:, 0].isfinite().tolist()  # NaN wins argmax
        for index, (row, top, finite) in enumerate(zip(rows, best_ids.tolist(), best, strict=True)):
            if not finite:
                logger.error("a row's logits are not finite rid=%r", row.request.rid)
                row.ending = Ending("stop", matched=NAN_MARK)
                continue
            try:
                row.output.append(self._next_id(row, logits[index], top))
                row.ending = self._ending(row)
            except Exception as exc:  # noqa: BLE001 - one row's fault is answered, not spread
                self._fail(row, exc)
        with self._wake:
            self._rate.append((time.monotonic(), len(rows)))
            while self._rate[0][0] < time.monotonic() - _RATE_WINDOW_S:
                self._rate.popleft()

    def _next_id(self, row: Row, logits: torch.Tensor, top: int) -> int:
        sampling = row.request.sampling
        if len(row.output) < sampling.min_new_tokens:
            logits = logits.clone()
            logits[list(self._eos_ids | sampling.stop_token_ids)] = float("-inf")
            top = int(logits.argmax())
        return top if sampling.greedy else draw(logits, sampling, row.rng.random())

    def _ending(self, row: Row) -> Ending | None:
        sampling = row.request.sampling
        last = row.output[-1]
        # a stop id at the very limit counts as stop, as SGLang 0.5.23 reports it
        if not sampling.ignore_eos and (last in self._eos_ids or last in sampling.stop_token_ids):
            return Ending("stop", matched=last)
        if (found := self._decoder.find_stop(row.output, sampling)) is not None:
            return Ending("stop", matched=found)
        if len(row.output) >= sampling.max_new_tokens:
            return Ending("length", length=sampling.max_new_tokens)
        return None

    def _settle(self, group: Group) -> None:
        """Answer what ended, and move rows that have filled their slab."""
        for index in reversed(range(len(group.rows))):
            row = group.rows[index]
            outgrown = not row.ending and row.tokens >= group.slab.width
            if outgrown:
                self._place(row, group.slab, index)
            if outgrown or row.ending:
                group.leave(index)
            if row.ending:
                self._release(row)
        if not group.rows:
            with self._wake:
                self._groups.pop(group.slab.width, None)

    def _place(self, row: Row, source: Slab, index: int) -> None:
        """Copy a row into the group of its length; if there is no memory, the row fails."""
        width = self._width(row.tokens + 1)
        group = self._groups.get(width) or Group(self._model.shape, width)
        try:
            group.join(row, source, index)
        except Exception as exc:  # noqa: BLE001 - no memory for this one; the others go on
            self._fail(row, exc)
            return
        with self._wake:
            self._groups[width] = group

    # bookkeeping

    def _width(self, tokens: int) -> int:
        return width_for(tokens, self._limits.longest)

    def _charge(self, row: Row) -> int:
        return self._width(row.request.need)

    def _fail(self, row: Row, exc: Exception) -> None:
        logger.error("a request failed: %r rid=%r", exc, row.request.rid)
        row.ending = Ending("error", message=f"{type(exc).__name__}: {exc}")

    def _release(self, row: Row) -> None:
        with self._wake:
            self._reserved -= self._charge(row)
        self._answer(row)

    def _answer(self, row: Row) -> None:
        assert row.ending is not None  # noqa: S101 - rows are answered when they have ended
        with self._wake:
            self._live.pop(row.request.rid, None)
        elapsed = time.monotonic() - row.submitted
        row.on_done(Result(row.request, tuple(row.output), row.ending, elapsed))
