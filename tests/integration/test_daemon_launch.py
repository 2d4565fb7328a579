"""The daemon with a server of its own: started, started again, taken over, ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from eagled.server.launch import start_ticks
from eagled.types import EventKind, SampleState
from tests.daemon_kit import ROOT, daemon, fill, look, write_config
from tests.integration.test_launch import _pairs, free_port

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
DEADLINE_S = 180.0


def launching_config(folder: Path, *lines: str, told: dict[str, Any] | None = None) -> Path:
    """Return a configuration that launches the stand-in, on a port of its own."""
    port = free_port()
    path = write_config(
        folder, f"http://127.0.0.1:{port}", generation={"hang_s": 0.6, "retry_max_s": 0.5}
    )
    argv = [sys.executable, "-m", "tests.servers.launchable", "--port", str(port)]
    env = {
        "LAUNCHABLE": json.dumps(told or {}),
        "LAUNCHABLE_PIDS": str(folder / "pids"),
        "PYTHONPATH": str(ROOT),
    }
    with path.open("a") as file:
        file.write(f"launch = {json.dumps(argv)}\n" + "".join(f"{line}\n" for line in lines))
        file.write("[serve.env]\n")
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in env.items())
    return path


def wait_for(condition: Any) -> None:
    """Wait for a condition; fail when its deadline passes."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about in time"
        time.sleep(0.02)


def events_of(config: Path, *kinds: EventKind) -> list[str]:
    """Return the details of a stopped daemon's events of some kinds."""

    async def read(store: Any) -> list[str]:
        return [e.detail for e in await store.events(0, 200) if e.kind in kinds]

    found: list[str] = look(config, read)
    return found


def all_done(n: int) -> Any:
    """Return what is true of a status once `n` samples are generated."""
    return lambda status: status["datasets"]["d"]["done"] == n


def test_a_run_with_its_own_server(tmp_path: Path) -> None:
    """Launched, used, killed and started again in the middle, ended with the daemon."""
    config = launching_config(tmp_path, told={"settings": {"generate": [
        {"do": "answer", "delay_s": 0.05}]}})  # fmt: skip
    fill(config, [[*PROMPT, i] for i in range(60)])
    with daemon(config) as running:
        running.until(lambda status: status["datasets"]["d"]["done"] >= 10)
        first = _pairs(tmp_path / "pids")[0][0]
        os.kill(first, signal.SIGKILL)
        running.until(all_done(60))
        code, _ = running.stop()

    pids = _pairs(tmp_path / "pids")
    ended = events_of(config, EventKind.SERVER_ENDED)
    assert code == 0
    assert len(pids) == 2
    assert {start_ticks(pid) for pair in pids for pid in pair} == {None}
    assert ["exit code -9" in ended[0], ended[1]] == [True, "stopped with the daemon"]


def test_a_server_that_hangs_is_started_anew(tmp_path: Path) -> None:
    """Frozen with requests in flight: stuck, aborted, not confirmed, restarted; all is done."""
    config = launching_config(tmp_path, told={"settings": {"generate": [
        {"do": "answer", "delay_s": 0.05}]}})  # fmt: skip
    fill(config, [[*PROMPT, i] for i in range(60)])
    with daemon(config) as running:
        running.until(lambda status: status["datasets"]["d"]["done"] >= 10)
        os.kill(_pairs(tmp_path / "pids")[0][0], signal.SIGSTOP)
        running.until(all_done(60))
        running.stop()

    (stuck,) = events_of(config, EventKind.SERVER_STUCK)
    ended = events_of(config, EventKind.SERVER_ENDED)

    async def states(store: Any) -> set[tuple[SampleState, int]]:
        return {(row.state, row.failures) for row in await store.samples(limit=100)}

    assert "server stuck" in stuck
    assert "not back to itself" in ended[0]
    assert look(config, states) == {(SampleState.GENERATED, 0)}


def test_the_next_daemon_finds_the_server_of_a_killed_one(tmp_path: Path) -> None:
    """SIGKILL of the daemon leaves the server; the next one takes it over and ends it."""
    config = launching_config(tmp_path)
    fill(config, [[*PROMPT, i] for i in range(5)])
    with daemon(config) as running:
        running.until(all_done(5))
        running.kill()
    survived = start_ticks(_pairs(tmp_path / "pids")[0][0]) is not None
    fill(config, [[*PROMPT, 50]], dataset="e")
    with daemon(config) as running:
        running.until(lambda status: status["datasets"]["e"]["done"] == 1)
        running.stop()

    launched = events_of(config, EventKind.SERVER_LAUNCHED)
    ((pid, child),) = _pairs(tmp_path / "pids")
    assert survived
    assert launched[1] == f"pid {pid} taken over"
    assert (start_ticks(pid), start_ticks(child)) == (None, None)
