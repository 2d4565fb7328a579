"""The table on disk against a dictionary of lists, over many doublings, in little memory."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagled import bands
from eagled.artifacts import disk_error
from eagled.bands import BandTable
from eagled.errors import DiskError

_EDGES = st.sampled_from([0, 1, 2, (1 << 32) - 2, (1 << 32) - 1, 1 << 31])
_MARKS = st.lists(_EDGES | st.integers(0, (1 << 32) - 1), max_size=300)


def _put(table: BandTable, mark: int, row: int) -> None:
    place, _ = table.find(mark)
    table.put(place, mark, row)


@given(_MARKS)
def test_a_table_gives_each_marks_rows_in_order(tmp_path_factory: object, marks: list[int]) -> None:
    """After each of up to eight doublings every mark has its rows, in order, and no others."""
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "_FIRST_BITS", 1)
        patch.setattr(bands, "_BLOCK_BYTES", 64)
        table = BandTable(tmp_path_factory.getbasetemp() / "scratch")
        expected: dict[int, list[int]] = defaultdict(list)
        for row, mark in enumerate(marks):
            _put(table, mark, row)
            expected[mark].append(row)
        found = {mark: table.find(mark)[1] for mark in expected}
        absent = {mark: table.find(mark ^ 5)[1] for mark in expected if mark ^ 5 not in expected}
        table.close()

    assert dict(expected) == found
    assert all(rows == [] for rows in absent.values())
    assert len(marks) == len(table)


def test_a_large_table_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 262 kB that doubles in blocks of 2 KiB never takes 60 kB of memory."""
    monkeypatch.setattr(bands, "_FIRST_BITS", 8)
    monkeypatch.setattr(bands, "_BLOCK_BYTES", 1 << 11)
    rng = random.Random(17)  # noqa: S311 - test data, seeded
    tracemalloc.start()
    try:
        table = BandTable(tmp_path / "scratch")
        for row in range(12_000):
            _put(table, rng.getrandbits(32), row)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = table.disk_bytes
    table.close()

    assert (12_000, []) == (len(table), list(tmp_path.iterdir()))
    assert 12_000 * 12 <= size <= 12_000 * 26
    assert peak_bytes < 60_000


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the disk refuses is a disk error with the file's name."""
    table = BandTable(tmp_path / "scratch")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskError, match="scratch"):
        table.put(0, 1, 1)
    table.close()

    assert disk_error(OSError(28, ""), tmp_path) is not None
