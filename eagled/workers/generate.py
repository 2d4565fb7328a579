"""Generation: keep every lane full, lose nothing, wait without polling.

Guarantee: a lane never claims more than it can send; each claim is sent once and settled once
(`generation/settle.py`), or given back when the generator stops or a server is found stuck.
Nothing is sent before a server's identity was checked. While nothing finishes, nothing runs here
but one look at each server every `probe_interval_s`, and one at its load every
`feedback_interval_s` where a lane's concurrency is "auto".

Decisions:
- A place is free when its reply has arrived, not when it is on disk: the server never waits for
  the disk. `Lane.room` bounds how many outcomes may wait for it.
- An "auto" lane goes by its share of the tokens that the servers take (`generation/admission.py`);
  lanes of a fixed number share places in proportion to it (`lane.quota`). Both lend what they have
  no work for.
- Lane limits and pauses live here and in the store; whoever changes the store calls `refresh`,
  and whoever adds work calls `wake`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from eagled.clock import Clock
from eagled.config import Config
from eagled.errors import (
    ArtifactError,
    AuthError,
    ContentError,
    EagledError,
    FingerprintError,
    RetryableError,
)
from eagled.lanes import max_new_for, ordered_lanes
from eagled.printable import printable
from eagled.retry import Random
from eagled.sampling import ResolvedSampling
from eagled.server.client import SglangClient
from eagled.server.protocol import GenerateRequest
from eagled.store.records import CounterRow, LaneRow, Recovery
from eagled.types import Claim, EventKind, Fence, OutputReason, SampleState
from eagled.workers.generation.admission import (
    Admission,
    LaneAdmission,
    LengthStore,
    ServerAdmission,
)
from eagled.workers.generation.endpoint import Endpoint, Flight
from eagled.workers.generation.extend import sent_ids
from eagled.workers.generation.identity import RunIdentity, SettingsStore
from eagled.workers.generation.lane import Lane, Slot, quota
from eagled.workers.generation.monitor import Calls, Monitor
from eagled.workers.generation.policy import Circumstances
from eagled.workers.generation.rates import LaneMetrics
from eagled.workers.generation.router import Router
from eagled.workers.generation.settle import OutcomeStore, Settler
from eagled.workers.generation.tasks import TaskSet

_log = logging.getLogger(__name__)
MAX_CLAIM = 256  # samples of one claim; more would only make one transaction long
RETRY_TICK_S = 1.0  # how late a retry may be; ticks only while one waits
STOP_GRACE_S = 10.0  # for aborts and give-backs after the time to finish is over
ABORTS_AT_ONCE = 16
# `policy.decide` knows them
_EXPECTED = (RetryableError, ContentError, AuthError, FingerprintError, ArtifactError)


class GenerationStore(OutcomeStore, SettingsStore, LengthStore, Protocol):
    """What the generator needs of the store."""

    @property
    def recovery(self) -> Recovery:
        """Return what the start found."""

    def rid(self, fence: Fence) -> str:
        """Return the request id of a claim."""

    async def claim(self, lane: str, n: int) -> list[Claim]:
        """Take up to `n` queued samples of a lane."""

    async def wake_retries(self) -> int:
        """Queue retries whose wait is over; return how many."""

    async def counters(self) -> list[CounterRow]:
        """Return the number of samples by dataset, lane and state."""

    async def lanes(self) -> list[LaneRow]:
        """Return all lanes."""

    async def add_event(self, kind: EventKind, subject: str, detail: str, uid: int = -1) -> int:
        """Write an event."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One server right now; `fingerprint` is the short hash stored with answers.

    `model` is the name it serves, empty before it has answered; `detail` says why it is not up.
    """

    url: str
    state: str
    breaker: str
    in_flight: int
    in_flight_tokens: int
    faults: int
    stale_resends: int
    fingerprint: str
    version: str
    model: str
    detail: str
    leaving: bool = False
    admission: ServerAdmission | None = None


@dataclass(frozen=True, slots=True)
class GeneratorMetrics:
    """Everything the status page shows of generation.

    `oldest_s` is how long the oldest request has been at a server; None when there is none.
    """

    lanes: dict[str, LaneMetrics]
    servers: tuple[ServerMetrics, ...]
    draining: bool
    oldest_s: float | None
    admission: dict[str, LaneAdmission] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Sampling of a dataset, its constant JSON made once."""

    sampling: ResolvedSampling
    members: bytes


