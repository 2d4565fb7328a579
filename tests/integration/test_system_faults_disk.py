"""Faults of the disk under a whole daemon: full, read-only, and well again."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagled.types import SampleState
from tests.daemon_kit import DaemonProcess, daemon, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess
from tests.small_disk import SmallDisk, small_disk

SHORT = (
    "eagled.workers.generation.settle:DISK_RETRY_S=0.2",
    "eagled.workers.generate:STOP_GRACE_S=0.5",
    "eagled.daemon_watch:DISK_EVERY_S=3600.0",  # or nothing more is sent before a write is refused
)

ENDLESS = (
    "eagled.workers.generate:STOP_GRACE_S=3600.0",
    "eagled.daemon:CLOSE_S=3600.0",
    "eagled.daemon:STORE_CLOSE_S=3600.0",
    "eagled.daemon:STOP_S=3600.0",
)
SOON_S = 15.0  # two seconds on a free machine


def _config(folder: Path, url: str) -> Path:
    """Return a configuration whose socket is outside of the small disk."""
    socket = {"socket": str(folder / "control.sock"), "stop_timeout_s": 1.0}
    return write_config(folder, url, daemon=socket, disk={"reserve_bytes": 1 << 18})


def _argv(disk: SmallDisk, config: Path, *patches: str) -> list[str]:
    run = ("run", "--config", str(config))
    return disk.argv(sys.executable, "-m", "tests.patched", *SHORT, *patches, "--", *run)


def _started(process: DaemonProcess) -> DaemonProcess:
    process.socket = process.config.parent / "control.sock"
    return process


def _alarms(status: dict[str, Any]) -> dict[str, str]:
    return {alarm["kind"]: alarm["text"] for alarm in status["alarms"]}


def _done(n: int, status: dict[str, Any]) -> bool:
    return bool(status["datasets"]["d"]["done"] >= n)


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """What was answered waits for room; no sample is lost, charged or asked for twice."""
    with ServerProcess() as server:
        server.steps({"do": "answer", "delay_s": 0.02})
        config = _config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(500)])
        with (
            small_disk(tmp_path / "state", "-t", "tmpfs", "-o", "size=6m", "none") as disk,
            daemon(config, _argv(disk, config)) as process,
        ):
            _started(process).until(lambda status: _done(100, status))
            disk.fill()
            full = process.until(lambda s: "store" in _alarms(s))
            disk.free()
            process.until(lambda s: _done(500, s) and "store" not in _alarms(s))
            code, _ = process.stop()
            disk.bring_out()
        sent = len(server.seen()["sent"])

    assert "the disk is full" in _alarms(full)["store"]
    assert (0, 500) == (code, sent)
    assert {SampleState.GENERATED: 500} == look(config, states)
    assert "Traceback" not in process.log


def _charged(state: Path) -> int:
    """Return how many samples have a failed attempt."""
    with contextlib.closing(sqlite3.connect(state / "q.db")) as database:
        (n,) = database.execute("SELECT count(*) FROM sample WHERE failures > 0").fetchone()
    return int(n)


def test_on_a_full_disk_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """No grace is waited for, nothing acknowledged is lost, and no sample is charged."""
    with ServerProcess() as server:
        server.steps({"do": "answer", "delay_s": 0.02})
        config = _config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(500)])
        with (
            small_disk(tmp_path / "state", "-t", "tmpfs", "-o", "size=6m", "none") as disk,
            daemon(config, _argv(disk, config, *ENDLESS)) as process,
        ):
            _started(process).until(lambda status: _done(100, status))
            disk.fill()
            full = process.until(lambda s: "store" in _alarms(s))
            process.signal(signal.SIGTERM)
            process.logged("stopping in_flight=")
            process.signal(signal.SIGTERM)
            code = process.wait(SOON_S)
            disk.free()
            disk.bring_out()
        answered = look(config, states)

    assert 0 == code
    assert full["datasets"]["d"]["done"] <= answered[SampleState.GENERATED]
    assert {SampleState.GENERATED, SampleState.QUEUED} == set(answered)
    assert 500 == sum(answered.values())
    assert 0 == _charged(tmp_path / "state")
    assert "not waiting any longer" in process.log
    assert "Traceback" not in process.log


def _ext4(path: Path) -> Path:
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(16 << 20)
    try:
        subprocess.run(["/usr/sbin/mke2fs", "-q", "-t", "ext4", str(path)], check=True)
    except FileNotFoundError:
        pytest.skip("mke2fs is not there")
    return path


def test_a_disk_that_turns_read_only_is_an_alarm_and_loses_nothing(tmp_path: Path) -> None:
    """As after an I/O error: an alarm or exit 74; the next start is refused until it is mended."""
    image = str(_ext4(tmp_path / "image"))
    state = tmp_path / "state"
    with ServerProcess() as server:
        config = _config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(500)])
        with small_disk(state, "-o", "loop", image) as disk:
            argv = _argv(disk, config)
            with daemon(config, argv) as process:
                _started(process).until(lambda status: _done(100, status))
                disk.run("mount", "-o", "remount,abort", str(state))
                process.logged("IOERR")
                code, _ = process.stop()
            first = process.log
            with daemon(config, argv) as process:
                refused = process.wait()
            disk.run("umount", str(state))
            disk.run("mount", "-o", "loop", image, str(state))
            with daemon(config, argv) as process:
                _started(process).until(lambda status: _done(500, status))
                last, _ = process.stop()
            disk.bring_out()

    assert code in {0, 74}, first
    assert "Traceback" not in first.replace("the writer died", "")
    assert (74, 0) == (refused, last)
    assert "the file system is read-only" in process.log
    assert {SampleState.GENERATED: 500} == look(config, states)
