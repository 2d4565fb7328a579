"""Accepted length and right guesses are two numbers with two names."""

from __future__ import annotations

import json

import pytest

from eagled.benchmark.acceptance import DEFINITION, Speculation, speculation_of, total
from tests.faults import fault_file, fault_row


@pytest.mark.fault("F93")
def test_the_targets_own_token_is_counted_and_the_other_number_has_another_name() -> None:
    """2.10 tokens a verify step, 1.10 right guesses a step; the definition says which is which."""
    given = json.loads(fault_file("bench/accept.json").read_text(encoding="utf-8"))
    found = Speculation(given["verify_steps"], given["draft_tokens_accepted"])
    values = found.to_dict()

    assert "2.10" in fault_row("F93")["expect"]
    assert pytest.approx(given["output_tokens"] / given["verify_steps"]) == found.length
    assert (2.1, 1.1) == (values["accepted_length"], values["right_guesses_a_step"])
    assert "the target's own token counted" in DEFINITION


def test_shares_by_position_come_from_the_histogram() -> None:
    """Of 10 steps 6 had a first right guess, of those 3 a second, of those 1 a third."""
    found = Speculation(10, 6 + 3 + 1, (4, 3, 2, 1))

    assert pytest.approx([6 / 10, 3 / 6, 1 / 3]) == found.by_position


def test_positions_that_no_step_reached_have_no_share() -> None:
    """Zeros at the end of a histogram: the first of them is a share of 0, the others are none."""
    assert [0.5, 0.0] == Speculation(4, 2, (2, 2, 0, 0)).by_position
    assert [] == Speculation(0, 0, (0, 0)).by_position


def test_sums_keep_histograms_of_different_lengths() -> None:
    """A request whose best step had one right guess has a shorter histogram."""
    parts = [Speculation(3, 1, (2, 1)), Speculation(2, 4, (0, 1, 0, 1)), Speculation()]

    assert Speculation(5, 5, (2, 2, 0, 1)) == total(parts)


def test_an_answer_without_a_verify_step_has_no_length() -> None:
    """The fields are absent there; nothing is divided by zero and nothing is called 1.00."""
    found = speculation_of({"completion_tokens": 1})

    assert (None, None, []) == (found.length, found.right_guesses, found.by_position)


def test_the_servers_own_length_is_not_taken() -> None:
    """`spec_accept_length` counts the prefill's token: 7 tokens, 3 steps, 3 right are 2.00."""
    meta = {"completion_tokens": 7, "spec_accept_length": 7 / 3, "spec_verify_ct": 3,
            "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [1, 1, 1]}  # fmt: skip

    assert pytest.approx(2.0) == speculation_of(meta).length


def test_a_stored_one_is_read_back() -> None:
    """JSON and back is the same."""
    found = Speculation(5, 4, (2, 2, 1))

    assert found == Speculation.from_dict(found.to_dict())
