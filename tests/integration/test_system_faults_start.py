"""Kills at the points that only a start passes, two daemons at once, files that were damaged."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagled.types import SampleState
from eagled.workers.prepare import prepare_dataset
from tests.daemon_kit import DEADLINE_S, DaemonProcess, daemon, eagled, fill, look, write_config
from tests.migration.test_migrations import make_old
from tests.prep_kit import toy_config, toy_renderer, write_jsonl
from tests.servers.kit import states
from tests.servers.process import ServerProcess

N = 40


def _prompts(n: int) -> list[list[int]]:
    return [[1, 2, i % 200, i // 200] for i in range(n)]


def _prepare(state: Path, n: int) -> None:
    """Leave a prepared dataset in a state directory, as `eagled prep` does."""
    rows = [{"messages": [{"role": "user", "content": f"Question {i}"}]} for i in range(n)]
    config = toy_config(state, write_jsonl(state.parent / "d.jsonl", *rows))
    prepare_dataset(config, config.datasets[0], renderer=toy_renderer())


def _leave_in_flight(config: Path, server: ServerProcess) -> None:
    """Kill a daemon that has requests at the server."""
    fill(config, _prompts(N))
    server.steps({"do": "never"})
    with daemon(config) as process:
        process.until(lambda s: s["datasets"]["d"]["generating"] == 8)
        process.kill()
    server.steps({"do": "answer"})


def _before_mid_enqueue(config: Path, _server: ServerProcess) -> dict[SampleState, int]:
    _prepare(config.parent / "state", N)
    return {SampleState.GENERATED: N}


def _before_recovery(config: Path, server: ServerProcess) -> dict[SampleState, int]:
    _leave_in_flight(config, server)
    return {SampleState.GENERATED: N}


def _before_migration(config: Path, _server: ServerProcess) -> dict[SampleState, int]:
    state = config.parent / "state"
    state.mkdir()
    make_old(state, 1)
    return {SampleState.FAILED: 1}  # its ids are beyond this model's vocabulary


POINTS = {
    "mid_enqueue": _before_mid_enqueue,
    "during_recovery": _before_recovery,
    "during_migration": _before_migration,
}


def _settled(status: dict[str, Any]) -> int:
    """Return how many samples are answered or refused."""
    ended = ("generated", "rejected", "failed")
    return sum(d[state] for d in status["datasets"].values() for state in ended)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_during_start_is_made_good_by_the_next_start(tmp_path: Path, point: str) -> None:
    """In the midst of enqueue, recovery or migration: the next daemon has every sample, once."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        expected = POINTS[point](config, server)
        before = len(server.seen()["sent"])
        with daemon(config, EAGLED_CRASH_AT=point) as process:
            killed = process.wait()
        with daemon(config) as process:
            process.until(lambda s: _settled(s) == sum(expected.values()))
            code, _ = process.stop()
        sent = len(server.seen()["sent"]) - before

    assert (137, 0) == (killed, code)
    assert (expected.get(SampleState.GENERATED, 0), expected) == (sent, look(config, states))


def _first_to_end(*pair: DaemonProcess) -> DaemonProcess:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        ended = [process for process in pair if process.returncode is not None]
        if ended:
            return ended[0]
        assert time.monotonic() < deadline, "both daemons run"
        time.sleep(0.02)


def test_of_two_daemons_that_start_at_once_one_works_and_one_leaves(tmp_path: Path) -> None:
    """Whichever comes second ends with 75 and has changed nothing; no sample is asked for twice."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, _prompts(N))
        with daemon(config) as one, daemon(config) as other:
            second = _first_to_end(one, other)
            first = other if second is one else one
            first.until(lambda s: s["datasets"]["d"]["done"] == N)
            code, _ = first.stop()
        sent = len(server.seen()["sent"])

    assert (75, 0, N) == (second.returncode, code, sent)
    assert f"(pid {first.pid})" in first.log
    assert {SampleState.GENERATED: N} == look(config, states)


def _wal(state: Path) -> Path:
    return state / "q.db-wal"


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "the log deleted": (lambda state: _wal(state).unlink(), "eagled db accept"),
    "a bit of the log flipped": (lambda state: _flip(_wal(state)), "eagled db accept"),
    "the log cut": (lambda state: _cut(_wal(state)), "eagled db accept"),
    "the database cut": (lambda state: _cut(state / "q.db"), "eagled db restore"),
}


def test_damaged_files_are_refused_unchanged_and_a_garbled_index_is_not(tmp_path: Path) -> None:
    """After a kill: each damage ends the start with 73 and what to do; the -shm is only a cache."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, _prompts(N))
        with daemon(config) as process:
            process.until(lambda s: s["datasets"]["d"]["done"] == N)
            process.kill()
    state, kept = tmp_path / "state", tmp_path / "kept"
    shutil.copytree(state, kept, ignore=shutil.ignore_patterns("*.sock"))
    seen = {}
    for name, (damage, _) in DAMAGE.items():
        _put_back(kept, state)
        damage(state)
        before = _files(state)
        done = eagled("run", "--config", str(config))
        seen[name] = (done.returncode, _hint(done.stderr), before == _files(state))
    _put_back(kept, state)
    (state / "q.db-shm").write_bytes(b"x" * 32_768)

    assert {name: (73, hint, True) for name, (_, hint) in DAMAGE.items()} == seen
    assert {SampleState.GENERATED: N} == look(config, states)


def _hint(stderr: str) -> str:
    assert "Traceback" not in stderr
    return next((hint for hint in ("eagled db accept", "eagled db restore") if hint in stderr), "")


def _put_back(kept: Path, state: Path) -> None:
    shutil.rmtree(state)
    shutil.copytree(kept, state)


def _files(state: Path) -> dict[str, bytes]:
    return {name: (state / name).read_bytes() for name in ("q.db", "q.stamp")} | {
        "wal": _wal(state).read_bytes() if _wal(state).exists() else b""
    }
