"""Servers that eagled starts: kept running, taken over, ended with everything they started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.clock import SystemClock
from eagled.server import launch as launching
from eagled.server.client import SglangClient
from eagled.server.launch import Launch, Launcher, Running, end_group, end_strays, name_of
from tests.servers.kit import VOCAB, make_config, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits."""
    monkeypatch.setattr(launching, "BACKOFF_FIRST_S", 0.05)
    monkeypatch.setattr(launching, "_LOOK_S", 0.05)
    monkeypatch.setattr(launching, "STOP_S", 5.0)


@pytest.fixture(autouse=True)
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where started servers write who they are; whatever lives at the end is killed."""
    record = tmp_path / "pids"
    monkeypatch.setenv("LAUNCHABLE_PIDS", str(record))
    yield record
    for pid in [p for pair in _pairs(record) for p in pair]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pairs(record: Path) -> list[tuple[int, int]]:
    if not record.exists():
        return []
    lines = [line.split() for line in record.read_text().splitlines()]
    return [(int(a), int(b)) for a, b in lines]


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    return launching.start_ticks(pid) is not None


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Rig:
    """A launcher and what it told."""

    def __init__(self, folder: Path, port: int, *flags: str, **more: Any) -> None:
        self.url = f"http://127.0.0.1:{port}"
        env = {"LAUNCHABLE": json.dumps(more.pop("told", {})), "PYTHONPATH": str(ROOT)}
        argv = (sys.executable, "-m", "tests.servers.launchable", "--port", str(port), *flags)
        name = name_of(self.url)
        about = {"timeout_s": 30.0, "keep": False} | more
        log = folder / "server.log"
        self.launch = Launch(name, self.url, argv, env, folder / "servers", log, **about)
        self.events: list[tuple[str, str]] = []
        self.launcher = Launcher(self.launch, SystemClock(), self._answers, self._told)

    async def _answers(self) -> bool:
        config = make_config(self.url)
        async with SglangClient(config.servers[0], config.generation, vocab_size=VOCAB) as client:
            return await client.reachable()

    async def _told(self, what: str, _url: str, detail: str) -> None:
        self.events.append((what, detail))

    async def up(self) -> int:
        """Start and wait until it answers; return its pid."""
        self.launcher.start()
        await self.answering()
        assert self.launcher.pid is not None
        return self.launcher.pid

    async def answering(self) -> None:
        """Wait until it answers."""

        async def yes() -> bool:
            return await self._answers()

        await until(yes)

    def abandon(self) -> None:
        """Stop watching, as a daemon that is killed does."""
        assert self.launcher._task is not None
        self.launcher._task.cancel()


async def test_a_stop_ends_the_server_and_its_children(tmp_path: Path, pids: Path) -> None:
    """Its own children are gone too, and no record is left."""
    rig = Rig(tmp_path, free_port())
    leader = await rig.up()
    ((pid, child),) = _pairs(pids)
    recorded = rig.launch.record.exists()
    await rig.launcher.stop()

    assert (leader, True) == (pid, recorded)
    assert (False, False) == (alive(pid), alive(child))
    assert not rig.launch.record.exists()
    assert ["launched", "ended"] == [what for what, _ in rig.events]


async def test_a_server_that_is_killed_starts_again(tmp_path: Path, pids: Path) -> None:
    """What is left of its group goes first; the event says how it ended."""
    rig = Rig(tmp_path, free_port())
    first = await rig.up()
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(_pairs(pids)) == 2)
    await rig.answering()
    await rig.launcher.stop()

    assert not alive(_pairs(pids)[0][1])
    assert "exit code -9" in rig.events[1][1]
    assert ["launched", "ended", "launched", "ended"] == [what for what, _ in rig.events]


async def test_the_next_daemon_takes_the_server_over(tmp_path: Path, pids: Path) -> None:
    """After a SIGKILL of the daemon the model is not loaded again; it can still be ended."""
    port = free_port()
    first = Rig(tmp_path, port)
    pid = await first.up()
    first.abandon()
    second = Rig(tmp_path, port)
    again = await second.up()
    await second.launcher.stop()

    assert pid == again
    assert 1 == len(_pairs(pids))
    assert f"pid {pid} taken over" == second.events[0][1]
    assert not alive(pid)


async def test_another_command_replaces_what_runs(tmp_path: Path, pids: Path) -> None:
    """A server that was started with other flags is ended, and the wanted one started."""
    port = free_port()
    first = Rig(tmp_path, port, "--context-length", "4096")
    old = await first.up()
    first.abandon()
    second = Rig(tmp_path, port, "--context-length", "8192")
    second.launcher.start()
    await until(lambda: len(_pairs(pids)) == 2)
    await second.answering()
    await second.launcher.stop()

    assert not alive(old)
    assert ["ended", "launched", "ended"] == [what for what, _ in second.events]


async def test_children_without_a_leader_are_found_at_the_start(tmp_path: Path, pids: Path) -> None:
    """The leader died while nobody watched: what it left is killed before the next start."""
    port = free_port()
    first = Rig(tmp_path, port)
    leader = await first.up()
    first.abandon()
    os.kill(leader, signal.SIGKILL)
    assert first.launcher._child is not None
    await first.launcher._child.wait()
    orphan = _pairs(pids)[0][1]
    assert alive(orphan)
    second = Rig(tmp_path, port)
    await second.up()
    await second.launcher.stop()

    assert not alive(orphan)


async def test_one_that_ends_at_once_waits_longer_each_time(tmp_path: Path) -> None:
    """The event has exit code and last line; the wait doubles."""
    rig = Rig(tmp_path, free_port(), told={"exit": 3})
    rig.launcher.start()
    await until(lambda: len(rig.events) >= 6, 60)
    await rig.launcher.stop()

    ended = [detail for what, detail in rig.events if what == "ended"]
    assert all("exit code 3: out of memory on GPU 0" in text for text in ended[:3])
    assert ["0.05 s", "0.1 s", "0.2 s"] == [" ".join(t.split(" in ")[1].split()[:2])
                                            for t in ended[:3]]  # fmt: skip


async def test_one_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """Alive but mute beyond its time: ended and started again."""
    rig = Rig(tmp_path, free_port(), told={"mute": True}, timeout_s=0.3)
    rig.launcher.start()
    await until(lambda: len(rig.events) >= 3)
    await rig.launcher.stop()

    assert "no answer within 0.3 s" in rig.events[1][1]


async def test_a_restart_on_demand_says_why(tmp_path: Path, pids: Path) -> None:
    """What the generator found stuck is ended and started, a frozen process too."""
    rig = Rig(tmp_path, free_port())
    pid = await rig.up()
    os.kill(pid, signal.SIGSTOP)
    launching.STOP_S = 0.2
    rig.launcher.restart("stuck for 240 s")
    await until(lambda: len(_pairs(pids)) == 2)
    await rig.answering()
    await rig.launcher.stop()

    assert "stuck for 240 s" in rig.events[1][1]
    assert not alive(pid)


async def test_a_kept_server_outlives_the_stop_until_nobody_wants_it(
    tmp_path: Path, pids: Path
) -> None:
    """`launch_keep` leaves it; once it is out of the configuration it is ended."""
    rig = Rig(tmp_path, free_port(), keep=True)
    pid = await rig.up()
    await rig.launcher.stop()
    kept = alive(pid)
    ended = await end_strays(rig.launch.folder, frozenset())

    assert kept
    assert [f"{rig.launch.name}: pid {pid}"] == ended
    assert (False, False) == (alive(pid), alive(_pairs(pids)[0][1]))


async def test_a_number_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    """A record of an earlier boot, or of a pid that was given out again, kills nobody."""
    other = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        started = launching.start_ticks(other.pid)
        assert started is not None
        for fake in (
            Running(other.pid, started - 5, launching.boot_id(), "x"),
            Running(other.pid, started, "another boot", "x"),
        ):
            folder = tmp_path / "servers"
            folder.mkdir(exist_ok=True)
            record = folder / "sglang-x.json"
            record.write_text(json.dumps({f: getattr(fake, f) for f in fake.__slots__}))
            assert [] == await end_strays(folder, frozenset())
        assert alive(other.pid)
    finally:
        await end_group(Running(other.pid, started or 0, launching.boot_id(), "x"))
        await other.wait()
