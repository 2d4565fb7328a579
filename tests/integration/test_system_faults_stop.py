"""Stopping a daemon in the midst of its slower work, and signals that do not stop it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eagled.types import SampleState
from tests.daemon_kit import clean_env, daemon, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess


def _argv(config: Path, *patches: str) -> list[str]:
    run = ("run", "--config", str(config))
    return [sys.executable, "-m", "tests.patched", *patches, "--", *run]


def test_a_merge_that_runs_is_given_up_and_the_database_closed(tmp_path: Path) -> None:
    """SIGTERM in the midst of a merge: its caller is told, nothing of it is left, no -wal stays."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(500)])
        with daemon(config, _argv(config, "alter=slow_merge")) as process:
            process.until(lambda s: s["datasets"]["d"]["done"] == 500)
            with subprocess.Popen(
                [sys.executable, "-m", "eagled", "merge", "--config", str(config)],
                env=clean_env(), stderr=subprocess.PIPE, text=True,
            ) as merge:  # fmt: skip
                process.logged("path=/v1/merge")
                code, _ = process.stop()
                _, said = merge.communicate(timeout=60)

    assert (0, 69) == (code, merge.returncode), said
    assert "the daemon is stopping: the merge was given up" in said
    assert not (tmp_path / "state/q.db-wal").exists()
    assert [] == list((tmp_path / "state/corpora").iterdir())
    assert {SampleState.GENERATED: 500} == look(config, states)
