"""The offline estimate walks recorded answers as chain speculation does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from eagled.train.accept import Chain, walk


def hits(*columns: str) -> npt.NDArray[np.bool_]:
    """Return bool [K, n] from one string a row: "1." is a right guess and a wrong one."""
    return np.array([[c == "1" for c in column] for column in columns]).T


def test_steps_begin_behind_what_the_last_one_yielded() -> None:
    """By hand, seven tokens, two guesses: 2 right, then 0 right, then 1 right, then the rest."""
    answer = hits("11", "00", "11", "00", "10", "11", "1.")
    found = walk(answer, 2)

    # start, tokens yielded, guesses tried, guesses right
    assert [(0, 3, 2, 2), (3, 1, 1, 0), (4, 2, 2, 1), (6, 1, 1, 1)] == found
    assert 7 == sum(tokens for _, tokens, _, _ in found)


def test_a_guess_behind_a_wrong_one_counts_for_nothing() -> None:
    """Right at the second position only: every step yields the target's own token alone."""
    found = walk(hits(".1", ".1", ".1", ".."), 2)

    assert [1, 1, 1, 1] == [tokens for _, tokens, _, _ in found]


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("k", [1, 3])
def test_every_token_is_yielded_once(length: int, k: int) -> None:
    """A draft that is always right, and one that never is, yield the answer's tokens exactly."""
    for right in (True, False):
        answer = np.full((k, length), right)
        assert length == sum(tokens for _, tokens, _, _ in walk(answer, k))


def test_the_share_at_a_position_is_of_those_that_got_there() -> None:
    """Two steps: both guesses right, and the first wrong: 1/2 at position 1, 1/1 at position 2."""
    chain = Chain.empty(2)
    chain.add(3, 2, 2)
    chain.add(1, 1, 0)

    assert [0.5, 1.0] == chain.by_position
    assert 2.0 == chain.length


def test_it_is_not_the_product_of_marginals() -> None:
    """Half of all rows are right at once: the product of shares says 1.75, the walk 1.5."""
    answer = hits("11", "11", "11", "00", "00", "00")  # right in the first half, wrong in the other
    found = walk(answer, 2)
    marginal = answer[0].mean()

    assert 6 / len(found) == pytest.approx(6 / 4)
    assert 1 + marginal + marginal**2 == pytest.approx(1.75)
