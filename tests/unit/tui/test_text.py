"""Numbers, bars and sparklines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eagled.printable import printable
from eagled.tui import text

DASH = "\u2013"


@given(st.text(max_size=60), st.integers(0, 50), st.booleans())
def test_fit_is_exact(raw: str, width: int, right: bool) -> None:  # noqa: FBT001 - hypothesis fills it
    """Whatever the text, `fit` fills exactly the cells asked for."""
    shown = text.fit(printable(raw), width, right=right)

    assert width == cell_len(shown)


@given(st.text(max_size=60))
def test_ascii_keeps_the_cells(raw: str) -> None:
    """The ASCII form has ASCII only, in the same number of cells."""
    shown = printable(raw)
    plain = text.to_ascii(shown)

    assert plain.isascii()
    assert cell_len(shown) == len(plain)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, DASH), (0, "0.0s"), (1.94, "1.9s"), (38, "38s"), (98, "1m38"), (3599, "59m59"),
        (19_210, "5h20"), (86_400 * 4 + 43_300, "4d12h"), (1e12, "years"), (-1, DASH),
    ],
)  # fmt: skip
def test_duration(value: float | None, shown: str) -> None:
    """Times keep to six cells from tenths of seconds to years."""
    assert shown == text.duration(value)
    assert len(shown) <= 6


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, DASH), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9.236e12, "9.24 TB"),
        (92.4e6, "92.4 MB"), (999.6e6, "1.00 GB"), (5e11, "500 GB"),
    ],
)  # fmt: skip
def test_size(value: float | None, shown: str) -> None:
    """Bytes show three digits in decimal units."""
    assert shown == text.size(value)


def test_counts_rates_and_shares() -> None:
    """Thousands stand apart; small rates and shares keep one decimal; missing is a dash."""
    assert ["31 204", DASH] == [text.count(31204), text.count(None)]
    assert ["2 140", "9.4", "0", DASH] == [text.rate(v) for v in (2140.3, 9.44, 0, None)]
    assert ["71%", "0.4%", "0%", DASH] == [text.percent(v) for v in (0.71, 0.0039, 0, None)]


def test_spark_begins_at_zero() -> None:
    """A flat rate is a flat line near the top, not noise blown up; zero is the lowest sign."""
    assert "▇▇▇▇" == text.spark([2230, 2240, 2235, 2230], 4)
    assert "  ▁▁" == text.spark([0, 0], 4)
    assert "    " == text.spark([], 4)


def test_spark_survives_one_spike() -> None:
    """One spike among two hundred points does not flatten the rest."""
    series = [100.0] * 199 + [10_000.0]

    assert "▇" * 10 == text.spark(series, 10)


@given(st.lists(st.floats(0, 1e9), max_size=300), st.integers(1, 40))
def test_spark_fills_its_width(values: list[float], width: int) -> None:
    """A sparkline is exactly as wide as asked."""
    assert width == len(text.spark(values, width))


def test_chart_rows() -> None:
    """A chart of half the top fills half the rows, with the newest value at the right."""
    assert ["   ", " ██"] == text.chart([50, 50], 3, 2, 100)


@pytest.mark.parametrize(
    ("share", "shown"), [(None, "    "), (0, "────"), (0.01, "━───"), (0.5, "━━──"), (9, "━━━━")]
)
def test_bar(share: float | None, shown: str) -> None:
    """A bar is empty only at zero and never longer than its room."""
    assert shown == text.bar(share, 4)


def test_disk_bar() -> None:
    """Used, planned and free follow each other; the line is where extraction stops."""
    assert "██▒▒▒▒··│·" == text.disk_bar(20, 40, 80, 100, 10)
    assert "··········" == text.disk_bar(1, 1, 1, 0, 10)


@pytest.mark.parametrize(("peak", "top"), [(0, 1), (7, 8), (2233, 2500), (2561, 3000), (1e6, 1e6)])
def test_nice_top(peak: float, top: float) -> None:
    """An axis ends at a round number at or above the peak."""
    assert top == text.nice_top([peak, peak / 2])


def test_wrapped_breaks_at_a_space() -> None:
    """A long text breaks between words; one long word is cut where the room ends."""
    assert ("disk is", "nearly full") == text.wrapped("disk is nearly full", 9)
    assert ("xxxx", "xx") == text.wrapped("xxxxxx", 4)
    assert ("short", "") == text.wrapped("short", 9)
