"""Columns that fit, and the cells that have to be drawn again."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from eagled.tui.lines import Line, clip, plain, rule, spread
from eagled.tui.tables import dataset_table, lane_table
from eagled.tui.widgets import Drawn, changed_cells
from tests.unit.tui.doubles import make_view


@pytest.mark.parametrize("width", [40, 60, 80, 104, 160])
def test_tables_fit_the_width(width: int) -> None:
    """Every line of both tables fits, and ETA and FAIL are there from 60 cells on."""
    view = make_view()
    for table in (lane_table(view.lanes, width), dataset_table(view.datasets, width)):
        lines = [table.head, *(line for _, line in table.rows)]

        assert all(cell_len(plain(line)) <= max(width, 58) for line in lines)
        assert "FAIL" in plain(table.head)
        assert width < 60 or "ETA" in plain(table.head)


def test_widths_do_not_depend_on_values() -> None:
    """The heads stay in place when numbers grow: nothing jumps."""
    small, large = make_view(), make_view()
    heads = [plain(lane_table(v.lanes[:n], 104).head) for v, n in ((small, 1), (large, 2))]

    assert heads[0] == heads[1]


def test_clip_and_spread_are_exact() -> None:
    """Lines are cut with a mark or padded to the cell; the right end is kept."""
    assert "abc…" == plain(clip((("abcdef", ""),), 4))
    assert "漢…" == plain(clip((("漢字", ""),), 3))
    assert "ab  cd" == plain(spread((("ab", ""),), (("cd", ""),), 6))
    assert "a…cd" == plain(spread((("abcdef", ""),), (("cd", ""),), 4))
    assert 20 == cell_len(plain(rule("LANES", 20, "2")))


def test_only_changed_cells_are_drawn() -> None:
    """A changed number in the middle of a line dirties its own cells and no others."""
    old: Line = (("name ", "bold"), ("  10", ""), (" rest", ""))
    new: Line = (("name ", "bold"), ("  11", ""), (" rest", ""))

    assert (5, 9) == changed_cells(Drawn(old), Drawn(new))
    assert (0, 0) == changed_cells(Drawn(old), Drawn(old))
    assert (0, 14) == changed_cells(Drawn(old), Drawn(old, cursor=True))
    assert (5, 14) == changed_cells(Drawn(old), Drawn((("name ", "bold"), ("100000", ""))))
