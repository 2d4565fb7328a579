"""The disk governor: what the run uses, what it will use, and when extraction must wait.

Guarantee: extraction is told to wait before the reserve is touched (a shard that is being written
counts as written), and goes on only when there is clearly more room again. Projections come from
measured bytes a token; what is not measured yet is None, never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagled.clock import Clock
from eagled.config import MIB, DiskConfig

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

    def look(self, space: Space, load: DiskLoad) -> DiskView:
        """Return the numbers of this moment and the decision."""
        budget = self._config.budget_bytes or load.used_bytes + space.free_bytes
        room = min(space.free_bytes, budget - load.used_bytes) - load.pending_bytes
        self._decide(room)
        projected = _projected(load)
        return DiskView(
            used_bytes=load.used_bytes,
            free_bytes=space.free_bytes,
            budget_bytes=budget,
            reserve_bytes=self._config.reserve_bytes,
            projected_bytes=projected,
            full_at_ms=self._full_at(room, projected, load.bytes_per_s),
            paused=self._paused,
            reason=self._reason(room) if self._paused else "",
            critical=space.free_bytes < min(GENERATION_FLOOR_BYTES, self._floor()),
        )

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

    def _full_at(self, room: int, projected: int | None, bytes_per_s: float | None) -> int | None:
        usable = room - self._config.reserve_bytes
        if not bytes_per_s or projected is None or projected <= usable:
            return None
        return self._clock.now_ms() + round(max(0.0, usable / bytes_per_s) * 1000)


def _projected(load: DiskLoad) -> int | None:
    if load.tokens_left is None or load.bytes_per_token is None:
        return None
    return round(load.tokens_left * load.bytes_per_token)
