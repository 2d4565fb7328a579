"""`eagled top` in a real terminal on a real daemon with the embedded engine, one for all tests."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagled.control import call
from tests.contract.server import running_engine
from tests.daemon_kit import DaemonProcess, fill, write_config
from tests.e2e.terminal import Tmux, clean_environ, process_of, tmux, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
LARGE, SMALL = (160, 50), (80, 24)
PROMPTS = [[5 + i % 200, 7, 9] for i in range(4000)]  # more than is answered while the tests run


@dataclass
class World:
    """A daemon that may be killed and started again."""

    config: Path
    daemon: DaemonProcess

    @property
    def command(self) -> str:
        """The shell command of a screen."""
        return f"{sys.executable} -m eagled top --config {self.config} --refresh 4"

    def start_again(self) -> None:
        """Start another daemon in the place of the one that was killed."""
        self.daemon.close()
        self.daemon = DaemonProcess(self.config)
        self.daemon.ready()

    def answered(self) -> str:
        """Wait for an answer; return its sample's uid."""
        self.daemon.until(lambda s: _over(s) > 0)
        rows = call.get(self.daemon.socket, "/v1/samples", limit=500)["samples"]
        return str(next(row["uid"] for row in rows if row["n_output"]))


def _over(status: dict[str, Any]) -> int:
    return sum(int(d["generated"] + d["rejected"]) for d in status["datasets"].values())


def _lane(status: dict[str, Any]) -> dict[str, Any]:
    return dict(status["lanes"]["short"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[World]:
    """One engine and one daemon, with answers on the way."""
    folder = tmp_path_factory.mktemp("top")
    with running_engine(tiny_model, folder / "engine.log", "--slots", "2") as engine:
        config = write_config(
            folder, engine.url, target={"model": str(tiny_model)}, daemon={"workers": "spawn"},
            sampling={"max_new_tokens": 64}, generation={"min_reply": 16},
            lanes__short={"context": 1000, "limit": 2, "concurrency": 2},
        )  # fmt: skip
        fill(config, PROMPTS)
        found = World(config, DaemonProcess(config))
        try:
            found.daemon.ready()
            yield found
        finally:
            found.daemon.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    """A tmux server of this test."""
    with tmux(tmp_path) as server:
        yield server


def test_look_pause_and_take_it_back(world: World, terminal: Tmux) -> None:
    """From the lanes to a sample's text; p stops the lane for all to see, u lets it go on."""
    uid = world.answered()
    terminal.start(world.command, size=SMALL, environ=clean_environ())
    terminal.wait_for("LIVE")
    terminal.press("2")
    terminal.wait_for("─ LANE short")
    terminal.press("Enter")
    terminal.wait_for("─ SAMPLES")
    terminal.press(":")
    terminal.wait_for("COMMAND")
    terminal.run("send-keys", "-t", "top", "-l", f"sample {uid}")
    terminal.press("Enter")
    terminal.wait_for(uid)
    terminal.wait_for("┃ ")
    terminal.press("1")
    terminal.wait_for("─ DATASETS")
    terminal.press("p")
    world.daemon.until(lambda s: _lane(s)["paused"] and not _lane(s)["in_flight"])
    terminal.wait_for("PAUSED")
    terminal.wait_for(" 0/2")
    terminal.press("u")
    world.daemon.until(lambda s: not _lane(s)["paused"] and _lane(s)["in_flight"] > 0)
    terminal.wait_for(" 2/2")
    terminal.press("q")

    assert 0 == terminal.exit_code()


def test_the_daemon_is_killed_and_comes_back(world: World, terminal: Tmux) -> None:
    """The last numbers stay with their age, at any size; the next daemon's are live again."""
    terminal.start(world.command, size=SMALL, environ=clean_environ())
    terminal.wait_for("LIVE")
    world.daemon.kill()
    terminal.wait_for("DAEMON UNREACHABLE")
    assert "short" in terminal.wait_for("STALE")
    terminal.run("resize-window", "-t", "top", "-x", "160", "-y", "50")
    terminal.wait_for("─ EXTRACTION ─")
    world.start_again()
    wait_until(lambda: bool(re.search("RESTARTED|LIVE", terminal.screen())), terminal.screen)
    terminal.press("C-c")

    assert 0 == terminal.exit_code()


def test_no_colour_and_ascii(world: World, terminal: Tmux) -> None:
    """With NO_COLOR no colour code is sent; in a C locale only ASCII characters are."""
    environ = clean_environ(
        COLUMNS="70", LINES="20", NO_COLOR="1", LANG="C", LC_ALL="C", PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    terminal.start(world.command, size=LARGE, environ=environ)
    screen = terminal.wait_for("- EXTRACTION -")
    codes = terminal.run("capture-pane", "-p", "-e", "-t", "top")
    terminal.press("q")

    assert 0 == terminal.exit_code()
    assert [] == re.findall(r"\x1b\[[0-9;]*\b(?:3[0-8]|4[0-8]|9[0-7])\b[0-9;]*m", codes)
    assert screen.isascii()
    assert ">short" in screen


def test_a_viewer_that_stands_still_or_goes_away(
    world: World, terminal: Tmux, tmp_path: Path
) -> None:
    """It holds up neither the daemon nor another viewer; when its terminal goes, it ends."""
    terminal.start(world.command, size=SMALL, environ=clean_environ())
    terminal.wait_for("LIVE")
    still = process_of("top", str(world.config))
    os.kill(still, signal.SIGSTOP)
    (tmp_path / "other").mkdir()
    with tmux(tmp_path / "other") as other:
        other.start(world.command, size=LARGE, environ=clean_environ())
        other.wait_for("LIVE")
        other.press("p")
        world.daemon.until(lambda s: _lane(s)["paused"])
        other.wait_for("PAUSED")
        os.kill(still, signal.SIGCONT)
        terminal.wait_for("PAUSED")
        other.press("u")
        world.daemon.until(lambda s: not _lane(s)["paused"])
        other.press("q")
        assert 0 == other.exit_code()
    terminal.run("kill-session", "-t", "top")

    wait_until(lambda: not _lives(still), lambda: f"process {still} lives on")


def _lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
