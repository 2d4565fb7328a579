"""Lanes, endpoints, routing, rates and blame, without I/O."""

from __future__ import annotations

import pytest

from eagled.config import GenerationConfig, LaneConfig, ServerConfig
from eagled.errors import (
    ArtifactError,
    AuthError,
    EagledError,
    ReplyBrokenError,
    RequestAbortedError,
    RequestRejectedError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnavailableError,
)
from eagled.server.client import SglangClient
from eagled.server.wire import ConnectionLostError, NoConnectionError, ReplyCutError
from eagled.tokens import pack_ids
from eagled.types import Claim, EventKind, Fence, SampleState
from eagled.workers.generation.endpoint import NO_CAP, Breaker, Endpoint, EndpointState, Flight
from eagled.workers.generation.lane import Lane, Slot, quota
from eagled.workers.generation.policy import (
    SUSPECT_TRIES,
    Action,
    Blame,
    Circumstances,
    Decision,
    decide,
)
from eagled.workers.generation.rates import Rates
from eagled.workers.generation.router import Router

CONFIG = GenerationConfig(breaker_failures=3)


def make_endpoint(
    port: int = 1, events: list[tuple[EventKind, str]] | None = None, *, up: bool = True
) -> Endpoint:
    """Return an endpoint without a server, up unless said otherwise."""
    log = [] if events is None else events
    client = SglangClient(ServerConfig(url=f"http://h:{port}"), CONFIG, vocab_size=10)
    endpoint = Endpoint(client, CONFIG, lambda _, kind, text: log.append((kind, text)), 0.0)
    if up:
        endpoint.close("up")
    return endpoint


def make_flight(number: int = 1, tokens: int = 100) -> Flight:
    """Return a flight of a claim of its own conversation."""
    claim = Claim(Fence(number, 1, 1), b"u", "d", "l", 0, number, pack_ids([1]))
    return Flight(claim, f"r{number}", tokens, 0.0)


def make_lane(name: str = "l", **config: int) -> Lane:
    """Return a lane."""
    return Lane(name, LaneConfig.model_validate(config), 0.0)


# -- lanes


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ({"limit": 200, "seed": 150}, 150),
        ({"limit": 100, "seed": 150}, 100),
        ({"limit": 200, "concurrency": 180}, 180),
        ({"limit": 0, "concurrency": 500}, 500),
        ({"limit": 0, "seed": 8}, 8),
    ],
)
def test_the_target_is_the_least_of_limit_and_concurrency(
    config: dict[str, int], target: int
) -> None:
    """The limit is a hard ceiling; auto is its seed; limit 0 leaves the ceiling to the server."""
    assert Lane("l", LaneConfig.model_validate(config), 0.0).target == target


def test_a_slot_counts_once_however_it_ends() -> None:
    """Taken, landed, released, released again: in flight and settling end at zero."""
    lane, endpoint, flight = make_lane(limit=2, concurrency=2), make_endpoint(), make_flight()
    seen = []
    with Slot(lane, endpoint, flight) as slot:
        seen.append((lane.in_flight, lane.settling, endpoint.tokens))
        slot.landed()
        seen.append((lane.in_flight, lane.settling, endpoint.tokens))
    slot.release()
    seen.append((lane.in_flight, lane.settling, endpoint.tokens))

    assert seen == [(1, 0, 100), (0, 1, 0), (0, 0, 0)]
    assert not endpoint.flights


def test_outcomes_that_wait_for_the_disk_are_bounded() -> None:
    """A lane stops claiming when too many replies are not on disk yet."""
    lane = make_lane(limit=10, concurrency=10)
    lane.settling = 2 * 10 + 64

    assert lane.room() == 0


def test_a_dry_lane_wants_nothing_until_there_is_news() -> None:
    """Freed places do not wake a lane without work; news does."""
    lane = make_lane(limit=2, concurrency=2)
    lane.dry = True
    lane.freed()
    before = (lane.room(), lane.wanted.is_set())
    lane.news()

    assert before == (0, False)
    assert (lane.room(), lane.wanted.is_set()) == (2, True)


