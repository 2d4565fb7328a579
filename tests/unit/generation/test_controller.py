"""The admission controller: pure, so every rule is shown on observations made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.sim.auto import Auto
from bench.sim.drive import run
from bench.sim.engine import Engine
from bench.sim.hosts import MIXED, NAMED, make_jobs, random_host
from eagled.workers.generation.controller import (
    Observation,
    Reason,
    Rules,
    State,
    begin,
    new_retractions,
    step,
)

RULES = Rules()
WEIGHT = 1000.0


def look(at_s: float = 1.0, **changes: float | None) -> Observation:
    """Return a look at a server of a million tokens with 100 requests, all of them running."""
    usual: dict[str, float | None] = {
        "in_flight": 100,
        "tokens": 100 * WEIGHT,
        "sent": 100,
        "ended": 0,
        "retracted": 0,
        "more": True,
        "running": 100,
        "waiting": 0,
        "used_tokens": 100_000,
        "total_tokens": 1_000_000,
        "tok_per_s": 2000.0,
    }
    return Observation(at_s=at_s, **(usual | changes))  # type: ignore[arg-type] # as named


def after(*looks: Observation, budget: float = 100 * WEIGHT) -> State:
    """Return the state after these looks."""
    state = begin(budget, RULES)
    for seen in looks:
        state = step(state, seen, RULES)
    return state


def test_the_same_looks_give_the_same_decision() -> None:
    """Nothing but state and observation decides."""
    looks = [look(float(i), waiting=i % 5, sent=100 + i) for i in range(20)]

    assert after(*looks) == after(*looks)


def test_a_hungry_server_gets_more() -> None:
    """Nothing waits there, its memory is free, and the budget is used up: grow."""
    state = after(look())

    assert state.reason is Reason.GROW
    assert state.budget >= 104 * WEIGHT


def test_without_more_work_nothing_grows() -> None:
    """A budget that is not used up says nothing about the server."""
    state = after(look(in_flight=10, tokens=10 * WEIGHT, running=10, more=False))

    assert (state.budget, state.reason) == (100 * WEIGHT, Reason.DEMAND)


def test_a_long_queue_at_the_server_is_let_run_down() -> None:
    """What waits there beyond a few is not replaced."""
    state = after(look(running=60, waiting=40))

    assert state.reason is Reason.QUEUE
    assert state.budget == pytest.approx((100 - 40 + RULES.queue_least) * WEIGHT)


def test_a_short_queue_is_kept() -> None:
    """A few that wait keep every place busy; that is as it should be."""
    state = after(look(running=96, waiting=4))

    assert (state.budget, state.reason) == (100 * WEIGHT, Reason.QUEUE)


def test_a_nearly_full_cache_gets_less() -> None:
    """Above the fill that is allowed, what ends is not replaced until it is below."""
    state = after(look(used_tokens=980_000))

    assert state.reason is Reason.MEMORY
    assert state.budget == pytest.approx(100 * WEIGHT - 30_000)


def test_what_is_expected_to_fill_the_cache_is_enough() -> None:
    """Fresh requests hold little yet; what they will hold counts."""
    seen = look(in_flight=1000, tokens=1_100_000.0, running=1000, sent=1000, used_tokens=300_000)

    assert after(seen, budget=1_100_000).reason is Reason.EXPECTED


def test_a_retraction_cuts_and_holds() -> None:
    """The queue grew by more than was sent: requests were thrown out."""
    before = after(look(1.0))
    cut = step(before, look(2.0, running=90, waiting=10), RULES)
    held = step(cut, look(3.0, running=100, tokens=cut.budget), RULES)

    assert cut.reason is Reason.RETRACTION
    assert cut.budget == pytest.approx(RULES.cut * 100 * WEIGHT)
    assert (held.budget, held.reason) == (cut.budget, Reason.RETRACTION)
    assert (cut.fill, cut.over) < (before.fill, before.over)


def test_caution_fades() -> None:
    """Without another retraction the allowance comes back to what it was."""
    state = after(look(1.0), look(2.0, running=90, waiting=10))
    for i in range(3, 400):
        state = step(state, look(float(i), running=100), RULES)

    assert (state.fill, state.over) == (RULES.fill, RULES.over)


@pytest.mark.parametrize(
    ("changes", "thrown"),
    [
        ({"waiting": 10, "running": 90}, 10),
        ({"waiting": 10, "running": 90, "sent": 110, "in_flight": 110}, 0),
        ({"waiting": 0, "retracted": 3}, 3),
        ({"waiting": 50, "running": 100}, 0),  # more than ours: somebody else uses the server
    ],
)
def test_retractions_are_counted_from_the_queue_and_from_replies(
    changes: dict[str, float], thrown: int
) -> None:
    """A queue grows by what is sent and by what is thrown out; others' requests prove nothing."""
    assert new_retractions(after(look(1.0)), look(2.0, **changes)) == thrown


