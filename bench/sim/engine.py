"""A discrete-event model of an SGLang-like engine.

What is modelled, as SGLang 0.5.23 does it: a waiting queue in order of arrival; admission by a
reservation of `min(max_new, clip)` tokens for a new request, and of that times a ratio for each
running one; a ratio that falls from 0.7 to 0.098 over 600 decode steps and that a retraction
raises; prefill before decode, in chunks; when memory runs out, retraction of the requests with the
fewest output tokens, whose cache is lost; a throughput gauge that is the mean of the last 40
steps. Not modelled: prefix cache, speculation, overlap of prefill and decode.

Decode steps between two events are done in one go, so a run costs a few events a request.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.sim.hosts import Host, Job

RATIO_FIRST = 0.7
RATIO_LEAST = 0.14  # as a share of the first one
RATIO_STEPS = 600  # decode steps in which it falls
RETRACT_STEPS = 20  # decode steps that must fit for everybody after a retraction
GAUGE_STEPS = 40


@dataclass(slots=True, eq=False)
class Request:
    """One request inside the engine; `out` is what it had when it was last admitted."""

    job: Job
    arrived_at: float
    out: int = 0
    admitted_step: int = 0
    prefilled: int = 0
    retractions: int = 0
    running: bool = False
    flat: bool = False
    visit: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is over at `at_s` with `n_out` tokens; `aborted` if it was cut short."""

    job: Job
    at_s: float
    n_out: int
    retractions: int
    aborted: bool = False


@dataclass(slots=True)
class Totals:
    """What the engine has done since its start, in tokens (steps and retractions in counts)."""

    decoded: int = 0
    prefilled: int = 0
    recomputed: int = 0
    retractions: int = 0
    steps: int = 0


