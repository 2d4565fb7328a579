"""Medians, spreads and verdicts; only what was asked the same is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from eagled.benchmark.acceptance import Speculation
from eagled.benchmark.figures import Gain, Side, Spread, gains, verdict
from eagled.benchmark.measure import Pass
from eagled.errors import ArtifactError

SERVER = {"url": "http://x"}


def made(concurrency: int, rate: float, right: int = 0) -> Pass:
    """Return a pass of 100 seconds at a rate of tokens."""
    spoken = Speculation(10, right, (10 - right, right)) if right else Speculation()
    return Pass(
        concurrency, 8, 100.0, round(100 * rate), (0.1, 0.2), (0.01, 0.02), 1, {"d": spoken}
    )


def side(name: str, rates: Mapping[int, Sequence[float]], digest: str = "w") -> Side:
    """Return a side with so many tokens a second in each run of each concurrency."""
    passes = [made(c, rate) for c, values in rates.items() for rate in values]
    return Side(name, digest, SERVER, passes)


def gain(concurrency: int, low: float, median: float, high: float) -> Gain:
    """Return a gain."""
    return Gain(concurrency, Spread(low, median, high))


def test_a_gain_is_median_over_median_with_the_worst_and_best_pair() -> None:
    """100, 110, 120 without and 150, 165, 180 with: 1.5, from 150/120 to 180/100."""
    found = gains(side("plain", {4: [120, 100, 110]}), side("draft", {4: [165, 150, 180]}))

    assert [4] == [g.concurrency for g in found]
    ratio = found[0].ratio
    assert pytest.approx((1.25, 1.5, 1.8)) == (ratio.low, ratio.median, ratio.high)


@pytest.mark.parametrize(
    ("test", "word"),
    [
        (side("draft", {4: [1]}, digest="other"), "workload"),
        (side("draft", {8: [1]}), "concurrencies"),
    ],
)
def test_what_was_not_asked_the_same_is_not_compared(test: Side, word: str) -> None:
    """Other prompts, template or sampling, or other concurrencies: both values are named."""
    with pytest.raises(ArtifactError, match=word):
        gains(side("plain", {4: [1]}), test)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            [gain(1, 1.3, 1.38, 1.4), gain(32, 1.05, 1.1, 1.2), gain(64, 0.9, 0.97, 0.99)],
            "1.38\u00d7 at C=1, 0.97\u00d7 at C=64: use up to C=32",
        ),
        (
            [gain(1, 1.3, 1.38, 1.4), gain(8, 1.1, 1.2, 1.3)],
            "1.38\u00d7 at C=1, 1.20\u00d7 at C=8: faster at every concurrency that was measured",
        ),
        ([gain(1, 0.8, 0.91, 0.95)],
         "0.91\u00d7 at C=1: no faster than without a draft at any concurrency; do not use it"),
        (
            [gain(1, 0.9, 1.02, 1.1)],
            "1.02\u00d7 at C=1: no difference beyond the spread of the runs",
        ),
        (
            [gain(1, 0.9, 0.95, 0.99), gain(8, 1.1, 1.2, 1.3), gain(32, 0.8, 0.9, 0.95)],
            "0.95\u00d7 at C=1, 0.90\u00d7 at C=32: use at C=8 only",
        ),
        (
            [gain(1, 1.1, 1.2, 1.3), gain(8, 0.9, 1.01, 1.1)],
            "1.20\u00d7 at C=1, 1.01\u00d7 at C=8: use up to C=1",
        ),
    ],
)  # fmt: skip
def test_the_verdict_is_one_sentence(found: list[Gain], text: str) -> None:
    """It names numbers and what to do; a difference within the spread is none."""
    assert text == verdict(found)


def test_one_run_has_no_spread_and_the_verdict_says_so() -> None:
    """Nothing is called a gain for certain that was measured once."""
    found = gains(side("plain", {1: [100]}), side("draft", {1: [109]}))

    assert verdict(found).endswith("; measured once, so the spread is not known")


def test_a_side_is_read_back_as_it_was_written() -> None:
    """Passes, counts by data set and notes survive JSON."""
    ours = Side("draft", "w", SERVER, [made(1, 50, right=4)], (3, 4), ("a note",))
    again = Side.from_dict(ours.to_dict())

    assert ours == again
    assert Speculation(10, 4, (6, 4)) == again.by_set["d"]