def test_late_news_of_a_noticed_retraction_is_no_second_one() -> None:
    """The replies of requests that were thrown out tell it when they end."""
    state = after(look(1.0), look(2.0, running=90, waiting=10))

    assert new_retractions(state, look(3.0, running=90, waiting=10, retracted=10)) == 0


def test_without_load_the_budget_stands() -> None:
    """A server that tells nothing is not steered."""
    state = after(look(running=None))

    assert (state.budget, state.reason) == (100 * WEIGHT, Reason.BLIND)


def test_the_servers_own_maximum_leaves_a_short_queue() -> None:
    """More than can run and a few would only wait."""
    assert after(look(max_running=64)).places == 64 + RULES.queue_least


def test_a_narrow_batch_is_kept_where_it_is_faster() -> None:
    """Beyond the CUDA graphs the server is slower: that is tried, then kept."""
    state = begin(200 * WEIGHT, RULES)
    seen = look(in_flight=200, tokens=200 * WEIGHT, running=200, graphs=160, sent=200)
    for i in range(400):
        n = min(200, state.places or 200)
        speed = 2600.0 if n <= 160 else 2200.0
        seen = replace(
            seen, at_s=float(i), in_flight=n, running=n, tokens=n * WEIGHT,
            ended=400 + i, sent=400 + i + n, tok_per_s=speed + i % 7,
        )  # fmt: skip
        state = step(state, seen, RULES)

    assert (state.places, state.reason) == (160, Reason.SLOWER)


def test_a_narrow_batch_that_is_no_faster_is_given_up() -> None:
    """The same with a server that loses nothing there."""
    state = begin(200 * WEIGHT, RULES)
    seen = look(graphs=160)
    for i in range(400):
        n = min(200, state.places or 200)
        seen = replace(
            seen, at_s=float(i), in_flight=n, running=n, tokens=n * WEIGHT,
            ended=400 + i, sent=400 + i + n, tok_per_s=11.0 * n + i % 7,
        )  # fmt: skip
        state = step(state, seen, RULES)

    assert state.places == 0


def test_growth_stops_at_the_plateau() -> None:
    """A server that is no faster with more, and has memory to spare, is not given ever more."""
    state = begin(100 * WEIGHT, RULES)
    seen = look(used_tokens=1000)
    for i in range(1500):
        n = int(min(state.budget / WEIGHT, state.places or 1 << 30))
        seen = replace(
            seen, at_s=float(i), in_flight=n, running=n, tokens=n * WEIGHT, ended=10_000 + i,
            sent=10_000 + i + n, tok_per_s=2000.0 + i % 3, used_tokens=1000,
            total_tokens=100_000_000,
        )  # fmt: skip
        state = step(state, seen, RULES)
        if state.reason is Reason.PLATEAU:
            break

    assert state.reason is Reason.PLATEAU
    assert state.places > 0


def test_a_plateau_never_takes_away_what_is_in_flight() -> None:
    """Quick answers: few run at each look, by chance more or fewer, and speed stays the same."""
    state = begin(100 * WEIGHT, RULES)
    for i in range(600):
        seen = look(
            float(i), in_flight=12, tokens=12 * WEIGHT, running=1 + i % 5, used_tokens=3000,
            sent=1000 + i, ended=988 + i, tok_per_s=300.0 + i % 3,
        )  # fmt: skip
        state = step(state, seen, RULES)

        assert state.places == 0 or state.places >= 12


# -- on simulated servers


def simulated(number: int | None, n_jobs: int = 1500) -> tuple[Auto, list[int], float]:
    """Return the policy after a run, the server's queue at each look, and the recomputed share."""
    host, parts = (NAMED[0], MIXED) if number is None else random_host(number)
    queues: list[int] = []

    def watch(engine: Engine) -> None:
        queues.append(engine.n_waiting)

    auto = Auto.of(make_jobs(parts, n_jobs, 1))
    result = run(host, auto, n_jobs, name="auto", watch=watch)
    return auto, queues, result.recomputed_share


def test_the_queue_at_a_small_server_stays_short() -> None:
    """Most of the time a handful waits there, although 1,500 requests want in."""
    _, queues, _ = simulated(None)
    queues.sort()

    assert queues[len(queues) // 2] <= 8
    assert queues[int(0.95 * len(queues))] <= 32


def test_a_server_of_bold_admission_is_held_below_its_limit() -> None:
    """Where the server alone recomputes 2.7%, the controller keeps it below 1%."""
    _, _, recomputed = simulated(6, 3000)

    assert recomputed < 0.01


def test_long_work_runs_from_the_start() -> None:
    """Both lanes are served from the first seconds on."""
    host, parts = random_host(10)
    assert {part.lane for part in parts} == {"short", "long"}
    auto = Auto.of(make_jobs(parts, 1500, 1))
    early: list[int] = []

    def watch(engine: Engine) -> None:
        if engine.now < 30:
            early.append(min(lane.in_flight for lane in auto.lanes))

    run(host, auto, 1500, name="auto", watch=watch)

    assert max(early) > 0
