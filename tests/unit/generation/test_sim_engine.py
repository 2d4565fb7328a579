"""The simulated engine that admission is judged by: it must keep its own books."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from bench.sim.drive import Constant, run
from bench.sim.engine import Engine
from bench.sim.hosts import MIXED, NAMED, Host, Job, make_jobs, random_host

SMALL = Host("small", kv_tokens=1000, step_s=0.01, per_req_s=0.0, prefill_s=0.0, jitter=0.0)


def job(number: int, n_prompt: int, n_out: int, max_new: int = 100) -> Job:
    """Return one request."""
    return Job(number, "d", "short", n_prompt, max_new, n_out)


def test_one_request_takes_its_prefill_and_its_steps() -> None:
    """900 tokens at 9,000 a second, then one step for each further token."""
    engine = Engine(replace(SMALL, kv_tokens=10_000, per_waiting_s=0.0))
    engine.submit(job(1, 900, 11))

    (ended,) = engine.advance(100.0)

    assert ended.n_out == 11
    assert ended.at_s == pytest.approx(0.1 + 10 * 0.01)
    assert (engine.used, engine.idle) == (0, True)


def test_a_request_that_does_not_fit_waits() -> None:
    """Admission reckons with a whole answer of the new one and 0.7 of those that run."""
    engine = Engine(SMALL)
    for number in range(3):
        engine.submit(job(number, 300, 90))
    engine.advance(0.2)

    assert (len(engine.running), engine.n_waiting) == (2, 1)


def test_bold_admission_ends_in_retraction_and_nothing_is_lost() -> None:
    """When memory runs out the youngest go back, are computed again, and still end whole."""
    engine = Engine(replace(SMALL, conservativeness=0.1, clip=10))
    for number in range(4):
        engine.submit(job(number, 200, 100))
    ended = []
    while not engine.idle:
        ended += engine.advance(engine.now + 1.0)

    assert [e.n_out for e in ended] == [100] * 4
    assert engine.totals.retractions > 0
    assert engine.totals.recomputed > 0
    assert engine.used == 0


def test_an_aborted_request_frees_its_memory() -> None:
    """Whether it runs or waits."""
    engine = Engine(SMALL)
    for number in range(3):
        engine.submit(job(number, 300, 90))
    engine.advance(0.2)

    assert [engine.abort(n) is not None for n in (0, 2, 1, 7)] == [True, True, True, False]
    assert (engine.used, engine.idle) == (0, True)


@pytest.mark.parametrize("seed", range(4))
def test_the_books_balance_on_random_hosts(seed: int) -> None:
    """Each token is made once; memory is never over what the host has, and empty at the end."""
    host, parts = random_host(seed)
    jobs = make_jobs(parts, 400, seed)
    over: list[Engine] = []
    last: list[Engine] = []

    def watch(engine: Engine) -> None:
        last[:] = [engine]
        if engine.used > host.kv_tokens:
            over.append(engine)

    run(host, Constant(deque(jobs), 200), 400, name="c", watch=watch)

    assert over == []
    assert last[0].totals.decoded == sum(j.n_out for j in jobs)
    assert last[0].used == 0


def test_the_named_hosts_are_what_they_are_called() -> None:
    """The small host ignores C above its memory; the flat one gains more than half from it."""
    small, _, flat = NAMED

    def rate(host: Host, at_once: int) -> float:
        jobs = deque(make_jobs(MIXED, 2000, 1))
        return run(host, Constant(jobs, at_once), 2000, name="c").tok_per_s

    assert rate(small, 400) == pytest.approx(rate(small, 150), rel=0.02)
    assert rate(flat, 600) > 1.3 * rate(flat, 150)


def test_the_same_seed_gives_the_same_run() -> None:
    """A run can be repeated to the last digit."""
    host, parts = random_host(3)
    runs = [
        run(host, Constant(deque(make_jobs(parts, 300, 1)), 64), 300, name="c") for _ in range(2)
    ]

    assert runs[0] == runs[1]
