"""Who is to blame when workers die."""

from __future__ import annotations

from eagled.control.suspects import MOST_DEATHS, Suspects


def _same(sample: int) -> int:
    return sample


def test_a_batch_is_tried_one_by_one_and_only_the_guilty_is_given_up() -> None:
    """Of ten in hand at a death, nine are cleared alone; the tenth goes on to the limit."""
    suspects = Suspects()
    suspects.charge(range(10))
    handed = []
    while suspects.waiting():
        (sample,) = suspects.alone(list(range(20)), _same)
        handed.append(sample)
        if sample == 0:
            suspects.charge([sample])
            if suspects.is_guilty(0):
                break
        else:
            suspects.clear([sample])

    assert [0] * (MOST_DEATHS - 1) == handed
    assert list(range(1, 10)) == suspects.waiting()
    assert "3 workers in a row" in suspects.why(0)


def test_without_a_death_everything_is_handed_out_at_once() -> None:
    """Suspicion costs nothing until there is some, and ends with the last suspect."""
    suspects = Suspects()
    before = suspects.alone([1, 2, 3], _same)
    suspects.charge([2])
    during = suspects.alone([1, 2, 3], _same)
    suspects.clear([2])

    assert ([1, 2, 3], [2], [1, 2, 3]) == (before, during, suspects.alone([1, 2, 3], _same))
    assert not suspects.is_guilty(2)
