"""The tutorial's blocks run as they stand, in order, in one shell."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_kit import clean_env

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEGIN = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
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


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, tiny_model: Path) -> None:
    """Each command ends well, the odd row is named, and the state is there in the end."""
    bash = shutil.which("bash")
    assert bash is not None
    script = BEGIN + "\n".join(BLOCK.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")))
    env = clean_env(MODEL=str(tiny_model), PORT=str(_free_port()))
    env["PATH"] = f"{_command(tmp_path / 'bin')}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        [bash, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip

    daemon = tmp_path / "first-run/daemon.log"
    assert 0 == done.returncode, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "unknown_role" in done.stdout
    assert "as it should be: exit code 78" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr + daemon.read_text()
    assert list((tmp_path / "first-run/state/plans").glob("train_plan_v*.md"))
    assert list((tmp_path / "first-run/state/shards").glob("*.safetensors"))


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
