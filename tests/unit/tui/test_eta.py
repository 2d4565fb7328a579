"""Time left: its range, the lane that decides, and when nothing is claimed."""

from __future__ import annotations

from dataclasses import replace

from eagled.tui.eta import eta_range, minutes, total_of
from eagled.tui.model import Counts, parse_status
from tests.unit.tui.doubles import status

SHORT, LONG = parse_status(status()).lanes


def test_a_steady_rate_has_a_narrow_range() -> None:
    """Equal minutes give the time itself; uneven ones a range around it; few ones nothing."""
    uneven = [80.0] * 12 + [120.0] * 12 + [100.0] * 12
    low, high = eta_range(1000.0, uneven) or (0.0, 0.0)

    assert (1000.0, 1000.0) == eta_range(1000.0, [50.0] * 36)
    assert low < 1000.0 < high
    assert [None] * 4 == [
        eta_range(1000.0, [50.0] * 35), eta_range(1000.0, []), eta_range(None, uneven),
        eta_range(1000.0, [0.0] * 180),
    ]  # fmt: skip


def test_minutes_without_anything_are_left_out() -> None:
    """A pause or a restart in the history makes the range no wider."""
    assert (1000.0, 1000.0) == eta_range(1000.0, [50.0] * 24 + [0.0] * 24 + [50.0] * 12)


def test_minutes_are_whole_and_end_now() -> None:
    """Points that do not fill a minute are left out at the old end."""
    assert [2.0, 3.0] == minutes([9.0] * 5 + [2.0] * 12 + [3.0] * 12)


def test_the_last_lane_decides() -> None:
    """The longest lane is critical; if its rate grew as others end it would be the quotient."""
    a = replace(SHORT, eta_s=100.0, out_rate=30.0)
    b = replace(LONG, eta_s=400.0, out_rate=10.0)
    total = total_of([a, b])

    assert (400.0, LONG.key, LONG.key) == (total.at_rates, total.critical, total.last)
    assert (100 * 30 + 400 * 10) / 40 == total.shared


def test_paused_lanes_and_finished_ones_have_no_time() -> None:
    """A paused lane is counted apart; a lane without open work decides nothing."""
    total = total_of([replace(SHORT, paused=True), replace(LONG, eta_s=0.0, counts=Counts())])

    assert (None, None, 1) == (total.at_rates, total.critical, total.paused)
