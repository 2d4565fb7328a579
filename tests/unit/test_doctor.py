"""The doctor's checks that need no process."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from eagled import doctor
from eagled.config import Config
from eagled.doctor import Verdict
from eagled.errors import ConfigError
from eagled.limits import needed_files, raise_file_limit


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ((3, 36, 0), Verdict.FAIL),
        ((3, 40, 1), Verdict.WARN),
        ((3, 44, 6), Verdict.OK),
        ((3, 50, 6), Verdict.WARN),
        ((3, 50, 7), Verdict.OK),
        ((3, 51, 3), Verdict.OK),
        ((3, 53, 0), Verdict.OK),
    ],
)
def test_sqlite_versions(version: tuple[int, ...], verdict: Verdict) -> None:
    """Too old fails; one with the write-ahead-log fault warns; a fixed one is fine."""
    assert verdict is doctor._sqlite(version).verdict


def _config(**lane: int) -> Config:
    return Config.model_validate(
        {"target": {"model": "m"}, "lanes": {"short": {"limit": 200, **lane}}}
    )


def test_a_state_directory_that_cannot_be_is_a_failure(tmp_path: Path) -> None:
    """A file where the folder should be is named, with advice."""
    (tmp_path / "state").write_text("x")
    config = Config.model_validate(
        {"target": {"model": "m"}, "run": {"state_dir": tmp_path / "state"}}
    )
    (check,) = doctor._state_dir(config)

    assert (Verdict.FAIL, True) == (check.verdict, "run.state_dir" in check.advice)


def test_files_are_counted_by_lane_and_the_soft_limit_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two a request and a spare; the soft limit is raised, the hard one is never exceeded."""
    limits = [(64, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))

    assert 2 * 200 + 256 + 16 + 128 == needed_files(_config())
    assert 800 == raise_file_limit(_config())
    assert (800, 4096) == limits[-1]
    assert 800 == raise_file_limit(_config(limit=100))
    with pytest.raises(ConfigError, match="6400 open files"):
        raise_file_limit(_config(limit=3000))
