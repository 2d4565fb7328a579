"""SIGTERM, in whatever state the daemon is."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from eagled.types import SampleState
from tests.daemon_kit import daemon, fill, look, write_config
from tests.faults import fault_row
from tests.servers.kit import states
from tests.servers.process import ServerProcess

SPARE_S = 5.0  # over the configured stop timeout, for workers, socket and database
STOP_S = 2.0
PROMPTS = [[1, 2, 3 + i] for i in range(40)]
HOLD = {"do": "never"}


def _config(folder: Path, *urls: str) -> Path:
    return write_config(folder, *urls, daemon={"workers": "external", "stop_timeout_s": STOP_S})


def _in_flight(status: dict[str, Any]) -> int:
    return int(status["lanes"]["short"]["in_flight"])


def _closed(config: Path) -> bool:
    """Return whether the database was closed in order: no log is left beside it."""
    state = config.parent / "state"
    return not (state / "q.db-wal").exists() and not (state / "control.sock").exists()


@pytest.mark.fault("F95")
def test_idle_it_ends_with_0_and_a_closed_database(tmp_path: Path) -> None:
    """An idle daemon ends at once, in order."""
    assert "exits within the stop time with code 0" in fault_row("F95")["expect"]
    config = _config(tmp_path)
    with daemon(config) as process:
        process.ready()
        code, seconds = process.stop()

    assert 0 == code, process.log
    assert seconds < SPARE_S
    assert _closed(config)


@pytest.mark.fault("F95")
def test_mid_request_what_does_not_end_in_time_is_queued_again_uncharged(tmp_path: Path) -> None:
    """Requests that hang at the server are given back after the stop timeout."""
    assert "in-flight samples are back in the queue" in fault_row("F95")["expect"]
    with ServerProcess() as server:
        server.steps(HOLD)
        config = _config(tmp_path, server.url)
        fill(config, PROMPTS)
        with daemon(config) as process:
            process.until(lambda status: _in_flight(status) == 8)
            code, seconds = process.stop()

        assert 0 == code, process.log
        assert STOP_S <= seconds < STOP_S + SPARE_S
        assert {SampleState.QUEUED: 40} == look(config, states)
        assert 8 == len(server.seen()["aborted"])


@pytest.mark.fault("F95")
def test_mid_request_what_ends_in_time_is_kept(tmp_path: Path) -> None:
    """SIGTERM waits for answers that are on their way and starts nothing new."""
    assert "within the stop time" in fault_row("F95")["expect"]
    with ServerProcess() as server:
        server.steps({"do": "answer", "delay_s": 1.0})
        config = _config(tmp_path, server.url)
        fill(config, PROMPTS)
        with daemon(config) as process:
            process.until(lambda status: _in_flight(status) == 8)
            code, seconds = process.stop()
        sent = len(server.seen()["sent"])
        found = look(config, states)

    assert 0 == code, process.log
    assert seconds < STOP_S + SPARE_S
    assert {SampleState.GENERATED: sent, SampleState.QUEUED: 40 - sent} == found


@pytest.mark.fault("F95")
def test_mid_write_every_acknowledged_answer_is_there(tmp_path: Path) -> None:
    """A stop while answers are being stored loses none that the server gave."""
    assert "mid-write" in fault_row("F95")["how"]
    with ServerProcess() as server:
        config = _config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(3000)])
        with daemon(config) as process:
            process.until(lambda status: status["lanes"]["short"]["generated"] >= 20)
            code, seconds = process.stop()
        sent = len(server.seen()["sent"])
        found = look(config, states)

    assert 0 == code, process.log
    assert seconds < STOP_S + SPARE_S
    assert sent == found[SampleState.GENERATED]
    assert 3000 == sum(found.values())
    assert _closed(config)


@pytest.mark.fault("F95")
@pytest.mark.parametrize("moment", ["opening the database", "checking shards", "connecting"])
def test_during_start_it_ends_with_0(tmp_path: Path, moment: str) -> None:
    """A signal in any phase of the start ends the daemon in order."""
    assert "during start" in fault_row("F95")["how"]
    config = _config(tmp_path)
    fill(config, PROMPTS)
    with daemon(config) as process:
        process.logged(moment)
        code, seconds = process.stop()

    assert 0 == code, process.log
    assert seconds < SPARE_S
    assert {SampleState.QUEUED: 40} == look(config, states)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cuts_the_waiting_short(tmp_path: Path, number: int) -> None:
    """Whoever signals twice does not wait for the stop timeout."""
    with ServerProcess() as server:
        server.steps(HOLD)
        config = write_config(tmp_path, server.url, daemon={"stop_timeout_s": 600.0})
        fill(config, PROMPTS)
        with daemon(config) as process:
            process.until(lambda status: _in_flight(status) == 8)
            process.signal(number)
            process.logged("stopping in_flight=8")
            process.signal(number)
            code = process.wait(15.0)

        assert 0 == code, process.log
        assert {SampleState.QUEUED: 40} == look(config, states)


@pytest.mark.fault("F54")
def test_after_a_kill_only_the_missing_sample_is_asked_for(tmp_path: Path) -> None:
    """99 of 100 answers are on disk at a SIGKILL: the next daemon sends one request."""
    assert "1 request is sent, not 100" == fault_row("F54")["expect"]
    with ServerProcess() as server:
        config = _config(tmp_path, server.url)
        fill(config, [[1, 2, 3 + i] for i in range(99)])
        server.set(poison={"id": 200, "step": HOLD})
        fill(config, [[200, 1]], "last")
        with daemon(config) as process:
            process.until(lambda status: status["datasets"]["d"]["done"] == 99)
            process.kill()
        before = len(server.seen()["sent"])
        server.set(poison={"id": None, "step": None})
        with daemon(config) as again:
            again.until(lambda status: status["datasets"]["last"]["done"] == 1)
            code, _ = again.stop()

        assert 0 == code, again.log
        assert 1 == len(server.seen()["sent"]) - before


def test_a_killed_daemon_takes_its_workers_with_it(tmp_path: Path) -> None:
    """A worker of a daemon that was killed does not live on."""
    config = write_config(tmp_path, daemon={"workers": "spawn"})
    with daemon(config) as process:
        status = process.until(lambda status: "text-0" in status["workers"])
        pid = status["workers"]["text-0"]
        process.kill()

        _gone(pid)


def _gone(pid: int) -> None:
    """Wait until a process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([handle], [], [], 10.0)
    os.close(handle)
    assert ready, f"process {pid} still runs"


def test_the_last_snapshot_says_that_it_stopped(tmp_path: Path) -> None:
    """Who looks while no daemon runs sees the last state, marked as such."""
    config = _config(tmp_path)
    with daemon(config) as process:
        process.ready()
        process.stop()

    assert "stopped" == json.loads((tmp_path / "state/status.json").read_text())["phase"]


def test_nobody_holds_the_database_afterwards(tmp_path: Path) -> None:
    """Another program can take the database exclusively once the daemon has ended."""
    config = _config(tmp_path)
    with daemon(config) as process:
        process.ready()
        process.stop()
    connection = sqlite3.connect(tmp_path / "state/q.db", timeout=0)
    connection.execute("BEGIN EXCLUSIVE")
    connection.close()
