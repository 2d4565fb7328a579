"""Key/value memory: rows keep their contents, freed memory leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

from eagled.engine.slab import MIN_WIDTH, KvShape, Slab, width_for

_SHAPE = KvShape(((2, 4, 3), (1, 4, 4)), torch.float32, torch.device("cpu"))


def _fill(slab: Slab, row: int, value: float, tokens: int) -> None:
    for store in slab.keys + slab.values:
        store[row, :, :tokens] = value


def _row_values(slab: Slab, row: int) -> list[list[float]]:
    """Return the distinct values along the row, for every layer's keys and values."""
    return [store[row, 0, :, 0].tolist() for store in slab.keys + slab.values]


def test_rows_survive_growth_and_removal() -> None:
    """Rows keep their contents when the slab grows, and when the last one closes a hole."""
    slab = Slab(_SHAPE, 4)
    for value in range(7):
        _fill(slab, slab.add(), float(value), 3)

    slab.remove(2, 3)

    assert 6 == slab.rows
    assert [0.0, 1.0, 6.0, 3.0, 4.0, 5.0] == [_row_values(slab, r)[0][0] for r in range(6)]
    assert [[6.0, 6.0, 6.0, 0.0]] * 4 == _row_values(slab, 2)


@pytest.mark.parametrize("removed", [0, 1])
def test_nothing_of_a_removed_row_stays(removed: int) -> None:
    """What a longer, poisoned row leaves is zero for whoever uses its memory next."""
    slab = Slab(_SHAPE, 6)
    for row in range(2):
        slab.add()
        _fill(slab, row, float("nan") if row == removed else 1.0, 6 if row == removed else 2)

    slab.remove(removed, 2 if removed == 0 else 6)
    again = slab.add()

    assert [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * 4 == _row_values(slab, 0)
    assert [[0.0] * 6] * 4 == _row_values(slab, again)


def test_an_adopted_row_is_a_copy_with_a_clean_tail() -> None:
    """A row that moves to a wider slab brings its tokens and nothing else."""
    small, wide = Slab(_SHAPE, 3), Slab(_SHAPE, 5)
    _fill(small, small.add(), 2.0, 3)

    row = wide.adopt(small, 0, 2)

    assert [[2.0, 2.0, 0.0, 0.0, 0.0]] * 4 == _row_values(wide, row)


def test_an_empty_slab_holds_no_memory() -> None:
    """Memory is given back with the last row."""
    slab = Slab(_SHAPE, 8)
    slab.add()

    slab.remove(0, 0)

    assert (0, 0) == (slab.rows, slab.capacity)


def test_bytes_per_token() -> None:
    """Keys and values of all heads and layers count: (2*(4+3) + 1*(4+4)) floats."""
    assert 88 == _SHAPE.bytes_per_token


@pytest.mark.parametrize(
    ("tokens", "longest", "width"),
    [
        (1, 8192, MIN_WIDTH),
        (MIN_WIDTH, 8192, MIN_WIDTH),
        (MIN_WIDTH + 1, 8192, 2 * MIN_WIDTH),
        (5000, 6000, 6000),
        (10, 512, 512),
    ],
)
def test_width_for(tokens: int, longest: int, width: int) -> None:
    """Widths double from the smallest and end at the longest request."""
    assert width == width_for(tokens, longest)
