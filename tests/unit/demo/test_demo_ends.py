"""However `eagled demo` is ended, nothing that it started is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagled.server.launch import start_ticks
from tests.daemon_kit import as_in_front, clean_env

LONGEST_S = 120  # a limit of failure only
DEMO = """
import asyncio, sys
from pathlib import Path
from eagled.demo import run

async def story(stage, cache, model):
    child = stage.start("engine", [sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    await asyncio.sleep(600)

run._story = story
run.run_demo(Path(sys.argv[1]), Path(), None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_children_too(tmp_path: Path, number: int) -> None:
    """Ctrl-C, a service manager's stop and a closed terminal leave no engine and no daemon."""
    with subprocess.Popen(
        [sys.executable, "-c", DEMO, str(tmp_path / "demo")], env=clean_env(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=as_in_front,  # noqa: PLW1509 - two calls, no lock
    ) as process:  # fmt: skip
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(number)
        _, said = process.communicate(timeout=LONGEST_S)

    assert 0 != process.returncode
    assert "KeyboardInterrupt" in said
    assert start_ticks(child) is None
