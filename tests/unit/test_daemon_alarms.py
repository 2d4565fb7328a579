"""The operator's command hears of each alarm once, and can never hold up the daemon."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eagled import daemon_alarms
from eagled.daemon_alarms import AlarmCommand
from eagled.status import Alarm
from tests.servers.kit import until

DISK = Alarm("disk", "error", "full; $(rm -rf /) `x`", 5)
READ = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read() + b'\\n')"


@asynccontextmanager
async def _serving(command: AlarmCommand) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(command.serve())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _told(path: Path, n: int) -> list[dict[str, object]]:
    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    await until(lambda: len(lines()) >= n)
    return [json.loads(line) for line in lines()]


async def test_each_change_is_told_once(tmp_path: Path) -> None:
    """Raised, still up, taken back: two messages, the text whole and as data."""
    out = tmp_path / "told"
    command = AlarmCommand((sys.executable, "-c", READ, str(out)), "night")
    async with _serving(command):
        for alarms in ([DISK], [DISK], []):
            command.look(alarms)
        told = await _told(out, 2)

    common = {"run": "night", "kind": "disk", "level": "error", "text": DISK.text, "since_ms": 5}
    assert [{**common, "change": "raised"}, {**common, "change": "cleared"}] == told


async def test_a_command_that_hangs_is_killed_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run never ends by itself; the second is reached all the same."""
    monkeypatch.setattr(daemon_alarms, "COMMAND_S", 0.3)
    out = tmp_path / "told"
    hang = (
        "import sys, time; text = sys.stdin.read();"
        "time.sleep(1000) if '\"raised\"' in text else open(sys.argv[1], 'w').write(text + '\\n')"
    )
    command = AlarmCommand((sys.executable, "-c", hang, str(out)), "night")
    async with _serving(command):
        command.look([DISK])
        command.look([])
        told = await _told(out, 1)

    assert ["cleared"] == [t["change"] for t in told]


async def test_a_command_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong path is an error in the log, not the end of the task."""
    command = AlarmCommand(("/nowhere/mail",), "night")
    async with _serving(command) as serving:
        command.look([DISK])
        await until(lambda: "/nowhere/mail" in caplog.text)

        assert not serving.done()


async def test_a_flood_of_alarms_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit the line is said in the log and dropped."""
    command = AlarmCommand(("/bin/true",), "night")
    command.look([Alarm(f"a{i}", "warn", "x", 1) for i in range(daemon_alarms.MAX_WAITING + 3)])

    assert 3 == caplog.text.count("too slow")
