"""`eagled top` in a real terminal, under tmux."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.terminal import (
    DEADLINE_S,
    CannedDaemon,
    Tmux,
    clean_environ,
    tmux,
    top_command,
    wait_until,
)

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
LARGE, SMALL = (160, 50), (80, 24)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    """A tmux server of this test."""
    with tmux(tmp_path) as server:
        yield server


@needs_tmux
def test_watch_pause_quit(terminal: Tmux, tmp_path: Path) -> None:
    """The screen shows the daemon's numbers, p reaches the daemon, q ends it with 0."""
    socket = tmp_path / "c.sock"
    with CannedDaemon(socket) as daemon:
        terminal.start(top_command(socket), size=LARGE, environ=clean_environ())
        terminal.wait_for("LIVE")
        screen = terminal.wait_for("─ EXTRACTION ─")
        codes = terminal.run("capture-pane", "-p", "-e", "-t", "top")
        terminal.press("p")
        wait_until(lambda: bool(daemon.posts), terminal.screen)
        terminal.wait_for("lane short: paused")
        terminal.press("q")
        code = terminal.exit_code()

    assert "▸short      187/200   31 204   48 808" in screen
    assert [] == re.findall(r"\x1b\[[0-9;]*[34]8;[0-9;]*m", codes)  # the terminal's own colours
    assert [("/v1/lanes/short", {"paused": True})] == daemon.posts
    assert 0 == code


@needs_tmux
def test_starts_without_a_daemon(terminal: Tmux, tmp_path: Path) -> None:
    """The screen may be started before the daemon; it says what it waits for."""
    socket = tmp_path / "c.sock"
    terminal.start(top_command(socket), size=SMALL, environ=clean_environ())
    terminal.wait_for("DAEMON UNREACHABLE")
    with CannedDaemon(socket):
        terminal.wait_for("LIVE")
        terminal.press("q")
        assert 0 == terminal.exit_code()


@needs_tmux
def test_demo(terminal: Tmux) -> None:
    """The recording plays without a daemon."""
    command = f"{sys.executable} -m eagled top --demo"
    terminal.start(command, size=LARGE, environ=clean_environ(COLORFGBG="0;15"))
    terminal.wait_for("DEMO")
    terminal.press("4")
    terminal.wait_for("FAILURES BY CAUSE")
    terminal.press("q")

    assert 0 == terminal.exit_code()


def _plain(socket: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagled.tui", "--socket", str(socket)],
        capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        env=clean_environ(**environ),
    )  # fmt: skip


def test_not_a_terminal(tmp_path: Path) -> None:
    """Into a pipe goes plain text without a control character; without a daemon the code is 69."""
    socket = tmp_path / "c.sock"
    absent = _plain(socket)
    with CannedDaemon(socket):
        present = _plain(socket, TERM="dumb")

    assert (69, "") == (absent.returncode, absent.stdout)
    assert "no status" in absent.stderr
    assert 0 == present.returncode
    assert "short      187/200   31 204   48 808" in present.stdout
    assert "\x1b" not in present.stdout


def test_a_lost_terminal_ends_it(tmp_path: Path) -> None:
    """When the terminal goes away the process ends, even where SIGHUP was ignored."""
    master, slave = pty.openpty()
    command = f"trap '' HUP; exec {top_command(tmp_path / 'none.sock')}"
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=slave, stdout=slave, stderr=slave,
        env=clean_environ(TERM="xterm-256color"), start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    end = time.monotonic() + DEADLINE_S
    seen = b""
    while b"UNREACHABLE" not in seen and time.monotonic() < end:
        if select.select([master], [], [], 0.1)[0]:
            seen += os.read(master, 65536)
    os.close(master)

    assert b"UNREACHABLE" in seen
    assert 0 != process.wait(DEADLINE_S)
