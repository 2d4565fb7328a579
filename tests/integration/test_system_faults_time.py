"""A clock that jumps, a lock that is held, and a server that does every wrong thing in turn."""

from __future__ import annotations

import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from eagled.types import SampleState
from tests.altered import OFFSET_ENV, move_clock
from tests.daemon_kit import DEADLINE_S, daemon, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess

DAY_S = 86_400
WRONG = (
    {"do": "reset"}, {"do": "vanish"}, {"do": "half"}, {"do": "garbage"},
    {"do": "status", "status": 502, "body": "<html>Bad Gateway</html>"},
    {"do": "status", "status": 503, "body": "busy"}, {"do": "status", "status": 200, "body": ""},
    {"do": "status", "status": 200, "body": "[1, 2"},
)  # fmt: skip


def _prompts(n: int) -> list[list[int]]:
    return [[1, 2, i % 200, i // 200] for i in range(n)]


def _argv(config: Path) -> list[str]:
    run = ("run", "--config", str(config))
    return [sys.executable, "-m", "tests.patched", "alter=moved_clock", "--", *run]


def test_a_clock_that_jumps_neither_stalls_nor_repeats_anything(tmp_path: Path) -> None:
    """A day forward and two back while it runs: each sample is asked for once, and no alarm."""
    offset = tmp_path / "offset"
    move_clock(offset, 0)
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url, disk={"reserve_bytes": 0, "resume_bytes": 0})
        server.steps({"do": "answer", "delay_s": 0.02})
        fill(config, _prompts(300))
        with daemon(config, _argv(config), **{OFFSET_ENV: str(offset)}) as process:
            process.until(lambda s: s["datasets"]["d"]["done"] >= 50)
            move_clock(offset, DAY_S)
            process.until(lambda s: s["datasets"]["d"]["done"] >= 120)
            move_clock(offset, -DAY_S)
            end = process.until(lambda s: s["datasets"]["d"]["done"] == 300)
            code, _ = process.stop()
        sent = len(server.seen()["sent"])

    assert (0, 300, []) == (code, sent, end["alarms"])
    assert {SampleState.GENERATED: 300} == look(config, states)


def test_a_clock_that_was_set_back_while_down_does_not_hold_up_retries(tmp_path: Path) -> None:
    """What waited for seconds waits for seconds after the start, not for the lost day."""
    offset = tmp_path / "offset"
    move_clock(offset, 0)
    waits = {"retry_base_s": 1.0, "retry_max_s": 2.0, "max_failures": 1000}
    with ServerProcess() as server:
        server.set(poison={"id": 200, "step": {"do": "half"}})
        config = write_config(tmp_path, server.url, generation=waits)
        fill(config, [[200 + 50 * (i % 2), i] for i in range(40)])
        with daemon(config, _argv(config), **{OFFSET_ENV: str(offset)}) as process:
            process.until(lambda s: s["datasets"]["d"]["retry_wait"] >= 5)
            process.kill()
        move_clock(offset, -DAY_S)
        server.set(poison={"id": None, "step": None})
        with daemon(config, _argv(config), **{OFFSET_ENV: str(offset)}) as process:
            process.until(lambda s: s["datasets"]["d"]["done"] == 40)
            code, _ = process.stop()

    assert 0 == code
    assert {SampleState.GENERATED: 40} == look(config, states)


def test_a_writer_that_stands_still_is_no_sign_of_life(tmp_path: Path) -> None:
    """Another program holds the database: systemd hears why, and no WATCHDOG, until it lets go."""
    with ServerProcess() as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_S)
        config = write_config(tmp_path, server.url)
        server.set(generate=[{"do": "held"}], open=False)
        fill(config, _prompts(40))
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"}
        with daemon(config, **notify) as process:
            process.until(lambda s: s["datasets"]["d"]["generating"] == 8)
            database = sqlite3.connect(tmp_path / "state/q.db", isolation_level=None)
            with closing(database):
                database.execute("BEGIN IMMEDIATE")
                server.set(open=True)
                _hear(manager, "STATUS=the database writer has not moved")
                database.execute("ROLLBACK")
            _hear(manager, "WATCHDOG=1")
            process.until(lambda s: s["datasets"]["d"]["done"] == 40)
            code, _ = process.stop()

    assert 0 == code
    assert {SampleState.GENERATED: 40} == look(config, states)


def _hear(manager: socket.socket, wanted: str) -> None:
    while not manager.recv(4096).decode().startswith(wanted):
        pass


def test_whatever_a_server_does_wrong_costs_no_sample(tmp_path: Path) -> None:
    """Cut, reset, empty, garbled and refused answers in turn: all are answered in the end."""
    with ServerProcess() as server:
        server.steps(*WRONG, *WRONG, {"do": "answer"})
        config = write_config(tmp_path, server.url)
        fill(config, _prompts(60))
        with daemon(config) as process:
            process.until(lambda s: s["datasets"]["d"]["done"] == 60)
            code, _ = process.stop()
        sent = len(server.seen()["sent"])

    assert (0, 60 + 2 * len(WRONG)) == (code, sent)
    assert {SampleState.GENERATED: 60} == look(config, states)