class Generator:
    """Sends samples to servers; clients stay the caller's, who opens and closes them.

    Args:
        store: the daemon's store.
        clients: opened clients, one a server.
        config: the configuration.
        clock: time.
        sampling: resolved sampling of a dataset by its name.
        vocab_size: rows of the target's embedding.
        rng: chance of the back-off.

    Attributes:
        restart_server: starts a server anew that eagled launched (address, reason) and returns
            True; False where it did not. Set it before `start`.
    """

    def __init__(
        self,
        store: GenerationStore,
        clients: Sequence[SglangClient],
        config: Config,
        clock: Clock,
        *,
        sampling: Callable[[str], ResolvedSampling],
        vocab_size: int,
        rng: Random | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._sampling = sampling
        self._recipes: dict[str, _Recipe] = {}
        self._identity = RunIdentity(store)
        now, generation = clock.monotonic(), config.generation
        self._vocab_size = vocab_size
        self._router = Router([])
        self._monitors: dict[Endpoint, Monitor] = {}
        self._watches: dict[Endpoint, list[asyncio.Task[None]]] = {}
        longest_first = [name for name, _ in reversed(ordered_lanes(config))]
        self._claim_order = [Lane(name, config.lanes[name], now) for name in longest_first]
        self._lanes = {lane.name: lane for lane in self._claim_order}
        self._settler = Settler(
            store,
            config,
            clock,
            rng or random.SystemRandom(),
            retry_waits=self._note_retry,
            queued=self.wake,
            held=self._wake_after,
        )
        self._admission = Admission(
            generation, clock, store, self._claim_order, self._router, self._servers_changed
        )
        for client in clients:
            self._meet(client)
        self._stopping = False
        self._draining = False
        self._retries = asyncio.Event()
        self._failure: asyncio.Future[None] | None = None
        self._runners = TaskSet(self._fail)
        self._watchers = TaskSet(self._fail)
        self._flights = TaskSet(self._fail)
        self._chores = TaskSet(self._fail)
        self._abort_gate = asyncio.Semaphore(ABORTS_AT_ONCE)
        self.restart_server: Callable[[str, str], bool] = _not_ours

    # -- life cycle

    async def start(self) -> None:
        """Read the live settings, end what an earlier life left running, and begin."""
        self._failure = asyncio.get_running_loop().create_future()
        await self._identity.load()
        await self._admission.load()
        await self.refresh()
        if await self._retries_wait():
            self._retries.set()
        rids = self._store.recovery.in_flight_rids
        for endpoint in self._router.endpoints:
            if rids:
                self._chores.spawn(self._abort_all(endpoint, rids), "abort left-overs")
            self._watch(endpoint)
        self._watchers.spawn(self._wake_retries(), "retry timer")
        for lane in self._lanes.values():
            self._runners.spawn(self._run_lane(lane), f"lane {lane.name}")

    async def stop(self, timeout_s: float, grace_s: float | None = None) -> int:
        """Stop claiming, wait for what runs, give the rest back.

        What is not through after `grace_s` more (`STOP_GRACE_S`) is dropped: an outcome that waits
        for a full disk, an abort that nobody hears. The next start queues its sample again,
        uncharged.

        Returns:
            How many requests were given back unfinished.
        """
        self._stopping = True
        self._wake_runners()
        began_at = time.monotonic()
        await self._runners.drained(timeout_s)
        await self._flights.drained(max(0.0, timeout_s - (time.monotonic() - began_at)))
        left = sum(self._recall(endpoint, "stopping") for endpoint in self._router.endpoints)
        grace_ends = time.monotonic() + (STOP_GRACE_S if grace_s is None else grace_s)
        for tasks in (self._runners, self._flights, self._chores):
            await tasks.drained(max(0.0, grace_ends - time.monotonic()))
        for tasks in (self._runners, self._flights, self._chores, self._watchers):
            await tasks.cancel_all(STOP_GRACE_S)
        with contextlib.suppress(EagledError):
            await self._admission.save()  # what it learned is worth a try, not an error
        return left

    async def failed(self) -> None:
        """Wait until something happened that generation cannot go on after, and raise it."""
        assert self._failure is not None, "not started"  # noqa: S101 - a bug, not input
        await asyncio.shield(self._failure)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error that is nobody's fault but ours, or the store's."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # seen: a caller may never ask
        self._stopping = True
        self._wake_runners()

    # -- control

    async def refresh(self) -> None:
        """Take limits and pauses of lanes from the store, and look for work."""
        for row in await self._store.lanes():
            lane = self._lanes.get(row.name)
            if lane is not None:
                lane.limit, lane.paused = row.limit, row.paused
                lane.share = row.share or self._config.lanes[row.name].share
        self.wake()

    def wake(self, lane: str | None = None) -> None:
        """Look for work: samples were queued, a dataset was resumed, a limit was raised."""
        for each in self._claim_order:
            if lane is None or each.name == lane:
                each.news()

    def pause(self, lane: str) -> None:
        """Claim no more in a lane; what runs there finishes."""
        self._lanes[lane].paused = True

    def resume(self, lane: str) -> None:
        """Claim again in a lane."""
        self._lanes[lane].paused = False
        self._lanes[lane].news()

    def set_limit(self, lane: str, limit: int) -> None:
        """Set the most requests at once of a lane; what runs over it finishes."""
        self._lanes[lane].limit = limit
        self._lanes[lane].news()

    def drain(self) -> None:
        """Claim no more in any lane; `undrain` takes it back."""
        self._draining = True

    def undrain(self) -> None:
        """Claim again."""
        self._draining = False
        self.wake()

    def in_flight(self, lane: str) -> int:
        """Return the requests of a lane that are at a server."""
        return self._lanes[lane].in_flight

    def expected(self) -> Mapping[str, dict[str, Any]]:
        """Return by dataset how long an answer is expected to be, and from how many."""
        return self._admission.expected.table(self._clock.monotonic())

    @property
    def idle(self) -> bool:
        """Return whether nothing is at a server or on its way to the disk."""
        return not len(self._flights)

    def metrics(self) -> GeneratorMetrics:
        """Return what the status page shows."""
        now = self._clock.monotonic()
        lanes = {name: lane.metrics(now) for name, lane in self._lanes.items()}
        admission = {name: self._admission.view(lane) for name, lane in self._lanes.items()}
        servers = tuple(
            replace(_server_metrics(e), admission=self._admission.server_view(e))
            for e in self._router.endpoints
        )
        started = [f.started_at for e in self._router.endpoints for f in e.flights]
        oldest_s = now - min(started) if started else None
        return GeneratorMetrics(lanes, servers, self._draining, oldest_s, admission)

    # -- lanes

    async def _run_lane(self, lane: Lane) -> None:
        """Claim as many as there are places, whenever there are."""
        while not self._stopping:
            n = self._room(lane)
            if not n:
                await lane.wanted.wait()
                lane.wanted.clear()
                continue
            lane.dry = True  # news that comes during the claim unsets it
            with _reserve(lane, n):
                claims = await self._settler.stored(partial(self._store.claim, lane.name, n))
            if len(claims) == n:
                lane.dry = False
            await self._send(lane, claims)
            if lane.dry:
                self._freed_servers(lane)

    def _room(self, lane: Lane) -> int:
        if self._stopping or self._draining:
            return 0
        reserved = sum(each.reserved for each in self._claim_order)
        at_servers = self._router.room(self._clock.monotonic()) - reserved
        if at_servers <= 0 or not lane.room():
            return 0
        if lane.by_budget:
            share = self._admission.room(lane)
        else:
            counted = [each for each in self._claim_order if not each.by_budget]
            share = quota(lane, counted, self._router.capacity) - lane.in_flight
        return max(0, min(lane.room(), share, at_servers, MAX_CLAIM))

    async def _send(self, lane: Lane, claims: Sequence[Claim]) -> None:
        """Start a flight for each claim; what has no server any more goes back."""
        homeless: list[Fence] = []
        for claim in claims:
            endpoint = self._router.pick(claim.conversation_id, self._clock.monotonic())
            if endpoint is None or self._stopping:
                homeless.append(claim.fence)
            else:
                self._take_off(lane, endpoint, claim)
        if homeless:
            await self._settler.give_back(homeless)
            lane.dry = False

    # -- flights

    def _take_off(self, lane: Lane, endpoint: Endpoint, claim: Claim) -> None:
        rid = self._store.rid(claim.fence)
        max_new = self._max_new(lane, endpoint, claim)
        weight = self._admission.weigh(lane, claim, max_new)
        flight = Flight(claim, rid, weight, self._clock.monotonic())
        slot = Slot(lane, endpoint, flight).__enter__()  # the place is taken from here on
        work = self._fly(lane, self._monitors[endpoint], flight, max_new, slot)
        flight.task = self._flights.spawn(work, rid, slot.release)

    async def _fly(
        self, lane: Lane, monitor: Monitor, flight: Flight, max_new: int, slot: Slot
    ) -> None:
        """Send one request, free its place, and settle what came of it."""
        with slot:
            try:
                request = self._request(flight, max_new)
                reply = await monitor.endpoint.client.generate(request)
            except _EXPECTED as exc:
                error, alone = exc, len(monitor.endpoint.flights) == 1
            else:
                elapsed_s = self._clock.monotonic() - flight.started_at
                flight.n_out, flight.retractions = len(reply.output), reply.retractions
                slot.landed()
                self._freed_servers(lane)
                await self._settler.arrived(lane, monitor, flight, reply, elapsed_s)
                return
            slot.landed()
            self._freed_servers(lane)
            await self._settler.failed(lane, monitor, flight, error, alone=alone)

    def _freed_servers(self, lane: Lane) -> None:
        """Tell the other lanes too: the place may be one at a full server."""
        for other in self._claim_order:
            if other is not lane and other.in_flight < other.target:
                other.freed()

    def _max_new(self, lane: Lane, endpoint: Endpoint, claim: Claim) -> int:
        cap = self._recipe(claim.dataset).sampling.max_new_tokens
        context = endpoint.client.limits.context
        return max_new_for(self._config, lane.name, claim.n_sent, cap, context)

    def _request(self, flight: Flight, max_new: int) -> GenerateRequest:
        claim = flight.claim
        if max_new < 1:
            raise ContentError(
                OutputReason.TOO_LONG_FOR_SERVER,
                f"a prompt of {claim.n_sent} tokens leaves no room for an answer; not sent",
            )
        recipe = self._recipe(claim.dataset)
        return GenerateRequest(
            rid=flight.rid,
            prompt=sent_ids(claim),
            max_new=max_new,
            sampling=recipe.members,
            seed=recipe.sampling.seed_of(claim.uid),
            states=self._config.extract.one_pass,
        )

    def _recipe(self, dataset: str) -> _Recipe:
        recipe = self._recipes.get(dataset)
        if recipe is None:
            sampling = self._sampling(dataset)
            recipe = self._recipes[dataset] = _Recipe(sampling, sampling.json_members())
        return recipe

    # -- servers

    def _meet(self, client: SglangClient) -> Endpoint:
        """Make a server known; nothing is sent before it is watched and its identity checked."""
        generation = self._config.generation
        endpoint = Endpoint(client, generation, self._note, self._clock.monotonic())
        endpoint.watcher = self._admission
        calls = Calls(
            self._servers_changed, self._stuck, self._abort_soon, self._note, self._restart
        )
        self._monitors[endpoint] = Monitor(
            endpoint,
            generation,
            self._clock,
            self._identity,
            vocab_size=self._vocab_size,
            calls=calls,
            capturing=self._config.extract.one_pass,
        )
        self._router.add(endpoint)
        return endpoint

    def _watch(self, endpoint: Endpoint) -> None:
        work = (self._monitors[endpoint].run(), self._admission.watch(endpoint))
        self._watches[endpoint] = [self._watchers.spawn(w, f"watch {endpoint.url}") for w in work]

    def add_server(self, client: SglangClient) -> None:
        """Use one more server, whose client stays the caller's."""
        self._watch(self._meet(client))

    def leave(self, url: str) -> int:
        """Send nothing new to a server; return how many requests run there."""
        endpoint = self._endpoint(url)
        endpoint.leaving = True
        return len(endpoint.flights)

    def stay(self, url: str) -> None:
        """Take `leave` back."""
        self._endpoint(url).leaving = False
        self._servers_changed()

    async def remove_server(self, url: str) -> None:
        """Leave a server, wait until the last outcome from it is stored, and forget it."""
        endpoint = self._endpoint(url)
        endpoint.leaving = True
        while endpoint.flights or endpoint.settling:
            endpoint.at_rest.clear()
            await endpoint.at_rest.wait()
        watches = self._watches.pop(endpoint, [])
        for task in watches:
            task.cancel()
        if watches:
            await asyncio.wait(watches)
        await self._chores.drained(STOP_GRACE_S)  # an abort may still use the client
        self._router.remove(endpoint)
        self._monitors.pop(endpoint)
        self._admission.forget(endpoint)

    def _endpoint(self, url: str) -> Endpoint:
        return next(e for e in self._router.endpoints if e.url == url)

    def _note(self, endpoint: Endpoint, kind: EventKind, detail: str) -> None:
        """Write down that a server changed its state, and look at it and at the lanes again."""
        _log.info("server %s url=%s detail=%s", kind, endpoint.url, printable(detail))
        event = self._write_event(kind, endpoint.url, detail)
        self._chores.spawn(event, f"event {kind}")
        self._servers_changed()

    async def _write_event(self, kind: EventKind, subject: str, detail: str) -> None:
        await self._store.add_event(kind, subject, printable(detail))

    def _servers_changed(self) -> None:
        for endpoint in self._router.endpoints:
            self._admission.known(endpoint)
        for lane in self._claim_order:
            lane.freed()

    def _wake_after(self, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._wake_runners)

    def _wake_runners(self) -> None:
        for lane in self._claim_order:
            lane.wanted.set()

    def _stuck(self, endpoint: Endpoint, *, healthy: bool, probed: bool) -> None:
        """Take everything back from a stuck server; one request alone may be its cause."""
        flights = list(endpoint.flights)
        if len(flights) != 1:
            self._recall(endpoint, "server stuck")
            return
        (flight,) = flights
        seen = Circumstances(healthy, probed, alone=True, tries=0)
        lane = self._lanes[flight.claim.lane]
        self._cancel(endpoint, flights)
        self._chores.spawn(self._settler.hung(lane, flight.claim, seen), "server stuck")

    def _recall(self, endpoint: Endpoint, reason: str) -> int:
        """Abort and give back everything in flight at an endpoint; return how many."""
        flights = list(endpoint.flights)
        if flights:
            self._cancel(endpoint, flights)
            self._chores.spawn(self._give_back([f.claim.fence for f in flights]), reason)
        return len(flights)

    def _cancel(self, endpoint: Endpoint, flights: Sequence[Flight]) -> None:
        for flight in flights:
            if flight.task is not None:
                flight.task.cancel()
            self._monitors[endpoint].left_behind(flight.rid, aborted=True)
        rids = [flight.rid for flight in flights]
        self._chores.spawn(self._abort_all(endpoint, rids), "abort recalled")

    async def _give_back(self, fences: Sequence[Fence]) -> None:
        await self._settler.give_back(fences)
        self.wake()

    def _abort_soon(self, endpoint: Endpoint, rid: str) -> None:
        """Abort one request; if it still has a flight, its own reply then says that it ended."""
        self._chores.spawn(self._abort(endpoint, rid), "abort")

    def _restart(self, url: str, reason: str) -> bool:
        return self.restart_server(url, reason)

    async def _abort_all(self, endpoint: Endpoint, rids: Sequence[str]) -> None:
        await asyncio.gather(*(self._abort(endpoint, rid) for rid in rids))

    async def _abort(self, endpoint: Endpoint, rid: str) -> None:
        """Best effort: a server that cannot be asked has no request worth aborting."""
        async with self._abort_gate:
            with contextlib.suppress(RetryableError):
                await endpoint.client.abort(rid)

    # -- retries

    def _note_retry(self) -> None:
        self._retries.set()

    async def _wake_retries(self) -> None:
        """Queue retries whose time has come; sleeps without a timer while there are none."""
        while True:
            await self._retries.wait()
            await asyncio.sleep(RETRY_TICK_S)
            if await self._store.wake_retries():
                self.wake()
            self._retries.clear()  # before the look, so that one that comes during it is kept
            if await self._retries_wait():
                self._retries.set()

    async def _retries_wait(self) -> bool:
        rows = await self._store.counters()
        return any(row.n for row in rows if row.state is SampleState.RETRY_WAIT)


@contextmanager
def _reserve(lane: Lane, n: int) -> Iterator[None]:
    """Keep places at the servers from the other lanes while a claim is on its way."""
    lane.reserved += n
    try:
        yield
    finally:
        lane.reserved -= n


def _not_ours(_url: str, _reason: str) -> bool:
    """No server was launched by eagled."""
    return False


def _server_metrics(endpoint: Endpoint) -> ServerMetrics:
    return ServerMetrics(
        url=endpoint.url,
        state=endpoint.state.value,
        breaker=endpoint.breaker.value,
        in_flight=len(endpoint.flights),
        in_flight_tokens=endpoint.tokens,
        faults=endpoint.faults,
        stale_resends=endpoint.client.stale_resends,
        fingerprint=endpoint.fingerprint_short,
        version=endpoint.identity.version if endpoint.identity else "",
        model=endpoint.identity.served_name if endpoint.identity else "",
        detail=endpoint.detail,
        leaving=endpoint.leaving,
    )
