"""Bring the outcome of one request to the store, and to the endpoint that caused it.

Guarantee: every claim ends in exactly one of complete, fail or give_back, each fenced; while the
disk is full an outcome is kept and tried again. What a failure leads to is decided in `policy.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from eagled.clock import Clock
from eagled.config import Config
from eagled.errors import (
    ContentError,
    DiskError,
    EagledError,
    RetryableError,
    ServerBusyError,
    ServerTimeoutError,
)
from eagled.printable import printable
from eagled.retry import Random, full_jitter
from eagled.server.protocol import EndCause, GenerateReply
from eagled.server.wire import ConnectionLostError, NoConnectionError, ReplyCutError
from eagled.tokens import PackedIds
from eagled.types import Answer, Claim, Failure, Fence, Finish, OutputReason, SampleState
from eagled.workers.generation.endpoint import Breaker, Endpoint, EndpointState, Flight
from eagled.workers.generation.extend import joined, next_lane, repeats_itself
from eagled.workers.generation.lane import Lane
from eagled.workers.generation.monitor import Identity, Monitor
from eagled.workers.generation.policy import (
    Action,
    Blame,
    Circumstances,
    Decision,
    decide,
    is_suspect,
    says_nothing_of_sample,
)

_log = logging.getLogger(__name__)
DISK_RETRY_S = 5.0  # time between tries to store an outcome while the disk refuses
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Faults:
    """Server faults in a row of one sample.

    `lonely` of them came after others had been answered since the one before; `answered` is how
    many answers there were at the last.
    """

    n: int
    lonely: int
    answered: int


_NO_FAULTS = _Faults(0, 0, 0)
_NO_WORD = (ReplyCutError, ConnectionLostError, ServerTimeoutError)  # it may still run there


class OutcomeStore(Protocol):
    """What is needed of the store here."""

    async def complete(self, fence: Fence, answer: Answer) -> bool:
        """Store an answer; False if the claim is stale."""

    async def extend(
        self, fence: Fence, partial: PackedIds, *, extended: int, elapsed_s: float, lane: str
    ) -> bool:
        """Keep an answer so far and queue its sample again; False if the claim is stale."""

    async def fail(self, fence: Fence, failure: Failure) -> SampleState | None:
        """Record a failed attempt; None if the claim is stale."""

    async def give_back(
        self, fences: Sequence[Fence], *, crashed: bool = False, max_crashes: int = 3
    ) -> int:
        """Queue claims again, uncharged; set aside what met `max_crashes` server crashes."""


class Settler:
    """Settles outcomes.

    Args:
        store: where they go.
        config: limits and waits.
        clock: time.
        rng: chance of the back-off.
        retry_waits: called after a sample entered retry_wait.
        queued: called with the lane in which a sample was queued to be continued.
        held: called with the seconds for which a server takes nothing.
    """

    def __init__(
        self,
        store: OutcomeStore,
        config: Config,
        clock: Clock,
        rng: Random,
        *,
        retry_waits: Callable[[], None],
        queued: Callable[[str], None],
        held: Callable[[float], None],
    ) -> None:
        self._store = store
        self._whole_config = config
        self._config = config.generation
        self._clock = clock
        self._rng = rng
        self._retry_waits = retry_waits
        self._queued = queued
        self._held = held
        self._faults: dict[int, _Faults] = {}  # of samples whose last attempt was a server's fault
        self._charges: dict[int, int] = {}
        self._answered = 0

    # -- whole replies

    async def arrived(
        self, lane: Lane, monitor: Monitor, flight: Flight, reply: GenerateReply, elapsed_s: float
    ) -> None:
        """Store a whole reply, or set it aside if its length says so."""
        endpoint, claim = monitor.endpoint, flight.claim
        if endpoint.verified_at < reply.connected_at:
            outcome = await monitor.vouch(reply.connected_at)
            if outcome is not Identity.SAME:
                _log.debug("answer of an unverified server dropped sample=%s", claim.uid.hex())
                await self.give_back([claim.fence])
                return
        endpoint.succeeded(self._clock.monotonic(), elapsed_s)
        self._answered += 1
        self._forget(claim)
        refusal = self._length_refusal(claim, reply)
        if refusal is not None:
            await self._fail(claim, refusal)
            return
        packed = joined(claim, reply.output)
        context = endpoint.client.limits.context
        to = next_lane(self._whole_config, claim, reply.cause, len(reply.output), context)
        if to is not None and await asyncio.to_thread(
            repeats_itself, self._whole_config, claim, packed
        ):
            to = None  # kept as cut; the text worker rejects it with its reason
        if to is not None:
            done = await self._extend(claim, packed, elapsed_s, to)
        else:
            finish = Finish.STOP if reply.cause is EndCause.STOP else Finish.LENGTH
            about = (endpoint.fingerprint_short, elapsed_s, claim.extended)
            answer = Answer(packed, finish, *about)
            done = await self.stored(lambda: self._store.complete(claim.fence, answer))
        if done:
            now = self._clock.monotonic()
            lane.rates.record(now, claim.n_sent, len(reply.output), elapsed_s)

    async def _extend(self, claim: Claim, so_far: PackedIds, elapsed_s: float, to: str) -> bool:
        """Keep the ids so far and queue the sample in lane `to`."""
        times = claim.extended + 1
        done = await self.stored(
            lambda: self._store.extend(
                claim.fence, so_far, extended=times, elapsed_s=elapsed_s, lane=to
            )
        )
        if done:
            self._queued(to)
        return done

    def _length_refusal(self, claim: Claim, reply: GenerateReply) -> Failure | None:
        n_prompt, n_output = claim.prompt.n, len(reply.output)
        if claim.partial is not None:
            return None  # what earlier requests gave is kept, wherever this one was cut
        if reply.cause is EndCause.WINDOW:
            detail = (
                f"the server's window was full: {n_prompt} + {n_output} tokens, "
                "fewer than the reply limit"
            )
        elif reply.cause is EndCause.LIMIT and self._config.on_length == "drop":
            detail = f"cut at the reply limit of {n_output} tokens; generation.on_length is drop"
        else:
            return None
        return Failure(
            OutputReason.TRUNCATED,
            detail,
            charge=False,
            retry_in_s=None,
            final=SampleState.REJECTED,
        )

    # -- failures

    async def failed(
        self, lane: Lane, monitor: Monitor, flight: Flight, error: EagledError, *, alone: bool
    ) -> None:
        """Blame who is to blame, and queue, delay or end the sample."""
        claim, endpoint = flight.claim, monitor.endpoint
        if isinstance(error, _NO_WORD):
            monitor.left_behind(flight.rid)
        if flight.timed_out and isinstance(error, RetryableError):
            limit_s = self._config.request_timeout_s
            error = ServerTimeoutError(f"no reply within {limit_s:g} s; aborted: {error}")
        faults = self._count_fault(claim, error)
        seen = Circumstances(
            endpoint.healthy, endpoint.probed, alone=alone, tries=faults.n, lonely=faults.lonely
        )
        decision = decide(error, seen)
        crashed = await self._blame(monitor, decision, error)
        _log.debug(
            "attempt failed sample=%s lane=%s try=%d error=%s detail=%s",
            claim.uid.hex(),
            lane.name,
            claim.fence.attempt,
            type(error).__name__,
            printable(error),
        )
        if crashed or decision.action is Action.GIVE_BACK:
            await self.give_back([claim.fence], crashed=crashed)
            lane.news()
        elif decision.action is Action.FINAL:
            await self._fail(claim, _final(error, decision))
        else:
            await self._retry(lane, claim, error, charge=decision.charge, tries=faults.n)

    async def hung(self, lane: Lane, claim: Claim, seen: Circumstances) -> None:
        """Retry the only sample that was in flight when a server got stuck.

        Charged only once it is suspect: one hang says nothing, nine of the same sample do.
        """
        error = ServerTimeoutError("the server got stuck over this request alone")
        tries = self._count_fault(claim, error).n
        charge = is_suspect(replace(seen, tries=tries))
        await self._retry(lane, claim, error, charge=charge, tries=tries)

    async def give_back(self, fences: Sequence[Fence], *, crashed: bool = False) -> None:
        """Queue claims again, uncharged."""
        most = self._config.max_crashes
        await self.stored(lambda: self._store.give_back(fences, crashed=crashed, max_crashes=most))

    async def _retry(
        self, lane: Lane, claim: Claim, error: EagledError, *, charge: bool, tries: int
    ) -> None:
        if charge:
            charged = max(claim.failures, self._charges.get(claim.fence.sample_id, 0)) + 1
            self._charges[claim.fence.sample_id] = charged
            if charged >= self._config.max_failures:
                await self._fail(claim, _given_up(error, charged))
                return
        c = self._config
        wait_s = full_jitter(max(tries, 1), c.retry_base_s, c.retry_max_s, self._rng)
        failure = Failure(type(error).__name__, str(error), charge, wait_s)
        state = await self.stored(lambda: self._store.fail(claim.fence, failure))
        if state is SampleState.RETRY_WAIT:
            self._retry_waits()
        elif state is SampleState.QUEUED:
            lane.news()

    async def _fail(self, claim: Claim, failure: Failure) -> None:
        """End a sample; one whose answer was being continued keeps what it has, as cut."""
        self._forget(claim)
        if claim.partial is None:
            await self.stored(lambda: self._store.fail(claim.fence, failure))
            return
        detail = printable(failure.detail)
        _log.warning("answer kept as cut sample=%s cause=%s", claim.uid.hex(), detail)
        answer = Answer(claim.partial, Finish.LENGTH, "", 0.0, claim.extended)
        await self.stored(lambda: self._store.complete(claim.fence, answer))

    async def _blame(self, monitor: Monitor, decision: Decision, error: EagledError) -> bool:
        """Tell the endpoint; return whether the sample was in flight at a server crash."""
        endpoint, text = monitor.endpoint, f"{type(error).__name__}: {error}"
        match decision.blame:
            case Blame.NONE:
                return False
            case Blame.FAULT:
                endpoint.faulted(text)
            case Blame.PRESSURE:
                pause_s = self._pause(endpoint, error)
                endpoint.pressured(self._clock.monotonic(), pause_s, text)
                if pause_s is not None:
                    self._held(pause_s)
            case Blame.REFUSE:
                endpoint.open(EndpointState.REFUSED, text)
            case Blame.LOST:
                return await self._lost(monitor, text) and not isinstance(error, NoConnectionError)
        return False

    async def _lost(self, monitor: Monitor, text: str) -> bool:
        """Find out whether the server is gone; a live one gets a fault."""
        endpoint = monitor.endpoint
        down = endpoint.breaker is Breaker.OPEN and endpoint.state is EndpointState.DOWN
        if down or await monitor.verify() is Identity.GONE:
            endpoint.faults += 1
            return True
        endpoint.faulted(text)
        return False

    def _pause(self, endpoint: Endpoint, error: EagledError) -> float | None:
        """Return how long nothing is sent; an abort only narrows the flow."""
        if not isinstance(error, ServerBusyError):
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s
        c = self._config
        return full_jitter(endpoint.busy_in_row + 1, c.retry_base_s, c.retry_max_s, self._rng)

    # -- small things

    def _count_fault(self, claim: Claim, error: EagledError) -> _Faults:
        """Return the faults in a row that a sample met, this one included."""
        if not isinstance(error, RetryableError) or says_nothing_of_sample(error):
            return _NO_FAULTS
        before = self._faults.get(claim.fence.sample_id, _NO_FAULTS)
        others = before.n > 0 and self._answered > before.answered
        now = _Faults(before.n + 1, before.lonely + others, self._answered)
        self._faults[claim.fence.sample_id] = now
        return now

    def _forget(self, claim: Claim) -> None:
        self._faults.pop(claim.fence.sample_id, None)
        self._charges.pop(claim.fence.sample_id, None)

    async def stored(self, write: Callable[[], Awaitable[_T]]) -> _T:
        """Write, and again while the disk refuses; that is said once an outcome."""
        level = logging.WARNING
        while True:
            try:
                return await write()
            except DiskError as exc:
                _log.log(level, "outcome waits for the disk: %s", exc)
                level = logging.DEBUG
                await asyncio.sleep(DISK_RETRY_S)


def _final(error: EagledError, decision: Decision) -> Failure:
    kind = error.reason if isinstance(error, ContentError) else type(error).__name__
    detail = error.detail if isinstance(error, ContentError) else str(error)
    return Failure(kind, detail, charge=decision.charge, retry_in_s=None, final=decision.final)


def _given_up(error: EagledError, charged: int) -> Failure:
    return Failure(
        OutputReason.TOO_MANY_FAILURES,
        f"{charged} failures, the last: {type(error).__name__}: {error}",
        charge=True,
        retry_in_s=None,
    )
