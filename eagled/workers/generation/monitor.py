"""Watches one endpoint: is it there, is it ours, does it make progress?

Guarantee: nothing is sent to a server whose identity was not checked, and no answer that came
over a connection younger than the last check is stored before a new one (`vouch`). A server is
called stuck only for lack of progress on our own requests: `/health` can delay its return, and
speed it up, but never takes it out. What is taken back from it is aborted by rid, and the server
says that it is gone before it gets a trial; one that eagled launched and that does not come to
itself in time is started anew. At most one identity check and one health probe run at a time.
Price: two small GETs every `probe_interval_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from eagled.clock import Clock
from eagled.config import GenerationConfig
from eagled.errors import AuthError, EagledError, FingerprintError, RetryableError
from eagled.server.fingerprint import fingerprint
from eagled.server.protocol import Load
from eagled.server.wire import ConnectionLostError, NoConnectionError
from eagled.types import EventKind
from eagled.workers.generation.endpoint import NO_CAP, Breaker, Endpoint, EndpointState
from eagled.workers.generation.ghosts import Ghosts
from eagled.workers.generation.identity import RunIdentity

_log = logging.getLogger(__name__)
_HEALTH_VETOES = 3  # after so many failed probes a stuck server gets a trial all the same
_UNCLEAR_TRIES = 6  # identity checks before an answer of an unverified server is given up
_TICKS_PER_LIMIT = 4  # a time limit is noticed within a quarter of itself
_TRIALS_BEFORE_RESTART = 2  # a launched server that hangs again on its trials is started anew


class Identity(StrEnum):
    """Outcome of an identity check."""

    SAME = "same"
    GONE = "gone"
    OTHER = "other"
    UNCLEAR = "unclear"  # something is there that does not answer the question now


@dataclass(frozen=True, slots=True)
class _Seen:
    """Token counts at the last look: held in the cache, made since the start; None is unknown."""

    held: int | None = None
    made: float | None = None


class Stuck(Protocol):
    """What to do with a server that was just found stuck; the flags are from before."""

    def __call__(self, endpoint: Endpoint, *, healthy: bool, probed: bool) -> None:
        """Take back what is in flight there."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What a monitor has done by others.

    Attributes:
        wake: a server may take requests again.
        stuck: take back what is in flight at a stuck server.
        abort: end one request at a server, by rid.
        note: write an event about a server.
        restart: start a server anew (address, reason); False if eagled did not launch it.
    """

    wake: Callable[[], None]
    stuck: Stuck
    abort: Callable[[Endpoint, str], None]
    note: Callable[[Endpoint, EventKind, str], None]
    restart: Callable[[str, str], bool]


class Monitor:
    """One endpoint's watcher; `run` is its task."""

    def __init__(
        self,
        endpoint: Endpoint,
        config: GenerationConfig,
        clock: Clock,
        identity: RunIdentity,
        *,
        vocab_size: int,
        calls: Calls,
        capturing: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self._capturing = capturing
        self._config = config
        self._clock = clock
        self._identity = identity
        self._vocab_size = vocab_size
        self._wake = calls.wake
        self._stuck = calls.stuck
        self._abort = calls.abort
        self._note = calls.note
        self._restart = calls.restart
        self._poke = asyncio.Event()
        self._check: asyncio.Task[Identity] | None = None
        self._seen = _Seen()
        self._no_loads = False
        self._ghosts = Ghosts()
        self._stuck_at = clock.monotonic()
        self._gone = False
        self._vetoes = 0
        self._not_before = clock.monotonic()

    @property
    def interval_s(self) -> float:
        """Return the time between two looks."""
        c = self._config
        shortest = min(c.hang_s, c.request_timeout_s) / _TICKS_PER_LIMIT
        return min(c.probe_interval_s, shortest)

    def poke(self) -> None:
        """Look now instead of at the next tick."""
        self._poke.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await self._look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._poke.wait(), self.interval_s)
                self._poke.clear()
        finally:
            if self._check is not None:
                self._check.cancel()

    async def _look(self) -> None:
        """Look once; a frozen server holds up no part of this for longer than half of `hang_s`."""
        if self._check is not None and self._check.done():
            self._check.result()  # raises what is nobody's fault but ours
        self._expire_old()
        await self._chase_ghosts()
        progressing = await self._makes_progress()
        if self.endpoint.breaker is Breaker.OPEN:
            await self._try_again()
        elif progressing:
            self._begin_check()

    # -- identity

    async def verify(self) -> Identity:
        """Check the identity; callers that come during a check share it."""
        return await asyncio.shield(self._begin_check())

    def _begin_check(self) -> asyncio.Task[Identity]:
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._verify(), name=f"verify {self.endpoint.url}")
        return self._check

    async def vouch(self, since: float) -> Identity:
        """Return the outcome of a check that began at or after `since` (monotonic)."""
        outcome = Identity.SAME
        for _ in range(_UNCLEAR_TRIES):
            if self.endpoint.verified_at >= since:
                return Identity.SAME
            outcome = await self.verify()
            if outcome in (Identity.GONE, Identity.OTHER):
                return outcome
            if outcome is Identity.UNCLEAR:
                await asyncio.sleep(self.interval_s)
        return outcome if self.endpoint.verified_at < since else Identity.SAME

    async def _verify(self) -> Identity:
        endpoint, began_at = self.endpoint, self._clock.monotonic()
        try:
            info = await endpoint.client.server_info()
            model = await endpoint.client.model_info()
            found = fingerprint(info, model, self._vocab_size)
            await self._identity.admit(found, endpoint.url)
            await self._check_capture()
        except (FingerprintError, AuthError) as exc:
            endpoint.open(EndpointState.REFUSED, str(exc))
            return Identity.OTHER
        except (NoConnectionError, ConnectionLostError) as exc:
            self._gone = True
            self._ghosts.clear()
            endpoint.open(EndpointState.DOWN, str(exc))
            return Identity.GONE
        except RetryableError as exc:
            if endpoint.breaker is Breaker.OPEN and endpoint.state is not EndpointState.STUCK:
                endpoint.open(EndpointState.DOWN, str(exc))
            return Identity.UNCLEAR
        endpoint.client.limits = info.limits
        endpoint.info = info
        own_cap = endpoint.client.max_in_flight or NO_CAP
        endpoint.server_cap = min(own_cap, info.max_running or NO_CAP)
        endpoint.identify(found, began_at)
        return Identity.SAME

    async def _check_capture(self) -> None:
        """Raise FingerprintError if the run wants states and the server does not write them."""
        if self._capturing and (fault := await self.endpoint.client.capture_fault()):
            raise FingerprintError(fault)

    # -- coming back

    async def _try_again(self) -> None:
        """See whether an open endpoint may be used again."""
        endpoint = self.endpoint
        if self._clock.monotonic() < self._not_before:
            return
        was = endpoint.state
        if await self.verify() is not Identity.SAME:
            self._give_up_on(was)
            return
        if was in (EndpointState.STARTING, EndpointState.REFUSED):
            endpoint.close(f"is {endpoint.identity.served_name if endpoint.identity else 'up'}")
            return
        endpoint.probed = await endpoint.client.health()
        if self._gone and endpoint.probed and was is not EndpointState.STUCK:
            endpoint.close("is back")
        elif self._may_stand_trial(was):
            endpoint.half_open("is back; the next request decides")
            self._delay_next()
            self._wake()
        else:
            return
        self._gone = False

    def _may_stand_trial(self, was: EndpointState) -> bool:
        """A stuck server shows one token, and has let go of what was aborted.

        Neither can keep it out for ever: others may use it too, and a probe may fail all along.
        """
        if was is not EndpointState.STUCK:
            self._vetoes = 0
            return True
        if self.endpoint.trials_lost >= _TRIALS_BEFORE_RESTART and self._give_up_on(was):
            return False
        if self.endpoint.probed and not self._ghosts.extra:
            self._vetoes = 0
            return True
        self._vetoes += 1
        return self._vetoes > _HEALTH_VETOES and not self._give_up_on(was)

    def _give_up_on(self, was: EndpointState) -> bool:
        """Have a stuck server started anew, if eagled launched it and it had its time."""
        stuck_s = self._clock.monotonic() - self._stuck_at
        if was is not EndpointState.STUCK or stuck_s < self._config.hang_s:
            return False
        reason = f"stuck, and not back to itself {stuck_s:.0f} s after its requests were aborted"
        if not self._restart(self.endpoint.url, reason):
            return False
        self._stuck_at = self._clock.monotonic()
        self.endpoint.trials_lost = 0
        return True

    def _delay_next(self) -> None:
        """Wait longer after each trial that was lost."""
        c = self._config
        wait = min(c.retry_max_s, c.probe_interval_s * 2.0 ** min(self.endpoint.trials_lost, 10))
        self._not_before = self._clock.monotonic() + wait

    # -- progress

    def _expire_old(self) -> None:
        too_old = self._clock.monotonic() - self._config.request_timeout_s
        for flight in [f for f in self.endpoint.flights if f.started_at < too_old]:
            if not flight.timed_out:
                flight.timed_out = True
                self._abort(self.endpoint, flight.rid)

    # -- what was left behind

    def left_behind(self, rid: str, *, aborted: bool = False) -> None:
        """A request ended here without the server's word: it may still run there."""
        self._ghosts.leave(rid, self._clock.monotonic(), aborted=aborted)
        if not aborted:
            self.poke()

    async def _chase_ghosts(self) -> None:
        """Abort by rid what the server still has of us, by its own count."""
        ghosts, endpoint = self._ghosts, self.endpoint
        if not len(ghosts) or endpoint.state is EndpointState.DOWN:
            return
        before = len(endpoint.flights)
        load = await self._loads(self._config.hang_s / 2)
        ours = max(before, len(endpoint.flights))
        if ghosts.saw(load, ours, self._clock.monotonic()):
            text = f"{ghosts.extra} requests more than ours run there: aborting what we left"
            self._note(endpoint, EventKind.SERVER_GHOSTS, text)
        for rid in ghosts.due(self._clock.monotonic()):
            self._abort(endpoint, rid)

    async def _makes_progress(self) -> bool:
        """Return False after the endpoint was found stuck."""
        endpoint = self.endpoint
        if not endpoint.flights:
            self._seen = _Seen()
            return True
        if self._clock.monotonic() - endpoint.progress_at < self.interval_s:
            return True
        allowed_s = self._config.hang_s
        if await self._tokens_moved(allowed_s):
            endpoint.progressed(self._clock.monotonic())
        quiet_s = self._clock.monotonic() - endpoint.progress_at
        if self._no_loads:
            # then only whole replies show progress, and they may be long
            allowed_s = max(allowed_s, 2 * endpoint.slowest_s)
        if not endpoint.flights or quiet_s < allowed_s:
            return True
        self._declare_stuck(quiet_s)
        return False

    async def _tokens_moved(self, allowed_s: float) -> bool:
        """Return whether the server's token counts differ from the last look.

        Tokens held first; if those stand still, the counter of tokens made, where there is one.
        """
        load = await self._loads(allowed_s / 2)
        held = load.used_tokens if load is not None else None
        if held is not None and self._seen.held not in (None, held):
            self._seen = _Seen(held)
            return True
        before, self._seen = self._seen, _Seen(held, await self._made(allowed_s / 2))
        made = self._seen.made
        return made is not None and before.made is not None and made != before.made

    async def _loads(self, timeout_s: float) -> Load | None:
        try:
            load = await self.endpoint.client.loads(timeout_s)
        except EagledError as exc:
            _log.debug("no load from url=%s: %s", self.endpoint.url, exc)
            return None
        self._no_loads = load is None
        return load

    async def _made(self, timeout_s: float) -> float | None:
        try:
            made = await self.endpoint.client.tokens_made(timeout_s)
        except EagledError as exc:
            _log.debug("no metrics from url=%s: %s", self.endpoint.url, exc)
            return None
        if made is not None:
            self._no_loads = False
        return made

    def _declare_stuck(self, quiet_s: float) -> None:
        endpoint = self.endpoint
        if endpoint.breaker is Breaker.HALF_OPEN:
            endpoint.trials_lost += 1
        self._delay_next()
        self._seen = _Seen()
        self._stuck_at = self._clock.monotonic()
        count = len(endpoint.flights)
        healthy, probed = endpoint.healthy, endpoint.probed
        if endpoint.state is not EndpointState.REFUSED:
            endpoint.open(
                EndpointState.STUCK,
                f"server stuck: {count} requests in flight, no token for {quiet_s:.0f} s",
            )
        self._stuck(endpoint, healthy=healthy, probed=probed)