def test_lanes_share_a_small_server_in_proportion() -> None:
    """Each gets its share of the places, at least one; all of them are given out."""
    short, long = make_lane("s", limit=200, seed=150), make_lane("l", limit=16, seed=10)
    lanes = [long, short]

    assert [quota(lane, lanes, 1000) for lane in lanes] == [10, 150]
    assert [quota(lane, lanes, 80) for lane in lanes] == [5, 75]
    assert [quota(lane, lanes, 8) for lane in lanes] == [1, 7]
    short.dry = True
    assert quota(long, lanes, 8) == 8


# -- endpoints


def test_the_breaker_opens_after_faults_in_a_row_only() -> None:
    """A success between faults starts the count anew."""
    events: list[tuple[EventKind, str]] = []
    endpoint = make_endpoint(events=events)
    for fault in (True, True, False, True, True):
        if fault:
            endpoint.faulted("boom")
        else:
            endpoint.succeeded(1.0, 1.0)
    before = endpoint.breaker
    endpoint.faulted("boom")

    assert (before, endpoint.breaker) == (Breaker.CLOSED, Breaker.OPEN)
    assert [kind for kind, _ in events] == [EventKind.SERVER_UP, EventKind.SERVER_DOWN]
    assert endpoint.room(2.0) == 0


def test_a_trial_takes_one_request_and_decides() -> None:
    """Half open has room for one; its failure opens again, its success closes."""
    endpoint = make_endpoint()
    endpoint.open(EndpointState.DOWN, "x")
    endpoint.half_open("back")
    room = endpoint.room(0.0)
    endpoint.faulted("still bad")
    lost = (endpoint.breaker, endpoint.state, endpoint.trials_lost)
    endpoint.half_open("back")
    endpoint.succeeded(1.0, 1.0)

    assert room == 1
    assert lost == (Breaker.OPEN, EndpointState.DOWN, 1)
    assert (endpoint.breaker, endpoint.state) == (Breaker.CLOSED, EndpointState.UP)
    assert endpoint.room(2.0) == NO_CAP


def test_stuck_is_shown_until_a_trial_succeeds() -> None:
    """A server on trial after a hang still shows as stuck."""
    endpoint = make_endpoint()
    endpoint.open(EndpointState.STUCK, "x")
    endpoint.half_open("back")
    shown = endpoint.state
    endpoint.progressed(1.0)

    assert (shown, endpoint.state) == (EndpointState.STUCK, EndpointState.UP)


def test_pressure_narrows_and_success_widens_again() -> None:
    """After a sign of pressure fewer are sent; enough successes lift the cap."""
    lane, endpoint = make_lane(limit=100, concurrency=100), make_endpoint()
    flights = [make_flight(i) for i in range(19)]
    slots = [Slot(lane, endpoint, flight).__enter__() for flight in flights]
    endpoint.pressured(0.0, 5.0, "full")
    narrowed, held = endpoint.capacity, endpoint.room(4.0)
    for slot in slots:
        slot.release()
    for _ in range(16 * 20):
        endpoint.succeeded(6.0, 1.0)

    assert (narrowed, held) == (17, 0)
    assert endpoint.capacity == NO_CAP


def test_a_server_that_is_only_ever_busy_is_down() -> None:
    """Refused three times with nothing running there, it is closed; a working one is not."""
    lane, idle, working = make_lane(limit=9, concurrency=9), make_endpoint(1), make_endpoint(2)
    Slot(lane, working, make_flight()).__enter__()
    for endpoint in (idle, working):
        for _ in range(3):
            endpoint.pressured(0.0, None, "full")

    assert (idle.state, working.state) == (EndpointState.DOWN, EndpointState.UP)


# -- routing


