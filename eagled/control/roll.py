"""Which workers have said lately that they live.

A worker's event loop tells every few seconds that it turns, whatever its threads compute. One that
has told so and then falls silent (stopped, deadlocked, stuck in the kernel) is as good as dead,
although its process is there. Guarantee: silence is counted only while this daemon itself runs: a
machine that slept, or a daemon that was stopped, accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eagled.control.desks import is_alive

SILENT_S = 120.0  # twelve signs of life that did not come; a busy machine delays them by seconds
_LONGEST_STEP_S = 3.0  # between two looks of a daemon that runs


@dataclass(slots=True)
class Member:
    """A worker process that gives signs of life; `silent_s` since the last."""

    worker: str
    pid: int
    silent_s: float = 0.0


class Roll:
    """Keeps the members; `look` is called about once a second."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self._lost: dict[int, bool] = {}  # process id -> whether it has been heard again
        self._looked_at: float | None = None

    def heard(self, worker: str, pid: int) -> None:
        """Note a sign of life."""
        self._members[pid] = Member(worker, pid)
        if pid in self._lost:
            self._lost[pid] = True

    def forget(self, pid: int) -> None:
        """Expect no more of a process that has ended."""
        self._members.pop(pid, None)

    def lose(self, pid: int) -> None:
        """Expect nothing of a process that stands still."""
        self.forget(pid)
        self._lost[pid] = False

    def found(self) -> list[int]:
        """Return, once, the processes that were lost and have been heard again, or have ended."""
        pids = [pid for pid, heard in self._lost.items() if heard or not is_alive(pid)]
        for pid in pids:
            del self._lost[pid]
        return pids

    def look(self, now_s: float) -> Iterator[Member]:
        """Count the time since the last look, and yield who has been silent too long.

        Args:
            now_s: monotonic seconds.
        """
        step_s = min(now_s - (self._looked_at or now_s), _LONGEST_STEP_S)
        self._looked_at = now_s
        for member in list(self._members.values()):
            member.silent_s += step_s
            if member.silent_s > SILENT_S:
                yield member
