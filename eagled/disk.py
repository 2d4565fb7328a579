"""The disk governor: what the run uses, what it will use, and when extraction must wait.

Guarantee: extraction is told to wait before the reserve is touched (a shard that is being written
counts as written), and goes on only when there is clearly more room again. Projections come from
measured bytes a token; what is not measured yet is None, never a guess.
The ballast is a file that is given up when the reserve shrinks all the same (another process fills
the disk), so that the database and the open shard can be finished. In stream mode the shards have
a cap of their own, which `daemon_ring.py` keeps claim by claim.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagled.artifacts import TMP_SUFFIX
from eagled.clock import Clock
from eagled.config import MIB, DiskConfig

_GROWTH_WINDOW_S = 600.0  # over which the growth of other writers is measured
_GROWTH_LEAST_S = 30.0  # shorter spans say nothing
GENERATION_FLOOR_BYTES = 256 * MIB  # below it the database itself is in danger: nothing new starts


@dataclass(frozen=True, slots=True)
class Space:
    """A file system in bytes; `free_bytes` is what this user can still write."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class DiskLoad:
    """What the run knows about its own growth.

    Attributes:
        used_bytes: size of the state directory.
        tokens_left: tokens whose states are still to be written; None while unknown.
        bytes_per_token: measured over this run's shards; None before the first.
        bytes_per_s: growth of the shards measured lately; None while unknown.
        pending_bytes: most bytes that are claimed by workers and not yet in a shard.
    """

    used_bytes: int
    tokens_left: int | None
    bytes_per_token: float | None
    bytes_per_s: float | None
    pending_bytes: int


@dataclass(frozen=True, slots=True)
class DiskView:
    """The governor's numbers, in bytes.

    Attributes:
        used_bytes: size of the state directory.
        free_bytes: what the file system has free.
        budget_bytes: most bytes of the state directory; what the disk has when not configured.
        reserve_bytes: free bytes that extraction never touches.
        projected_bytes: bytes of states still to come; None while not measured.
        full_at_ms: UTC milliseconds at which the room ends at the present rate; None: unknown, or
            the work ends before.
        paused: extraction has to wait.
        reason: why, in words; empty when it does not wait.
        critical: so little is free that generation has to wait too.
        own_bytes_per_s: growth of the shards lately; None while unknown.
        others_bytes_per_s: growth of everything else on the file system; None while unknown.
    """

    used_bytes: int
    free_bytes: int
    budget_bytes: int
    reserve_bytes: int
    projected_bytes: int | None
    full_at_ms: int | None
    paused: bool
    reason: str
    critical: bool
    own_bytes_per_s: float | None = None
    others_bytes_per_s: float | None = None


def file_system(path: Path) -> Space:
    """Return the space of the file system that holds `path`, or would."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    stat = os.statvfs(existing)
    return Space(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def folder_bytes(folder: Path) -> int:
    """Return the bytes on disk of everything below `folder`; files that vanish count 0."""
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes(Path(entry.path))
            else:
                yield entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue


class DiskGovernor:
    """Decides whether extraction may go on; keeps only that decision between calls."""

    def __init__(self, config: DiskConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._paused = False
        self._others: deque[tuple[float, int]] = deque()  # monotonic seconds, bytes

    def look(self, space: Space, load: DiskLoad) -> DiskView:
        """Return the numbers of this moment and the decision."""
        budget = self._config.budget_bytes or load.used_bytes + space.free_bytes
        room = min(space.free_bytes, budget - load.used_bytes) - load.pending_bytes
        self._decide(room)
        projected = _projected(load)
        others = self._others_rate(space, load)
        return DiskView(
            used_bytes=load.used_bytes,
            free_bytes=space.free_bytes,
            budget_bytes=budget,
            reserve_bytes=self._config.reserve_bytes,
            projected_bytes=projected,
            full_at_ms=self._full_at(room, projected, load.bytes_per_s, others),
            paused=self._paused,
            reason=self._reason(room) if self._paused else "",
            critical=space.free_bytes < min(GENERATION_FLOOR_BYTES, self._floor()),
            own_bytes_per_s=load.bytes_per_s,
            others_bytes_per_s=others,
        )

    def _others_rate(self, space: Space, load: DiskLoad) -> float | None:
        """Return how fast everything that is not this run grows, in bytes a second."""
        now = self._clock.monotonic()
        self._others.append((now, space.total_bytes - space.free_bytes - load.used_bytes))
        while now - self._others[0][0] > _GROWTH_WINDOW_S:
            self._others.popleft()
        began, first = self._others[0]
        if now - began < _GROWTH_LEAST_S:
            return None
        return (self._others[-1][1] - first) / (now - began)

    def _floor(self) -> int:
        """The generation floor; a reserve set below it on purpose is respected."""
        return max(self._config.reserve_bytes, 1)

    def _decide(self, room: int) -> None:
        reserve = self._config.reserve_bytes
        if room <= reserve:
            self._paused = True
        elif room > reserve + self._config.resume_bytes:
            self._paused = False

    def _reason(self, room: int) -> str:
        need = self._config.reserve_bytes + self._config.resume_bytes - room
        return (
            f"extraction waits: {max(room, 0) / 2**30:.2f} GiB of room, "
            f"{self._config.reserve_bytes / 2**30:.2f} GiB are kept in reserve; "
            f"make {max(need, 0) / 2**30:.2f} GiB free or raise disk.budget_bytes"
        )

    def _full_at(
        self, room: int, projected: int | None, bytes_per_s: float | None, others: float | None
    ) -> int | None:
        """Return when the room ends: others take their part while our work lasts."""
        usable = room - self._config.reserve_bytes
        if not bytes_per_s or projected is None:
            return None
        rate = bytes_per_s + max(0.0, others or 0.0)
        if projected / bytes_per_s * rate <= usable:
            return None
        return self._clock.now_ms() + round(max(0.0, usable / rate) * 1000)


def _projected(load: DiskLoad) -> int | None:
    if load.tokens_left is None or load.bytes_per_token is None:
        return None
    return round(load.tokens_left * load.bytes_per_token)


class Ballast:
    """A file that takes room until it is needed; blocking, for a thread."""

    def __init__(self, path: Path, config: DiskConfig) -> None:
        self._path = path
        self._config = config

    def look(self, space: Space, view: DiskView) -> str:
        """Make the file, keep it, or give it up; return what was done, or nothing.

        It goes when less than half of the reserve is left: extraction stopped long before, so
        somebody else is filling the disk. It comes back when extraction may go on and would
        still have room with it.
        """
        size, reserve = self._config.ballast_bytes, self._config.reserve_bytes
        there = self._path.exists()
        if there and (not size or space.free_bytes < reserve // 2):
            self._path.unlink(missing_ok=True)
            return "given up" if size else "removed"
        room = space.free_bytes - reserve - self._config.resume_bytes
        if size and not there and not view.paused and room > size:
            return "made" if self._make(size) else ""
        return ""

    def _make(self, size: int) -> bool:
        tmp = self._path.with_name(self._path.name + TMP_SUFFIX)
        try:
            with tmp.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            tmp.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                tmp.unlink(missing_ok=True)
            return False
        return True
