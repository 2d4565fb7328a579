"""Simulated power cuts of the store's own transactions (`bench/powercut.py`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.powercut import simulate

_SHM = Path("/dev/shm")  # noqa: S108 - tmpfs where there is one: a cut writes whole databases


@pytest.fixture
def work() -> Iterator[Path]:
    """An empty folder, in memory where possible."""
    with tempfile.TemporaryDirectory(dir=_SHM if _SHM.is_dir() else None) as name:
        yield Path(name)


def test_power_cut_loses_nothing_acknowledged(work: Path) -> None:
    """At FULL no cut loses, doubles or damages anything, and no stamp raises a false alarm."""
    tally = simulate(40, sync="FULL", seed=7, work=work)

    assert tally.clean(), tally
    assert tally.cuts == 40
    assert tally.acked > 1000


@pytest.mark.parametrize("sync", ["NORMAL", "OFF"])
def test_simulation_has_teeth(work: Path, sync: str) -> None:
    """The same cuts without the syncs lose acknowledged answers, and the counts say so."""
    tally = simulate(30, sync=sync, seed=7, work=work)

    assert tally.lost + tally.corrupt > 0, tally
    assert not tally.clean()
