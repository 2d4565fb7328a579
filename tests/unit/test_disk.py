"""The disk governor: what it counts, when it stops extraction, what it does not know."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eagled.clock import FakeClock
from eagled.config import DiskConfig
from eagled.disk import Ballast, DiskGovernor, DiskLoad, Space, file_system, folder_bytes

GIB = 1 << 30
CONFIG = DiskConfig(reserve_bytes=2 * GIB, resume_bytes=GIB)


def _load(**changes: float | None) -> DiskLoad:
    values = {
        "used_bytes": 10 * GIB,
        "tokens_left": 1000,
        "bytes_per_token": 100.0,
        "bytes_per_s": None,
        "pending_bytes": 0,
        **changes,
    }
    return DiskLoad(**values)  # type: ignore[arg-type] # numbers as the tests name them


def test_extraction_stops_at_the_reserve_and_goes_on_well_above_it() -> None:
    """Pause at the reserve, resume only above reserve + resume_bytes: no flapping between."""
    governor = DiskGovernor(CONFIG, FakeClock())
    seen = [
        governor.look(Space(100 * GIB, free), _load()).paused
        for free in (4 * GIB, 2 * GIB, 3 * GIB, 3 * GIB + 1, int(2.5 * GIB))
    ]

    assert [False, True, True, False, False] == seen


def test_what_workers_hold_counts_as_written() -> None:
    """Samples that are being computed will become bytes: they are counted before they are."""
    governor = DiskGovernor(CONFIG, FakeClock())

    assert governor.look(Space(100 * GIB, 4 * GIB), _load(pending_bytes=2 * GIB)).paused


def test_a_budget_below_the_disk_is_the_limit() -> None:
    """With a budget of 12 GiB and 10 used, 2 GiB are left, however much the disk has."""
    governor = DiskGovernor(CONFIG.model_copy(update={"budget_bytes": 12 * GIB}), FakeClock())
    view = governor.look(Space(1000 * GIB, 900 * GIB), _load())

    assert (True, 12 * GIB) == (view.paused, view.budget_bytes)
    assert "raise disk.budget_bytes" in view.reason


def test_projection_and_time_come_from_measurements_only() -> None:
    """Unknown stays unknown; with measured numbers the bytes and the moment are exact."""
    clock = FakeClock()
    governor = DiskGovernor(CONFIG, clock)
    unknown = governor.look(Space(100 * GIB, 50 * GIB), _load(bytes_per_token=None))
    fits = governor.look(Space(100 * GIB, 50 * GIB), _load(bytes_per_s=1.0))
    full = governor.look(
        Space(100 * GIB, 3 * GIB),
        _load(tokens_left=2 * GIB, bytes_per_token=1.0, bytes_per_s=float(GIB)),
    )

    assert (None, None) == (unknown.projected_bytes, unknown.full_at_ms)
    assert (100_000, None) == (fits.projected_bytes, fits.full_at_ms)
    assert (2 * GIB, clock.now_ms() + 1000) == (full.projected_bytes, full.full_at_ms)


@given(st.lists(st.integers(0, 6 * GIB), max_size=30))
def test_the_reserve_is_never_free_for_extraction(free: list[int]) -> None:
    """Whatever the history, extraction is paused whenever no more than the reserve is left."""
    governor = DiskGovernor(CONFIG, FakeClock())
    for n in free:
        view = governor.look(Space(100 * GIB, n), _load())

        assert view.paused or n > CONFIG.reserve_bytes


def test_generation_waits_only_when_the_database_is_in_danger() -> None:
    """A reserve that is nearly used up stops generation too, a touched one does not."""
    governor = DiskGovernor(CONFIG, FakeClock())

    assert [False, True] == [
        governor.look(Space(100 * GIB, free), _load()).critical for free in (GIB, 100 << 20)
    ]


def test_sizes_are_those_on_disk(tmp_path: Path) -> None:
    """Folders are summed with what is below them; a path that is to come has a file system."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"1" * 100_000)
    sparse = tmp_path / "hole"
    with sparse.open("wb") as file:
        file.truncate(1 << 30)

    assert 100_000 <= folder_bytes(tmp_path) < 200_000
    assert file_system(tmp_path / "not/yet").total_bytes == file_system(tmp_path).total_bytes


def test_growth_of_others_is_told_apart_and_brings_the_day_forward() -> None:
    """What grows on the file system beyond the state directory is somebody else's."""
    clock = FakeClock()
    governor = DiskGovernor(CONFIG, clock)
    load = _load(tokens_left=4 * GIB, bytes_per_token=1.0, bytes_per_s=float(1 << 20))
    total, free = 100 * GIB, 8 * GIB
    first = governor.look(Space(total, free), load)
    clock.advance(100)
    second = governor.look(Space(total, free - 100 * (1 << 20)), load)

    assert (None, 1 << 20) == (first.others_bytes_per_s, second.others_bytes_per_s)
    assert first.full_at_ms is None  # 4 GiB of states, 6 GiB of room
    room = 6 * GIB - 100 * (1 << 20)
    assert second.full_at_ms == clock.now_ms() + round(room / (2 << 20) * 1000)


def test_ballast_goes_when_others_fill_the_disk_and_comes_back(tmp_path: Path) -> None:
    """Given up below half the reserve, made again when extraction may go on with room to spare."""
    config = CONFIG.model_copy(update={"ballast_bytes": 1 << 16})
    ballast, governor = Ballast(tmp_path / "ballast", config), DiskGovernor(config, FakeClock())
    seen = []
    for free in (8 * GIB, 8 * GIB, 2 * GIB, GIB // 2, 2 * GIB, 8 * GIB):
        space = Space(100 * GIB, free)
        seen.append((ballast.look(space, governor.look(space, _load())), _size(tmp_path)))

    full = 1 << 16
    assert seen == [
        ("made", full), ("", full), ("", full), ("given up", 0), ("", 0), ("made", full),
    ]  # fmt: skip
    gone = Ballast(tmp_path / "ballast", CONFIG)
    space = Space(100 * GIB, 8 * GIB)
    assert ("removed", 0) == (gone.look(space, governor.look(space, _load())), _size(tmp_path))


def _size(folder: Path) -> int:
    path = folder / "ballast"
    return path.stat().st_size if path.exists() else 0
