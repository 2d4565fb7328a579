"""The page on admission says what the rules do, with the numbers that they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.config import Config
from eagled.workers.generation import ladder
from eagled.workers.generation.controller import Reason, Rules

PAGE = (Path(__file__).parents[3] / "docs" / "admission.md").read_text(encoding="utf-8")
RULES = Rules()
LANES = Config.model_fields["lanes"].get_default(call_default_factory=True)


def row(reason: Reason) -> str:
    """Return the page's line on a reason."""
    (line,) = [x for x in PAGE.splitlines() if f"| `{reason.value}` |" in x]
    return line


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_that_a_status_can_show_has_one_line(reason: Reason) -> None:
    """Nothing is shown that the page does not explain."""
    assert row(reason)


@pytest.mark.parametrize(
    ("reason", "number"),
    [
        (Reason.GROW, f"({RULES.bound:.0%} of it)"),
        (Reason.GROW, f"at least {RULES.grow_per_s:.0%} a second"),
        (Reason.QUEUE, f"{RULES.queue_least} at least, {RULES.queue_most} at most"),
        (Reason.QUEUE, {2.0: "in two looks"}[RULES.queue_looks]),
        (Reason.MEMORY, f"{RULES.fill:.0%} full"),
        (Reason.EXPECTED, f"to {RULES.over:.0%}"),
        (Reason.RETRACTION, f"{1 - RULES.cut:.0%} less, no growth for {RULES.hold_s:g} s"),
        (Reason.PLATEAU, f"after {ladder.AGAIN_S / 60:g} minutes"),
        (Reason.SLOWER, {3600.0: "after an hour"}[ladder.RETRY_S]),
    ],
)
def test_the_numbers_are_those_of_the_rules(reason: Reason, number: str) -> None:
    """A constant that is changed is changed on the page."""
    assert number in row(reason)


def test_the_shares_are_the_defaults() -> None:
    """Of the lanes that a configuration has when it names none."""
    shares = {name: lane.share for name, lane in LANES.items()}

    assert f"{shares['short']:g} for `short`, {shares['long']:g} for `long` by default" in PAGE
