"""What a cut between the lanes costs: small examples worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.config import Config
from eagled.cuts import Capacity, Cut, cut_cost, cuts, proposed
from eagled.errors import ArtifactError
from eagled.profile import join, profile_of
from tests.prep_kit import toy_config

LENGTHS = profile_of([128] * 90 + [2048] * 8 + [12_288] * 2)


def _config(tmp_path: Path, **lanes: dict[str, int]) -> Config:
    lanes = lanes or {"short": {"context": 10_000, "limit": 200}, "long": {"limit": 4}}
    return toy_config(tmp_path, "x", lanes=lanes, generation={"min_reply": 100})


def test_a_cut_counts_prompts_room_and_waves(tmp_path: Path) -> None:
    """100 prompts, KV for 20,000 tokens: 20 short and 1 long at a time give 4.5 + 10 waves."""
    cut = cut_cost(LENGTHS, _config(tmp_path), 1000, Capacity(20_000, 16_000), 500)

    expected = Cut(
        context=1000, short=90, long=10, none=0, short_tokens=90 * 128,
        long_tokens=8 * 2048 + 2 * 12_288, tight=0, short_at_once=20, long_at_once=1, waves=14.5,
    )  # fmt: skip
    assert expected == cut


def test_prompts_that_fit_no_lane_and_tight_answers_are_counted(tmp_path: Path) -> None:
    """A server of 8,000 tokens takes no prompt of 12,288; 2,048 + 500 does not fit into 2,200."""
    cut = cut_cost(LENGTHS, _config(tmp_path), 2200, Capacity(None, 8000), 500)

    assert (98, 0, 2, 8, None, None) == (
        cut.short, cut.long, cut.none, cut.tight, cut.short_at_once, cut.waves,
    )  # fmt: skip


def test_the_lane_limit_bounds_what_runs_at_once(tmp_path: Path) -> None:
    """Much KV memory does not raise a limit."""
    config = _config(tmp_path, short={"context": 1000, "limit": 8}, long={"limit": 2})
    cut = cut_cost(LENGTHS, config, 1000, Capacity(10_000_000, 20_000), 500)

    assert (8, 2, 90 / 8 + 10 / 2) == (cut.short_at_once, cut.long_at_once, cut.waves)


def test_the_proposal_has_the_fewest_waves(tmp_path: Path) -> None:
    """Among cuts that leave answers their room, nothing beats the proposed one."""
    config = _config(tmp_path)
    found = cuts(LENGTHS, config, Capacity(400_000, 16_000), 500)
    best = proposed(found)
    roomy = [cut for cut in found if cut.tight <= 0.05 * cut.short]

    assert 10_000 in [cut.context for cut in found]
    assert [cut.context for cut in found] == sorted({cut.context for cut in found})
    assert best.waves == min(cut.waves for cut in roomy if cut.waves is not None)
    assert best.context < 10_000


def test_scarce_memory_wants_a_small_cut_and_limits_a_large_one(tmp_path: Path) -> None:
    """With memory for all, only the limits count: one lane of 200 makes 100 answers in half a wave.

    With memory for 20,000 tokens, 20 short ones at once are worth ten long ones in a row.
    """
    config = _config(tmp_path)
    scarce, rich = (
        proposed(cuts(LENGTHS, config, Capacity(kv_tokens, 16_000), 500))
        for kv_tokens in (20_000, 4_000_000)
    )

    assert ((1000, 14.5), (13_000, 0.5)) == (
        (scarce.context, scarce.waves), (rich.context, rich.waves),
    )  # fmt: skip


def test_without_a_server_the_cut_takes_most_prompts(tmp_path: Path) -> None:
    """95% of the prompts and the answer fit; it is a round number."""
    config = _config(tmp_path)
    found = cuts(profile_of([100] * 96 + [30_000] * 4), config, Capacity(), 100)

    assert 500 == proposed(found).context
    assert proposed(found).waves is None


def test_no_prompts_is_an_error(tmp_path: Path) -> None:
    """There is nothing to propose."""
    with pytest.raises(ArtifactError, match="eagled prep"):
        proposed(cuts(join([]), _config(tmp_path), Capacity(), 100))