def test_the_server_with_the_fewest_tokens_is_chosen_and_kept() -> None:
    """A conversation stays where it began, while that server has room."""
    lane = make_lane(limit=100, concurrency=100)
    first, second = make_endpoint(1), make_endpoint(2)
    router = Router([first, second])
    Slot(lane, first, make_flight(1, tokens=500)).__enter__()
    Slot(lane, second, make_flight(2, tokens=100)).__enter__()
    Slot(lane, second, make_flight(3, tokens=100)).__enter__()
    chosen = router.pick(77, 0.0)
    Slot(lane, second, make_flight(4, tokens=9000)).__enter__()
    again, other = router.pick(77, 0.0), router.pick(78, 0.0)
    second.open(EndpointState.DOWN, "x")
    moved = router.pick(77, 0.0)
    first.open(EndpointState.DOWN, "x")

    assert [chosen, again, other, moved] == [second, second, first, first]
    assert router.pick(77, 0.0) is None


# -- rates


def test_rates_are_over_the_last_minute() -> None:
    """Tokens older than sixty seconds no longer count; percentiles are over completions."""
    rates = Rates(0.0)
    for second in range(100):
        rates.record(float(second), 10, 5, elapsed_s=float(second))
    tokens_in, tokens_out = rates.per_second(100.0)

    assert rates.completions == 100
    assert abs(tokens_in - 10) < 0.3
    assert abs(tokens_out - 5) < 0.15
    assert (rates.percentile(0.5), rates.percentile(0.95)) == (50.0, 95.0)
    assert rates.per_second(500.0) == (0.0, 0.0)


def test_nothing_done_has_no_percentile() -> None:
    """Without a completion a latency is unknown, not zero."""
    assert Rates(0.0).percentile(0.5) is None


# -- blame


def seen(*, healthy: bool = True, alone: bool = False, tries: int = 1) -> Circumstances:
    """Return circumstances."""
    return Circumstances(healthy, probed=False, alone=alone, tries=tries)


@pytest.mark.parametrize(
    ("error", "circumstances", "decision"),
    [
        (
            RequestRejectedError("refused_by_server"),
            seen(),
            Decision(Action.FINAL, Blame.NONE, charge=True, final=SampleState.REJECTED),
        ),
        (ArtifactError("damaged"), seen(), Decision(Action.FINAL, Blame.NONE, charge=True)),
        (AuthError(), seen(), Decision(Action.GIVE_BACK, Blame.REFUSE)),
        (ServerBusyError("full"), seen(tries=99), Decision(Action.GIVE_BACK, Blame.PRESSURE)),
        (NoConnectionError(), seen(tries=99), Decision(Action.GIVE_BACK, Blame.LOST)),
        (ServerUnavailableError(), seen(), Decision(Action.RETRY, Blame.FAULT)),
        (ConnectionLostError(), seen(), Decision(Action.RETRY, Blame.LOST)),
        (ReplyCutError(), seen(), Decision(Action.RETRY, Blame.LOST, charge=True)),
        (ReplyBrokenError(), seen(), Decision(Action.RETRY, Blame.FAULT, charge=True)),
        (ReplyBrokenError(), seen(healthy=False), Decision(Action.RETRY, Blame.FAULT)),
        (ServerTimeoutError(), seen(), Decision(Action.RETRY, Blame.FAULT, charge=True)),
        (RequestAbortedError(), seen(), Decision(Action.RETRY, Blame.PRESSURE)),
        (
            RequestAbortedError(),
            seen(alone=True),
            Decision(Action.RETRY, Blame.PRESSURE, charge=True),
        ),
        (
            ServerUnavailableError(),
            seen(tries=SUSPECT_TRIES),
            Decision(Action.RETRY, Blame.FAULT, charge=True),
        ),
        (
            ServerUnavailableError(),
            seen(tries=SUSPECT_TRIES, healthy=False),
            Decision(Action.RETRY, Blame.FAULT),
        ),
    ],
)
def test_each_error_has_its_consequence(
    error: EagledError, circumstances: Circumstances, decision: Decision
) -> None:
    """The class of the error and the circumstances decide; no text does."""
    assert decide(error, circumstances) == decision
