"""Events as data: since when, of which kind, and from a database without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagled.cli import app
from eagled.errors import UnreachableError, UsageError
from eagled.event_log import check_kinds, since_ms, stored_events
from eagled.paths import StatePaths
from eagled.types import EventKind
from tests.daemon_kit import write_config
from tests.unit.store.helpers import opened

NOW = 1_800_000_000_000  # 2027-01-15T08:00:00Z
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", NOW - 90_000),
        ("30min", NOW - HOUR // 2),
        ("30m", NOW - HOUR // 2),
        ("2h", NOW - 2 * HOUR),
        ("3d", NOW - 72 * HOUR),
        ("2027-01-15", NOW - 8 * HOUR),
        ("2027-01-15T08:00", NOW),
        ("2027-01-15T10:00+02:00", NOW),
        ("2027-01-15T08:00:00.250Z", NOW + 250),
    ],
)
def test_since_is_an_age_or_a_time(text: str, ms: int) -> None:
    """Ages count back from now; a time without a zone is UTC, as events are shown."""
    assert ms == since_ms(text, NOW)


@pytest.mark.parametrize("text", ["", "yesterday", "2 h", "-3h", "2027-13-01", "99999999999d"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    """The message shows both forms."""
    with pytest.raises(UsageError, match=r"30min.*2026-11-30T08:00"):
        since_ms(text, NOW)


def test_an_unknown_kind_is_refused_with_all_that_there_are() -> None:
    """A typo does not give an empty list."""
    assert frozenset({"alarm"}) == check_kinds(["alarm"])
    with pytest.raises(UsageError, match="no such kind; there are alarm, backup_made"):
        check_kinds(["alram"])


async def _told(root: Path) -> None:
    root.mkdir()  # noqa: ASYNC240 - a test's folder
    async with opened(root) as store:
        for number in range(3):
            await store.add_event(EventKind.ALARM, f"s{number}", "what\x1b[2J happened")
        await store.add_event(EventKind.MERGED, "v001", "")


async def test_a_stopped_run_tells_its_events(tmp_path: Path) -> None:
    """All of them in order, resumed by number, whatever pages they are read in."""
    await _told(tmp_path / "state")
    database = StatePaths(tmp_path / "state").database
    told = list(stored_events(database))

    assert [1, 2, 3, 4] == [event["seq"] for event in told]
    assert ["alarm"] * 3 + ["merged"] == [event["kind"] for event in told]
    assert told[2:] == list(stored_events(database, 2))


async def test_the_command_reads_the_database_when_no_daemon_answers(tmp_path: Path) -> None:
    """Narrowed by kind and time, one JSON object a line on stdout; the note is on stderr."""
    config = write_config(tmp_path)
    await _told(tmp_path / "state")
    run = CliRunner().invoke
    both = ["events", "--config", str(config)]
    found = run(app, [*both, "--json", "--kind", "merged"])
    late = run(app, [*both, "--json", "--since", "2027-02-01"])
    shown = run(app, both)
    follow = run(app, [*both, "--follow"])

    assert ["v001"] == [json.loads(line)["subject"] for line in found.stdout.splitlines()]
    assert "no daemon answers" in found.stderr
    assert ("", 0) == (late.stdout, late.exit_code)
    assert 4 == len(shown.stdout.splitlines())
    assert "\x1b" not in shown.stdout
    assert isinstance(follow.exception, UnreachableError)
