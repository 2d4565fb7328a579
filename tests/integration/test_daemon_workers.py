"""Worker processes under the daemon's care."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from eagled import supervise
from eagled.config import Config
from eagled.control.desks import is_alive
from eagled.supervise import Supervisor, WorkerExit, WorkerSpec, extract_threads, worker_specs
from tests.servers.kit import until

SLEEPER = "import time, sys; print('up', flush=True); time.sleep(60)"
FAILING = "import sys; print('no model here', flush=True); sys.exit(78)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)"
)


class Rig:
    """A supervisor whose events are kept."""

    def __init__(self, folder: Path, code: str) -> None:
        self.started: list[int] = []
        self.ended: list[WorkerExit] = []
        self.log = folder / "w.log"
        spec = WorkerSpec("w", (sys.executable, "-c", code), {}, self.log)
        self.supervisor = Supervisor([spec], self._start, self._end)

    async def _start(self, _name: str, pid: int) -> None:
        self.started.append(pid)

    async def _end(self, ended: WorkerExit) -> None:
        self.ended.append(ended)

    def up(self) -> bool:
        """Return whether the newest worker has printed its line."""
        return self.log.exists() and self.log.read_text().count("up\n") == len(self.started) > 0


async def test_a_worker_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed worker is told about, with its signal, and has a successor."""
    monkeypatch.setattr(supervise, "BACKOFF_FIRST_S", 0.05)
    rig = Rig(tmp_path, SLEEPER)
    rig.supervisor.start()
    await until(rig.up)
    os.kill(rig.started[0], signal.SIGKILL)
    await until(lambda: len(rig.started) == 2)
    await rig.supervisor.stop()

    assert [(-signal.SIGKILL, rig.started[0])] == [(e.code, e.pid) for e in rig.ended]
    assert {} == rig.supervisor.pids()


async def test_one_that_cannot_start_is_tried_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits double between starts, and the last words are passed on."""
    monkeypatch.setattr(supervise, "BACKOFF_FIRST_S", 0.05)
    rig = Rig(tmp_path, FAILING)
    loop, times = asyncio.get_running_loop(), []
    rig.supervisor.start()
    for n in (1, 2, 3, 4):
        await until(lambda n=n: len(rig.ended) >= n)
        times.append(loop.time())
    await rig.supervisor.stop()
    waits = [b - a for a, b in pairwise(times)]

    assert {(78, "no model here")} == {(e.code, e.tail.splitlines()[-1]) for e in rig.ended}
    assert waits[0] >= 0.05
    assert waits[2] >= 0.2


@pytest.mark.parametrize("code", [SLEEPER, STUBBORN], ids=["willing", "stubborn"])
async def test_stop_ends_every_worker_in_time(tmp_path: Path, code: str) -> None:
    """SIGTERM first; whoever ignores it is killed; none is started again."""
    rig = Rig(tmp_path, code)
    rig.supervisor.start()
    await until(rig.up)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await rig.supervisor.stop(timeout_s=0.5)

    assert loop.time() - began < 5.0
    assert [] == [pid for pid in rig.started if is_alive(pid)]
    assert [] == rig.ended


async def test_a_long_log_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a worker that prints much is bounded by one old file."""
    monkeypatch.setattr(supervise, "LOG_BYTES", 100)
    rig = Rig(tmp_path, SLEEPER)
    rig.log.write_text("x" * 200)
    rig.supervisor.start()
    await until(rig.up)
    await rig.supervisor.stop()

    assert ("x" * 200, "up\n") == ((tmp_path / "w.log.1").read_text(), rig.log.read_text())


def _config(**sections: dict[str, object]) -> Config:
    return Config.model_validate({"target": {"model": "m"}, **sections})


def test_threads_of_all_workers_stay_within_the_cores() -> None:
    """Text workers have a core each; extraction has the rest, or what is configured."""
    default, two, fixed = (
        _config(),
        _config(daemon={"text_workers": 2}),
        _config(extract={"threads": 3}),
    )

    assert (1, 1, 7, 6, 3) == (
        extract_threads(default, 1),
        extract_threads(default, 2),
        extract_threads(default, 8),
        extract_threads(two, 8),
        extract_threads(fixed, 8),
    )


def test_workers_wait_passively_and_get_their_names(tmp_path: Path) -> None:
    """Every torch process sleeps while it waits; each worker knows its name, socket and parent."""
    specs = worker_specs(_config(), Path("/c.toml"), Path("/s.sock"), tmp_path)

    assert ["text-0", "extract-0"] == [spec.name for spec in specs]
    assert {"PASSIVE"} == {spec.env["OMP_WAIT_POLICY"] for spec in specs}
    assert {"/s.sock"} == {spec.env["EAGLED_SOCKET"] for spec in specs}
    assert {str(os.getpid())} == {spec.env["EAGLED_PARENT_PID"] for spec in specs}
    assert [] == worker_specs(
        _config(daemon={"workers": "external"}), Path("/c"), Path("/s"), tmp_path
    )


async def test_a_child_of_a_dead_parent_ends_itself() -> None:
    """A worker that starts after its daemon died notices and ends."""
    code = "from eagled.supervise import die_with_parent; die_with_parent(); print('alive')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env={**os.environ, "EAGLED_PARENT_PID": "1"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()

    assert (1, b"") == (process.returncode, out)


async def test_a_worker_of_a_killed_parent_is_killed_by_the_kernel() -> None:
    """However the daemon ends, and however busy the worker is, the worker ends with it."""
    child = (
        "from eagled.supervise import die_with_parent; die_with_parent();"
        "print('up', flush=True); import time; time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys, time;"
        "env = {**os.environ, 'EAGLED_PARENT_PID': str(os.getpid())};"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], env=env,"
        " stdout=subprocess.PIPE); child.stdout.readline();"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    alive = is_alive(pid)
    process.kill()
    await process.communicate()
    await until(lambda: not is_running(pid))

    assert alive


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not fetched yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
