"""A ring of shared memory between the scheduler (one producer) and its writer process.

Guarantee: a region's bytes stay as they are until the writer gives it back; positions only grow,
so both sides agree by two numbers. Regions are contiguous: a copy from the GPU goes into one in
one piece. Price: up to half of the ring is passed over when a region does not fit before the end.
The memory is anonymous (memfd), so nothing stays behind when both processes are gone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from dataclasses import dataclass

CONTROL_BYTES = 4096
ALIGN = 512


@dataclass(frozen=True)
class Region:
    """A contiguous part of the ring.

    Attributes:
        begin: position before it, passed-over bytes included; grows for ever.
        offset: where its data starts, counted from the start of the data area.
        nbytes: size of the data.
        end: position after it.
    """

    begin: int
    offset: int
    nbytes: int
    end: int


class Ring:
    """One side's view of the memory."""

    def __init__(self, fd: int, capacity: int) -> None:
        self.fd = fd
        self.capacity = capacity
        self.map = mmap.mmap(fd, CONTROL_BYTES + capacity)
        self.view = memoryview(self.map)
        self.data = self.view[CONTROL_BYTES:]
        self._freed = self.view[:8].cast("Q")

    @classmethod
    def create(cls, capacity: int) -> Ring:
        """Make a ring of `capacity` bytes, a multiple of ALIGN."""
        fd = os.memfd_create("eagled-capture")
        os.ftruncate(fd, CONTROL_BYTES + capacity)
        return cls(fd, capacity)

    @property
    def freed(self) -> int:
        """Position up to which the writer has given back."""
        return self._freed[0]

    @freed.setter
    def freed(self, position: int) -> None:
        self._freed[0] = position

    def close(self) -> None:
        """Drop this side's mapping and descriptor."""
        with contextlib.suppress(BufferError):  # a tensor still looks at it; it goes with that
            for view in (self._freed, self.data, self.view):
                view.release()
            self.map.close()
        os.close(self.fd)


class Allocator:
    """The producer's account of the ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.head = 0

    @property
    def used(self) -> int:
        """Bytes not given back yet."""
        return self.head - self._ring.freed

    def allocate(self, nbytes: int) -> Region | None:
        """Return a region of `nbytes`, or None while there is no room for it."""
        size = -(-nbytes // ALIGN) * ALIGN
        offset = self.head % self._ring.capacity
        passed_over = self._ring.capacity - offset if offset + size > self._ring.capacity else 0
        end = self.head + passed_over + size
        full = self.used > 0 and end - self._ring.freed > self._ring.capacity
        if size > self._ring.capacity or full:
            return None  # an empty ring may pass over as much as it likes
        region = Region(self.head, (self.head + passed_over) % self._ring.capacity, nbytes, end)
        self.head = end
        return region


class Releaser:
    """The writer's account: regions are done in any order and given back in theirs."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._ends: deque[int] = deque()
        self._left: dict[int, int] = {}

    def expect(self, end: int, parts: int) -> None:
        """Note a region, in order, that is done after so many parts; 0 means at once."""
        self._ends.append(end)
        self._left[end] = parts
        self._advance()

    def done(self, end: int) -> None:
        """Note that one part of the region that ends at `end` is done."""
        self._left[end] -= 1
        self._advance()

    def _advance(self) -> None:
        while self._ends and self._left[self._ends[0]] == 0:
            end = self._ends.popleft()
            del self._left[end]
            self._ring.freed = end
