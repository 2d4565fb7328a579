"""The ring gives out no byte twice and comes back to empty."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from eagled.sglang_plugin.ring import ALIGN, Allocator, Region, Releaser, Ring

_CAPACITY = 16 * ALIGN


@given(sizes=st.lists(st.integers(1, 9 * ALIGN), max_size=60), seed=st.integers(0, 1000))
def test_regions_never_overlap_and_are_given_back_in_order(sizes: list[int], seed: int) -> None:
    """Whatever the sizes and the order in which regions are done."""
    rng = random.Random(seed)  # noqa: S311 - test data
    ring = Ring.create(_CAPACITY)
    allocator, releaser = Allocator(ring), Releaser(ring)
    live: deque[Region] = deque()
    for size in sizes:
        region = allocator.allocate(size)
        if region is None:
            assert live or size > _CAPACITY
            for done in rng.sample(list(live), len(live)):
                releaser.done(done.end)
            live.clear()
            assert allocator.used == 0
            continue
        assert region.offset + region.nbytes <= _CAPACITY
        for other in live:
            apart = (
                region.offset + region.nbytes <= other.offset
                or other.offset + other.nbytes <= region.offset
            )
            assert apart
        live.append(region)
        releaser.expect(region.end, 1)
    ring.close()


def test_region_that_no_one_waits_for_is_free_at_once() -> None:
    """A batch whose rows all turned out void costs no room."""
    ring = Ring.create(_CAPACITY)
    allocator, releaser = Allocator(ring), Releaser(ring)
    region = allocator.allocate(100)
    assert region is not None
    releaser.expect(region.end, 0)

    assert allocator.used == 0
    ring.close()
