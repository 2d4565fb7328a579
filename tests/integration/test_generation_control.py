"""Steering a daemon's samples over its socket: dry runs, causes, moves, undo, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_kit import DaemonProcess, daemon, eagled, fill, write_config
from tests.servers.process import ServerProcess

LANES = {
    "lanes__short": {"context": 1000, "limit": 8, "concurrency": 8},
    "lanes__long": {"context": 0, "limit": 8, "concurrency": 8},
}


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server that refuses everything, each time with other words."""
    with ServerProcess() as process:
        body = {"error": {"message": "cannot take token 17 of 'toy'"}}
        process.steps({"do": "status", "status": 400, "body": body})
        yield process


def prompts(n: int) -> list[list[int]]:
    """Return `n` different prompts."""
    return [[1, 2, 3, i] for i in range(n)]


def rejected(n: int) -> Any:
    """Return what is true of a status once `n` samples are rejected."""
    return lambda status: status["datasets"]["d"]["rejected"] == n


def cli(process: DaemonProcess, *args: str) -> str:
    """Run a command against the daemon and return what it printed."""
    done = eagled(*args, "--config", str(process.config), cwd=process.config.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_failures_are_retried_by_their_cause(server: ServerProcess, tmp_path: Path) -> None:
    """One cause for all; a dry run changes nothing; the retry queues them all."""
    config = write_config(tmp_path, server.url, **LANES)
    fill(config, prompts(20))
    with daemon(config) as running:
        running.until(rejected(20))
        shown = cli(running, "failures")
        (group,) = running_failures(running)
        would = cli(running, "retry", "--cause", group["cause"], "--dry-run")
        before = running.status()["datasets"]["d"]["rejected"]
        server.steps({"do": "answer"})
        done = cli(running, "retry", "--cause", group["cause"])
        running.until(lambda status: status["datasets"]["d"]["done"] == 20)
        wrong = eagled("retry", "--cause", "00000000", "--config", str(config))
        running.stop()

    assert group["n"] == 20
    assert "HTTP N: cannot take token N of …" in group["pattern"]
    assert group["cause"] in shown
    assert ("20 samples would be queued again", 20) == (would.strip(), before)
    assert "20 samples are queued again" in done
    assert wrong.returncode == 2


def running_failures(process: DaemonProcess) -> list[dict[str, Any]]:
    """Return the failures that the daemon shows."""
    from eagled.control import call

    rows: list[dict[str, Any]] = call.get(process.socket, "/v1/failures")["failures"]
    return rows


def test_moves_and_holds_are_taken_back_over_a_restart(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Paused, moved, restarted: both are still so, and both are taken back in order."""
    config = write_config(tmp_path, server.url, **LANES)
    fill(config, prompts(10))
    server.steps({"do": "never"})
    with daemon(config) as running:
        running.ready()
        cli(running, "pause")
        running.until(lambda status: status["phase"] == "paused")
        running.stop()
    server.steps({"do": "answer"})
    with daemon(config) as running:
        queued = running.until(lambda status: status["lanes"]["short"]["queued"] == 10)
        assert queued["phase"] == "paused"
        moved = cli(running, "move", "long", "--dataset", "d")
        in_long = running.until(lambda status: status["lanes"]["long"]["queued"] == 10)
        cli(running, "undo")
        back = running.until(lambda status: status["lanes"]["short"]["queued"] == 10)
        said = cli(running, "undo")
        running.until(lambda status: status["datasets"]["d"]["done"] == 10)
        running.stop()

    assert "10 samples are moved to lane long" in moved
    assert (in_long["phase"], back["phase"]) == ("paused", "paused")
    assert "hold" in said


def test_shares_and_limits_are_set_live(server: ServerProcess, tmp_path: Path) -> None:
    """A dataset's limit holds at the server; wrong settings are named."""
    config = write_config(tmp_path, server.url, **LANES)
    fill(config, prompts(10))
    server.steps({"do": "never"})
    with daemon(config) as running:
        running.until(lambda status: status["lanes"]["short"]["in_flight"] == 8)
        text = cli(running, "set", "dataset.d.limit", "3")
        lane = cli(running, "set", "lane.short.share", "0.25")
        bad = eagled("set", "dataset.d.limit", "2.5", "--config", str(config))
        worse = eagled("set", "lane.short.colour", "1", "--config", str(config))
        running.stop()

    assert "priority 0" in text
    assert "share 0.25" in lane
    assert (bad.returncode, worse.returncode) == (2, 2)
    assert "lane.NAME.share" in worse.stderr
