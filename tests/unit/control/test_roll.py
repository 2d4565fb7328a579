"""Signs of life, and who is missed."""

from __future__ import annotations

import os

from eagled.control.roll import SILENT_S, Roll


def _missed(roll: Roll, start: int, seconds: int) -> list[int]:
    """Look once a second; return who was missed."""
    return [m.pid for now in range(start, start + seconds) for m in roll.look(float(now))]


def test_who_gives_signs_is_never_missed_and_who_stops_is() -> None:
    """Silence is counted from the last sign."""
    roll = Roll()
    roll.heard("a", 1)
    roll.heard("b", 2)
    for now in range(1000):
        roll.heard("a", 1)
        missed = [m.pid for m in roll.look(float(now))]
        if missed:
            break

    assert ([2], True) == (missed, now - SILENT_S in {1, 2})


def test_a_machine_that_slept_accuses_nobody() -> None:
    """A gap between two looks is the daemon's own, not the workers' silence."""
    roll = Roll()
    roll.heard("a", 1)
    before = _missed(roll, 0, 100)
    after_sleep = [m.pid for m in roll.look(100_000.0)]

    assert ([], []) == (before, after_sleep)
    assert [1] == _missed(roll, 100_001, 30)[:1]


def test_who_was_lost_is_found_once_when_it_is_heard_or_has_ended() -> None:
    """What was said of a silent worker is taken back then."""
    roll = Roll()
    mine, gone = os.getpid(), 2**22 + 1  # above the highest process id
    for pid in (mine, gone):
        roll.heard("w", pid)
        roll.lose(pid)
    first = roll.found()
    roll.heard("w", mine)

    assert ([gone], [mine], []) == (first, roll.found(), roll.found())
