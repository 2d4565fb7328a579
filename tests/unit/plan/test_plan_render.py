"""A plan says what was measured, and says so where nothing was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eagled.plan_render import (
    NOT_MEASURED,
    ByteFacts,
    DatasetFacts,
    PhaseFacts,
    PlanFacts,
    Span,
    human_bytes,
    human_span,
    human_time,
    render_plan,
)
from eagled.plan_risks import RiskFacts, find_risks

FACTS = PlanFacts(
    run="night",
    target=(("model", "m"),),
    phases=(
        PhaseFacts("generate", "running", "10", "90", Span(30, 60, 90), "`eagled run`"),
        PhaseFacts("merge", "not started", "0", "10", Span(), "`eagled merge`"),
    ),
    datasets=(DatasetFacts("a|b", "regenerate", 5, 4, 1, 6, 3, 1, 120.4, None),),
    tokens=(("supervised tokens", "1,000"),),
    disk=ByteFacts(43_008, 14_336, None, 0, None, None, None, 1000),
    decisions=(("layers (boundaries)", "2, 30, 58"),),
)
RISKS = RiskFacts(
    samples=200_000,
    done=100,
    failed=0,
    rows=100,
    rejected_rows=0,
    unprepared=(),
    greedy=False,
    cut_answers=0,
    answers=100,
    holdout_rows=2,
    disk_short=0,
    coverage={"a": 0.999},
    speculative=(),
)


@pytest.mark.parametrize(
    ("n", "text"),
    [(None, NOT_MEASURED), (0, "0 B"), (999, "999 B"), (9_044_582_400_000, "9.04 TB")],
)
def test_bytes_have_decimal_units(n: float | None, text: str) -> None:
    """9.04 TB are the three Kimi-K2.5 boundaries of 100,000 samples of 2,103 tokens."""
    assert text == human_bytes(n)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, NOT_MEASURED), (59.4, "59 s"), (61, "1 min 01 s"), (67_680, "18 h 48 min")],
)
def test_durations(seconds: float | None, text: str) -> None:
    """Hours and minutes, as a person says them."""
    assert text == human_time(seconds)


def test_range_is_shown_only_when_there_is_one() -> None:
    """No range is invented around a single number."""
    assert "1 min 00 s (30 s to 1 min 30 s)" == human_span(Span(30, 60, 90))
    assert "1 min 00 s" == human_span(Span(mid_s=60))


def test_unknown_numbers_are_said_to_be_unknown() -> None:
    """A plan before the first shard has no made-up bytes and times."""
    text = render_plan(FACTS, 3)

    assert text.startswith("# Train plan v3: night\n")
    assert "| bytes measured a token, all in | not measured yet |" in text
    assert "| merge | not started | 0 | 10 | not measured yet | `eagled merge` |" in text


def test_same_facts_same_bytes_and_cells_stay_cells() -> None:
    """Nothing in a dataset's name breaks the table."""
    assert render_plan(FACTS, 1) == render_plan(replace(FACTS), 1)
    assert "| a\\|b | regenerate | 5 | 4 | 1 | 6 | 3 | 1 | 120 | not measured yet |" in render_plan(
        FACTS, 1
    )


def test_no_risk_is_invented() -> None:
    """A run with nothing wrong has an empty list."""
    assert () == find_risks(RISKS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"samples": 10_000}, "10,000 samples are few"),
        ({"greedy": True}, "Greedy"),
        ({"cut_answers": 35}, "35% of the answers were cut"),
        ({"holdout_rows": 0}, "held out"),
        ({"disk_short": 5_000_000_000}, "5 GB short"),
        ({"coverage": {"a": 0.97}}, "97.0% of a"),
        ({"failed": 50}, "33% of the samples were given up"),
        ({"rejected_rows": 30}, "30% of the dataset rows"),
        ({"unprepared": ("b",)}, "eagled prep b"),
    ],
)
def test_each_past_failure_is_a_risk(change: dict[str, object], word: str) -> None:
    """What ended earlier attempts is named before it costs days."""
    found = find_risks(replace(RISKS, **change))  # type: ignore[arg-type]  # one field each

    assert 1 == len(found)
    assert word in found[0]
