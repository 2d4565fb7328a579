"""Steering a daemon while its requests run: drain, datasets held and put first, a reject undone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_kit import DEADLINE_S, DaemonProcess, daemon, eagled, fill, write_config
from tests.servers.process import ServerProcess

WIDTH = 8  # requests at once


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server that holds every request until it is opened."""
    with ServerProcess() as process:
        process.set(open=False, generate=[{"do": "held"}])
        yield process


def prompts(first: int, n: int) -> list[list[int]]:
    """Return `n` prompts; the last id of each is its number, from `first`."""
    return [[1, 2, 3, first + i] for i in range(n)]


def told(process: DaemonProcess, *args: str) -> str:
    """Run a command against the daemon and return what it printed."""
    done = eagled(*args, "--config", str(process.config), cwd=process.config.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sent(server: ServerProcess) -> list[int]:
    """Return the number of each prompt that was sent, in order of arrival."""
    return [each["last"] for each in server.seen()["sent"]]


def arrived(server: ServerProcess, n: int) -> None:
    """Wait until so many requests have come to the server."""
    deadline = time.monotonic() + DEADLINE_S
    while len(sent(server)) < n:
        assert time.monotonic() < deadline, "the requests did not arrive in time"
        time.sleep(0.01)


def full(status: dict[str, Any]) -> bool:
    """Return whether all places are taken."""
    return bool(status["lanes"]["short"]["in_flight"] == WIDTH)


def done(**wanted: int) -> Callable[[dict[str, Any]], bool]:
    """Return what is true of a status once each dataset has so many answers and nothing runs."""
    return lambda status: (
        status["lanes"]["short"]["in_flight"] == 0
        and all(status["datasets"][name]["done"] == n for name, n in wanted.items())
    )


def test_a_drain_finishes_what_runs_and_sends_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Eight run, twelve wait: the eight are stored, the twelve are sent after `resume` only."""
    config = write_config(tmp_path, server.url)
    fill(config, prompts(0, 20))
    with daemon(config) as running:
        running.until(full)
        said = told(running, "drain")
        draining = running.status()
        server.set(open=True)
        waited = told(running, "drain", "--wait")
        drained = running.status()
        sent_before = sent(server)
        running.post("/v1/resume")
        running.until(done(d=20))
        running.stop()

    assert said.startswith("draining; 8 requests")
    assert ("draining", WIDTH) == (draining["phase"], draining["lanes"]["short"]["in_flight"])
    assert "nothing runs any more" in waited
    assert ("paused", WIDTH) == (drained["phase"], drained["datasets"]["d"]["done"])
    assert len(sent_before) == WIDTH
    assert Counter(range(20)) == Counter(sent(server))


def test_a_held_dataset_sends_nothing_over_a_kill(server: ServerProcess, tmp_path: Path) -> None:
    """What runs of it is finished, the other dataset goes on, and so it is after a SIGKILL."""
    config = write_config(tmp_path, server.url)
    fill(config, prompts(0, 12), "a")
    fill(config, prompts(100, 12), "b")
    with daemon(config) as running:
        running.until(full)
        arrived(server, WIDTH)
        said = told(running, "pause", "a", "--dataset")
        held = {number for number in sent(server) if number < 100}
        server.set(open=True)
        running.until(done(a=len(held), b=12))
        running.kill()
    with daemon(config) as running:
        again = running.ready()
        urgent = running.post("/v1/datasets/a", {"priority": 3})["message"]
        sent_before = {number for number in sent(server) if number < 100}
        running.post("/v1/datasets/a", {"paused": False})
        running.until(done(a=12, b=12))
        running.stop()

    assert said.startswith("dataset a: paused")
    assert again["datasets"]["a"]["paused"] is True
    assert "dataset a: paused, priority 3" == urgent
    assert held == sent_before
    assert Counter([*range(12), *range(100, 112)]) == Counter(sent(server))


def test_a_priority_given_while_requests_run_decides_what_is_next(
    server: ServerProcess, tmp_path: Path
) -> None:
    """One at a time: after the request in flight all of the urgent dataset, then the other."""
    lane = {"context": 4096, "limit": 1, "concurrency": 1}
    config = write_config(tmp_path, server.url, lanes__short=lane)
    fill(config, prompts(0, 6), "a")
    fill(config, prompts(100, 6), "b")
    with daemon(config) as running:
        running.until(lambda status: status["lanes"]["short"]["in_flight"] == 1)
        running.post("/v1/datasets/b", {"priority": 5})
        server.set(open=True)
        running.until(done(a=6, b=6))
        running.stop()
    first, *then = sent(server)

    assert then == [n for n in (*range(100, 106), *range(6)) if n != first]


def test_an_undone_reject_brings_answers_back(server: ServerProcess, tmp_path: Path) -> None:
    """Of twenty, four have answers and eight run: those stay, twelve go and come back whole."""
    server.steps(*[{"do": "answer"}] * 4, {"do": "held"})
    config = write_config(tmp_path, server.url)
    fill(config, prompts(0, 20))
    with daemon(config) as running:
        running.until(lambda status: full(status) and status["datasets"]["d"]["done"] == 4)
        would = running.post("/v1/reject", {"dataset": "d", "dry_run": True})["message"]
        said = told(running, "reject", "--dataset", "d", "--reason", "not wanted")
        server.set(open=True)
        rejected = running.until(done(d=WIDTH))
        undone = told(running, "undo")
        running.until(done(d=20))
        nothing = running.post("/v1/undo")["message"]
        running.stop()

    assert ("12 samples would be rejected", "12 samples are rejected") == (
        would, said.strip()
    )  # fmt: skip
    assert rejected["datasets"]["d"]["rejected"] == 12
    assert "12 taken back" in undone
    assert "nothing to take back" in nothing
    assert Counter(range(20)) == Counter(sent(server))
