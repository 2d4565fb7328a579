"""The tutorial's blocks run as they stand, in order, in one shell."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagled.server.launch import start_ticks
from tests.daemon_kit import DEADLINE_S, clean_env

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEGIN = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
SHORT_S = 5.0
LONGEST_S = 600  # a limit of failure only: the machine may be busy


def _command(folder: Path) -> str:
    """Make `eagled` a command of its own, as an installation does; return its folder."""
    folder.mkdir()
    path = folder / "eagled"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m eagled "$@"\n')
    path.chmod(0o755)
    return str(folder)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _run(script: str, folder: Path, env: dict[str, str], timeout_s: float) -> tuple[int, str, str]:
    """Run a script in a group of its own; return its exit code and what it printed.

    Whatever it started and left ends with it, also when its time is over.

    Raises:
        subprocess.TimeoutExpired: if it did not end in time.
    """
    bash = shutil.which("bash")
    assert bash is not None
    with (folder / "stdout").open("w+") as out, (folder / "stderr").open("w+") as err:
        process = subprocess.Popen(
            [bash, "-c", script], cwd=folder, env=env, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, tiny_model: Path) -> None:
    """Each command ends well, the odd row is named, and the state is there in the end."""
    script = BEGIN + "\n".join(BLOCK.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")))
    env = clean_env(MODEL=str(tiny_model), PORT=str(_free_port()))
    env["PATH"] = f"{_command(tmp_path / 'bin')}{os.pathsep}{env['PATH']}"
    code, out, err = _run(script, tmp_path, env, LONGEST_S)

    daemon = tmp_path / "first-run/daemon.log"
    assert 0 == code, f"{out[-3000:]}\n{err[-3000:]}"
    assert "unknown_role" in out
    assert "as it should be: exit code 78" in out
    assert "Traceback" not in out + err + daemon.read_text()
    assert list((tmp_path / "first-run/state/plans").glob("train_plan_v*.md"))
    assert list((tmp_path / "first-run/state/shards").glob("*.safetensors"))


def test_a_tutorial_that_takes_too_long_leaves_no_process(tmp_path: Path) -> None:
    """When the time is over, its engine and daemon end too."""
    script = "(trap '' TERM; echo $BASHPID > pid; exec sleep 600) & until [ -s pid ]; do :; done"
    with pytest.raises(subprocess.TimeoutExpired):
        _run(f"{BEGIN}{script}; sleep 600", tmp_path, clean_env(), SHORT_S)
    left = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + DEADLINE_S
    while start_ticks(left) is not None:
        assert time.monotonic() < deadline, f"process {left} still runs"
        time.sleep(0.02)


def test_every_page_that_is_linked_is_there() -> None:
    """No link of the README or of docs/ leads nowhere."""
    link = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    missing = [
        f"{page.name}: {target}"
        for page in pages
        for target in link.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]

    assert [] == missing
