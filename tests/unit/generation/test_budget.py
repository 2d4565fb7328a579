"""Shares of lanes, expected lengths, and what a limit costs."""

from __future__ import annotations

import random

import pytest

from eagled.workers.generation.budget import LaneUse, allotments, room
from eagled.workers.generation.cost import SpeedLine
from eagled.workers.generation.expected import GUESS, Expected, bucket


def lane(name: str, share: float, **changes: float) -> LaneUse:
    """Return a hungry lane without a cap."""
    usual: dict[str, float] = {
        "cap": 0, "in_flight": 0, "tokens": 0.0, "weight": 1000.0, "hungry": True,
    }  # fmt: skip
    return LaneUse(name, share, **(usual | changes))  # type: ignore[arg-type] # as named


def test_lanes_with_work_share_by_their_shares() -> None:
    """Two thirds and one third."""
    shares = allotments([lane("a", 2), lane("b", 1)], 90_000)

    assert shares == {"a": 60_000, "b": 30_000}


def test_a_lane_without_work_lends_all_but_what_it_uses() -> None:
    """What still runs there stays its own."""
    idle = lane("b", 1, hungry=False, in_flight=3, tokens=5000.0)

    assert allotments([lane("a", 1), idle], 90_000) == {"a": 85_000, "b": 5000}


def test_a_lane_at_its_cap_lends_the_rest() -> None:
    """Ten requests of 1,000 tokens are all that it can use."""
    assert allotments([lane("a", 1), lane("b", 1, cap=10)], 90_000) == {"a": 80_000, "b": 10_000}


def test_shares_of_random_lanes_add_up() -> None:
    """Nothing is given twice, and nothing is kept from a lane that could use it."""
    rng = random.Random(5)  # noqa: S311 - a workload, not a secret
    for _ in range(200):
        lanes = [
            lane(str(i), rng.uniform(0.1, 3), cap=rng.choice([0, 5, 50]),
                 hungry=rng.random() < 0.7, tokens=float(rng.randrange(9000)))
            for i in range(rng.randrange(1, 5))
        ]  # fmt: skip
        given = allotments(lanes, 100_000)
        hungry = any(x.hungry and not x.cap for x in lanes)

        assert set(given) == {x.name for x in lanes}
        assert sum(given.values()) <= 100_001
        assert not hungry or sum(given.values()) == pytest.approx(100_000)


def test_a_lane_always_has_one() -> None:
    """However small its share: a long prompt must start at some time."""
    assert room(lane("a", 1, weight=50_000.0), allotment=10_000, free=100_000) == 1
    assert room(lane("a", 1, weight=50_000.0, in_flight=1), allotment=10_000, free=100_000) == 0


def test_room_is_the_least_of_share_cap_and_free_tokens() -> None:
    """Rounded to whole requests."""
    one = lane("a", 1, in_flight=2, tokens=2000.0, cap=5)

    assert room(one, allotment=50_000, free=50_000) == 3
    assert room(one, allotment=4000, free=50_000) == 2
    assert room(one, allotment=50_000, free=1000) == 1


# -- lengths


def learn(
    expected: Expected, lengths: list[int], *, dataset: str = "d", n_prompt: int = 100
) -> None:
    """Let requests with answers of these lengths end."""
    for n_out in lengths:
        expected.sent(dataset, n_prompt, 0.0)
        expected.ended(dataset, n_prompt, 0.0, n_out)


def test_before_anything_is_known_there_is_a_guess() -> None:
    """Never more than the request can get."""
    expected = Expected()

    assert expected.of("d", 100, 8192, 0.0) == GUESS
    assert expected.of("d", 100, 64, 0.0) == 64


def test_lengths_are_learned_by_dataset_and_length_of_the_prompt() -> None:
    """Short prompts of one dataset say nothing of another, and little of long prompts."""
    expected = Expected()
    learn(expected, [200] * 500)
    learn(expected, [3000] * 500, n_prompt=5000)
    learn(expected, [50] * 500, dataset="other")

    assert expected.of("d", 120, 8192, 0.0) == pytest.approx(200, rel=0.02)
    assert expected.of("d", 6000, 8192, 0.0) == pytest.approx(3000, rel=0.02)
    assert expected.of("other", 100, 8192, 0.0) == pytest.approx(50, rel=0.1)


def test_early_answers_do_not_make_the_rest_look_short() -> None:
    """Of 100 requests the first 20 ended short; the 80 that still run count with what they made."""
    expected = Expected()
    expected.pace(50.0)
    for _ in range(100):
        expected.sent("d", 100, 0.0)
    for _ in range(20):
        expected.ended("d", 100, 0.0, 100)

    assert expected.of("d", 100, 8192, 20.0) > 3000


def test_a_request_without_an_answer_teaches_nothing() -> None:
    """It only stops running."""
    expected = Expected()
    expected.sent("d", 100, 0.0)
    expected.ended("d", 100, 0.0, None)

    assert expected.of("d", 100, 8192, 9.0) == GUESS


def test_what_was_learned_survives_a_restart() -> None:
    """Over JSON and back; what is not readable is left out."""
    expected, again = Expected(), Expected()
    learn(expected, [200] * 100)
    again.load(expected.to_json())

    assert again.of("d", 100, 8192, 0.0) == expected.of("d", 100, 8192, 0.0)


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"cells": 3}', '{"cells": [["d"], [1]]}'])
def test_damaged_memory_is_no_memory(text: str) -> None:
    """A setting that somebody edited costs the estimate, not the start."""
    expected = Expected()
    expected.load(text)

    assert expected.of("d", 100, 8192, 0.0) == GUESS


def test_a_bucket_is_a_doubling() -> None:
    """And the longest prompts share the last one."""
    assert [bucket(n) for n in (0, 1, 2, 3, 4, 1023, 1024, 1 << 40)] == [0, 1, 2, 2, 3, 10, 11, 23]


# -- cost of a limit


def test_the_cost_of_a_limit_is_read_off_the_line() -> None:
    """A step of 20 ms + 0.04 ms a request: 200 at once lack what 800 would make."""
    line = SpeedLine()
    for i in range(100):
        n = 100 + i
        line.add(n, n / (0.020 + 0.00004 * n))
    want = 1 - (200 / 0.028) / (800 / 0.052)

    assert line.loss(200, 800) == pytest.approx(want, rel=0.01)
    assert line.loss(200, 200) == 0.0


def test_batches_too_much_alike_tell_no_cost() -> None:
    """Then the answer is that it is not known."""
    line = SpeedLine()
    for _ in range(100):
        line.add(200, 5000.0)

    assert line.loss(200, 800) is None
