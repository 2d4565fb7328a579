"""Ages, histories, changes on their way, the held picture."""

from __future__ import annotations

from eagled.clock import FakeClock
from eagled.tui.state import KEPT_EVENTS, POINT_S, POINTS, History, Target, TopState
from tests.unit.tui.doubles import AT_MS, EVENTS, status

SHORT = Target("lane", "short", "short", paused=False, number=200)


def _state() -> tuple[TopState, FakeClock]:
    clock = FakeClock(AT_MS)
    return TopState(clock), clock


def test_a_history_point_is_a_mean() -> None:
    """Rates within one stretch become their mean; the next stretch is a new point."""
    history = History()
    for now, value in ((0, 10.0), (1, 20.0), (2, 30.0), (POINT_S, 5.0)):
        history.add(now, {"a": value})

    assert (20.0, 5.0) == history.of("a")
    assert 2 * POINT_S == history.span_s


def test_histories_are_bounded_and_forget() -> None:
    """A month of points keeps the newest; a lane that vanished is gone."""
    history = History()
    history.add(0, {"old": 1.0})
    for i in range(1, POINTS * 3):
        history.add(i * POINT_S, {"a": float(i)})

    assert POINTS == len(history.of("a"))
    assert () == history.of("old")


def test_age_is_the_older_of_two() -> None:
    """A daemon that serves an old document is stale although it answers at once."""
    state, clock = _state()
    state.take(status())
    assert ("LIVE", False) == (state.link().kind, state.stale)

    clock.advance(10)
    state.take(status())

    assert ("STALE", 10.0) == (state.link().kind, state.link().age_s)


def test_connection_words() -> None:
    """Nothing yet, an old file, live, gone, and back again each have their word."""
    state, clock = _state()
    assert "CONNECTING" == state.link().kind

    state.take_old(status(at_ms=AT_MS - 60_000))
    assert ("STALE", True) == (state.link().kind, state.stale)

    state.take(status())
    state.failed("refused")
    clock.advance(5)
    state.failed("refused")
    link = state.link()
    assert ("STALE", 2, 5.0, "refused") == (link.kind, link.tries, link.down_s, link.reason)

    state.take(status(at_ms=AT_MS + 5000))
    assert ("LIVE", 0) == (state.link().kind, state.link().tries)


def test_frozen_picture_holds_still() -> None:
    """While the picture is held new numbers do not show; then they do."""
    state, clock = _state()
    state.take(status())
    state.toggle_freeze()
    clock.advance(1)
    state.take({"lanes": {}, "at_ms": AT_MS + 1000})

    assert (2, "FROZEN") == (len(state.view().lanes), state.link().kind)
    state.toggle_freeze()
    assert (0, "LIVE") == (len(state.view().lanes), state.link().kind)


def test_a_change_waits_until_it_is_seen() -> None:
    """A row shows that a change is on its way until a snapshot tells the new value."""
    state, _ = _state()
    state.take(status())
    state.wait_for(SHORT, {"limit": 210})
    state.answered(SHORT, {"limit": 210}, ok=True)
    assert frozenset({"limit"}) == state.view().lanes[0].waits

    changed = status()
    changed["lanes"]["short"]["limit"] = 210
    state.take(changed)

    assert frozenset() == state.view().lanes[0].waits


def test_a_refused_change_waits_no_longer() -> None:
    """What the daemon refused is not shown as on its way."""
    state, _ = _state()
    state.take(status())
    state.wait_for(SHORT, {"limit": 210})
    state.answered(SHORT, {"limit": 210}, ok=False)

    assert state.wanted(SHORT, "limit") is None


def test_a_change_that_never_shows_is_dropped() -> None:
    """An accepted change that no snapshot shows stops being marked after some seconds."""
    state, clock = _state()
    state.take(status())
    state.wait_for(SHORT, {"limit": 210})
    state.answered(SHORT, {"limit": 210}, ok=True)
    clock.advance(4)
    state.take(status())

    assert frozenset() == state.view().lanes[0].waits


def test_events_come_once() -> None:
    """Events that were read already are not added again; the newest are kept."""
    state, _ = _state()
    state.take_events(EVENTS)
    state.take_events(EVENTS)
    assert [e["seq"] for e in EVENTS] == [e.seq for e in state.view().events]

    state.take_events({"seq": i, "kind": "alarm"} for i in range(1000, 3000))
    assert (KEPT_EVENTS, 2999) == (len(state.view().events), state.last_event)


def test_the_daemons_history_wins() -> None:
    """A history that the daemon keeps is shown from the first second, with its own span."""
    state, _ = _state()
    state.take(status())

    assert (180, 900.0) == (len(state.view().lanes[0].series), state.view().span_s)
