"""Lanes and the length profile: pure functions of counted tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from eagled.artifacts import write_json
from eagled.config import Config
from eagled.lanes import lane_for, longest_prompt, max_new_for, ordered_lanes
from eagled.prepared import PROFILE_NAME
from eagled.profile import join, profile_of, read_profile, table
from tests.faults import fault_file
from tests.prep_kit import toy_config


def _config(tmp_path: Path, min_reply: int = 64, **lanes: int) -> Config:
    sections = {name: {"context": context} for name, context in lanes.items()}
    return toy_config(tmp_path, "x", lanes=sections, generation={"min_reply": min_reply})


@pytest.mark.fault("F39")
def test_the_lane_is_decided_from_prompt_and_smallest_reply(tmp_path: Path) -> None:
    """Prompt + smallest reply over the short context goes to the long lane, unshortened."""
    case = json.loads(fault_file("lanes/mixed_lengths.json").read_text(encoding="utf-8"))
    config = _config(tmp_path, case["min_reply"], short=case["short_limit"], long=0)
    lanes = {n: lane_for(config, n, server_context=None) for n in case["prompt_tokens"]}

    assert {n for n, lane in lanes.items() if lane == "long"} == {9995, 10000, 10001, 60000}
    assert {n for n, lane in lanes.items() if lane == "short"} == {100, 9000}
    assert lane_for(config, 9936, server_context=None) == "short"
    assert lane_for(config, 9937, server_context=None) == "long"
    assert lane_for(config, 60_000, server_context=60_000) is None


def test_lanes_are_ordered_by_context_with_the_open_one_last(tmp_path: Path) -> None:
    """The order in the file does not matter."""
    config = _config(tmp_path, rest=0, big=8000, small=500)

    assert ["small", "big", "rest"] == [name for name, _ in ordered_lanes(config)]
    assert ["small", "big", "rest"] == [
        lane_for(config, n, server_context=None) for n in (436, 437, 7937)
    ]


def test_a_short_server_context_counts(tmp_path: Path) -> None:
    """A lane never promises more than the server has."""
    config = _config(tmp_path, short=1000, long=0)

    assert lane_for(config, 500, server_context=400) is None
    assert lane_for(config, 300, server_context=400) == "short"
    assert max_new_for(config, "short", 300, 8192, 400) == 100


@pytest.mark.parametrize(
    ("lane", "n_prompt", "context", "expected"),
    [("short", 300, None, 700), ("short", 950, None, 50), ("short", 1000, None, 0),
     ("long", 300, None, 800), ("long", 300, 1000, 700), ("long", 1001, 1000, -1)],
)  # fmt: skip
def test_the_answer_gets_what_the_context_leaves(
    tmp_path: Path, lane: str, n_prompt: int, context: int | None, expected: int
) -> None:
    """max_new_tokens is the cap, cut to the lane's and the server's context."""
    config = _config(tmp_path, short=1000, long=0)

    assert expected == max_new_for(config, lane, n_prompt, 800, context)


def test_the_longest_prompt_is_the_longest_lane_or_the_setting(tmp_path: Path) -> None:
    """0 is no limit; a setting wins."""
    assert longest_prompt(_config(tmp_path, short=1000, long=0)) == 0
    assert longest_prompt(_config(tmp_path, short=1000, long=2000)) == 2000 - 64
    config = toy_config(tmp_path, "x", prep={"max_prompt_tokens": 77})
    assert longest_prompt(config) == 77


def test_profile_round_trip_and_quantiles(tmp_path: Path) -> None:
    """Quantiles are exact, the histogram keeps every prompt, and the file gives the same back."""
    profile = profile_of(range(1, 101))
    write_json(tmp_path / PROFILE_NAME, {"prompt_tokens": profile.to_json()})

    assert {0.1: 10, 0.25: 25, 0.5: 50, 0.75: 75, 0.9: 90, 0.95: 95, 0.99: 99, 1.0: 100} == dict(
        profile.quantiles
    )
    assert ((64, 64), (128, 36)) == profile.histogram
    assert profile == read_profile(tmp_path)


def test_joined_profiles_count_everything() -> None:
    """Two datasets together have the sum of prompts and tokens; edges bound the quantiles."""
    rng = random.Random(5)  # noqa: S311 - test data, seeded
    one, two = ([rng.randrange(1, 20_000) for _ in range(n)] for n in (300, 700))
    both, exact = join([profile_of(one), profile_of(two)]), profile_of(one + two)

    assert (both.n, both.total, both.histogram) == (exact.n, exact.total, exact.histogram)
    for share, length in exact.quantiles.items():
        assert length <= both.quantiles[share] < length + 1024


def test_the_table_shows_counts_and_quantiles() -> None:
    """One line a bucket between the shortest and the longest prompt."""
    text = table("d", profile_of([100] * 3 + [600]))

    assert text.splitlines()[0] == "d: 4 prompts, 900 tokens"
    assert "p50 100" in text.splitlines()[1]
    labels = [line.split("  ")[-1] for line in text.splitlines()[2:]]
    assert len(labels) == 3
    assert "≤ 256" in text.splitlines()[2]
    assert "≤ 1,024" in text.splitlines()[4]