@dataclass(slots=True)
class Engine:
    """One server in its own time; `advance` moves it."""

    host: Host
    seed: int = 0
    now: float = 0.0
    used: int = 0
    totals: Totals = field(default_factory=Totals)
    waiting: deque[Request] = field(default_factory=deque)
    running: set[Request] = field(default_factory=set)
    tok_per_s: float = 0.0
    _ratio: float = field(init=False)
    _full: bool = False
    _chunked: Request | None = None
    _reserved: int = 0  # sum of min(tokens left, clip) over the running ones
    _n_flat: int = 0  # running ones that have more than clip tokens left
    _ends: list[tuple[int, int, Request]] = field(default_factory=list)
    _unflat: list[tuple[int, int, Request]] = field(default_factory=list)
    _gauge_step: int = 0
    _gauge_tokens: int = 0
    _gauge_at: float = 0.0
    _visits: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Seed the jitter."""
        self._rng = random.Random(self.seed)
        self._ratio = self._first_ratio

    @property
    def _first_ratio(self) -> float:
        return min(1.0, RATIO_FIRST * self.host.conservativeness)

    # -- what a client does

    def submit(self, job: Job) -> None:
        """Put a request at the end of the waiting queue."""
        self.waiting.append(Request(job, self.now))

    def abort(self, number: int) -> Ended | None:
        """End the request of that number, wherever it is; None if there is none."""
        for request in [*self.running, *self.waiting]:
            if request.job.number == number:
                return self._cut(request)
        if self._chunked is not None and self._chunked.job.number == number:
            request, self._chunked = self._chunked, None
            self.used -= request.prefilled
            return self._over(request, self._out(request), aborted=True)
        return None

    def _cut(self, request: Request) -> Ended:
        n_out = self._out(request)
        if request.running:
            self._stop(request)
        else:
            self.waiting.remove(request)
        return self._over(request, n_out, aborted=True)

    @property
    def n_waiting(self) -> int:
        """Return the requests that do not decode yet."""
        return len(self.waiting) + (self._chunked is not None)

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do."""
        return not self.running and not self.waiting and self._chunked is None

    # -- time

    def advance(self, until: float) -> list[Ended]:
        """Work until something ends or `until` is reached; return what ended at `now`.

        The last pass may end after `until`: a pass cannot be interrupted.
        """
        while self.now < until:
            if self.idle:
                self._ratio, self._full = self._first_ratio, False
                self.now = self._gauge_at = until
                return []
            ended = list(self._pass(until))
            if ended:
                return ended
        return []

    def _pass(self, until: float) -> Iterator[Ended]:
        batch = self._admit()
        if batch:
            yield from self._prefill(batch)
        elif self.running:
            yield from self._decode(until)
        elif self.waiting:
            # a request that fits by itself never: the engine gives it up
            request = self.waiting.popleft()
            self._full = False
            yield self._over(request, request.out, aborted=True)

    # -- prefill

    def _admit(self) -> list[tuple[Request, int]]:
        """Return (request, tokens to prefill now) of the next prefill pass; empty is none."""
        room = self.host.chunk
        batch: list[tuple[Request, int]] = []
        left = self.host.kv_tokens - self.used - self._ratio * self._reserved
        if self._chunked is not None:
            request = self._chunked
            n = min(room, self._size(request) - request.prefilled)
            batch.append((request, n))
            room -= n
            left -= n + min(request.job.max_new - request.out, self.host.clip)
        if self._full:
            return batch
        while self.waiting and room > 0:
            request = self.waiting[0]
            size = self._size(request)
            need = size + min(request.job.max_new - request.out, self.host.clip)
            if len(self.running) + len(batch) >= self.host.max_running or need >= left:
                self._full = True
                break
            self.waiting.popleft()
            n = min(room, size)
            batch.append((request, n))
            room, left = room - n, left - need
        return batch

    @staticmethod
    def _size(request: Request) -> int:
        return request.job.n_prompt + request.out

    def _prefill(self, batch: list[tuple[Request, int]]) -> Iterator[Ended]:
        n_tokens = sum(n for _, n in batch)
        host = self.host
        cost = host.prefill_s + n_tokens / host.prefill_tok_per_s
        self._spend(cost + host.per_waiting_s * len(self.waiting))
        self._chunked = None
        for request, n in batch:
            request.prefilled += n
            self.used += n
            self.totals.prefilled += n
            if request.retractions:
                self.totals.recomputed += n
            if request.prefilled < self._size(request):
                self._chunked = request
            else:
                yield from self._start(request)

    def _start(self, request: Request) -> Iterator[Ended]:
        """A request joins the running batch with its first token."""
        request.out += 1
        self.used += 1
        self.totals.decoded += 1
        self._gauge_tokens += 1
        request.running = True
        request.admitted_step = self.totals.steps
        self._visits += 1
        request.visit = self._visits
        self.running.add(request)
        left = request.job.max_new - request.out
        request.flat = left > self.host.clip
        self._reserved += min(left, self.host.clip)
        at = (request.visit, request)
        if request.flat:
            self._n_flat += 1
            heapq.heappush(self._unflat, (self.totals.steps + left - self.host.clip, *at))
        heapq.heappush(self._ends, (self.totals.steps + request.job.n_out - request.out, *at))
        if request.out >= request.job.n_out:
            yield self._finish(request)

    # -- decode

    def _decode(self, until: float) -> Iterator[Ended]:
        n = len(self.running)
        free = self.host.kv_tokens - self.used
        if free < n:
            self._retract()
            n = len(self.running)
            free = self.host.kv_tokens - self.used
        k = max(1, min(self._next_event(), free // max(n, 1), self._steps_until(until, n)))
        host, factor = self.host, self._factor(n)
        base = (host.step_s + host.per_req_s * n) * factor + host.per_waiting_s * len(self.waiting)
        cached = k * self.used + n * k * (k - 1) // 2
        self._spend(k * base + host.per_kv_s * cached, k)
        self.used += n * k
        self.totals.decoded += n * k
        self.totals.steps += k
        self._gauge_tokens += n * k
        self._reserved -= k * (n - self._n_flat)
        first = self._first_ratio
        fall = k * first * (1 - RATIO_LEAST) / RATIO_STEPS
        self._ratio = max(first * RATIO_LEAST, self._ratio - fall)
        self._note_throughput()
        self._leave_flat()
        yield from self._finished()

    def _factor(self, n: int) -> float:
        over = self.host.graph_batch and n > self.host.graph_batch
        return self.host.eager_factor if over else 1.0

    def _next_event(self) -> int:
        """Return the steps until a request ends, leaves the flat part, or the gauge is due."""
        now = self.totals.steps
        for heap in (self._ends, self._unflat):
            while heap and not self._is_live(heap[0]):
                heapq.heappop(heap)
        steps = self._gauge_step + GAUGE_STEPS - now
        steps = min(steps, self._ends[0][0] - now)
        return min(steps, self._unflat[0][0] - now) if self._unflat else steps

    @staticmethod
    def _is_live(entry: tuple[int, int, Request]) -> bool:
        _, visit, request = entry
        return request.running and request.visit == visit

    def _steps_until(self, until: float, n: int) -> int:
        step = (self.host.step_s + self.host.per_req_s * n) * self._factor(n)
        return int((until - self.now) / step) + 1

    def _leave_flat(self) -> None:
        while self._unflat and self._unflat[0][0] <= self.totals.steps:
            entry = heapq.heappop(self._unflat)
            if self._is_live(entry):
                entry[2].flat = False
                self._n_flat -= 1

    def _finished(self) -> Iterator[Ended]:
        while self._ends and self._ends[0][0] <= self.totals.steps:
            entry = heapq.heappop(self._ends)
            if self._is_live(entry):
                yield self._finish(entry[2])

    def _finish(self, request: Request) -> Ended:
        n_out = self._out(request)
        self._stop(request)
        return self._over(request, n_out, aborted=False)

    def _out(self, request: Request) -> int:
        return request.out + (self.totals.steps - request.admitted_step if request.running else 0)

    def _stop(self, request: Request) -> None:
        """Take a request out of the running batch and free its cache."""
        out = self._out(request)
        request.running = False
        request.out = out
        self.running.discard(request)
        self._reserved -= min(request.job.max_new - out, self.host.clip)
        self._n_flat -= request.flat
        request.flat = False
        self.used -= request.job.n_prompt + out
        request.prefilled = 0
        self._full = False

    def _over(self, request: Request, n_out: int, *, aborted: bool) -> Ended:
        return Ended(request.job, self.now, n_out, request.retractions, aborted)

    def _retract(self) -> None:
        """Throw out the requests with the fewest tokens until the rest has room for a while."""
        order = sorted(self.running, key=lambda r: (-self._out(r), r.job.n_prompt))
        while len(order) > 1:
            request = order.pop()
            self._stop(request)
            request.retractions += 1
            self.totals.retractions += 1
            self.waiting.append(request)
            if self.host.kv_tokens - self.used >= len(order) * RETRACT_STEPS:
                break
        decoded = sum(self._out(r) for r in order)
        asked = sum(r.job.max_new for r in order)
        self._ratio = min(1.0, (decoded + RETRACT_STEPS * len(order)) / (asked + 1))

    def _note_throughput(self) -> None:
        if self.totals.steps - self._gauge_step >= GAUGE_STEPS:
            span = self.now - self._gauge_at
            self.tok_per_s = self._gauge_tokens / span if span > 0 else 0.0
            self._gauge_step, self._gauge_tokens = self.totals.steps, 0
            self._gauge_at = self.now

    def _spend(self, seconds: float, passes: int = 1) -> None:
        spread = self.host.jitter / passes**0.5
        self.now += seconds * max(0.5, self._rng.gauss(1.0, spread))
