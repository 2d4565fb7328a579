"""Stopping a daemon in the midst of its slower work, and signals that do not stop it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from eagled.store import Store
from eagled.types import SampleState, TextVerdict
from tests.daemon_kit import DEADLINE_S, clean_env, daemon, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess

N_MERGED = 200  # ten seconds of the slow merge: longer than a stop takes to arrive


def _argv(config: Path, *patches: str) -> list[str]:
    run = ("run", "--config", str(config))
    return [sys.executable, "-m", "tests.patched", *patches, "--", *run]


async def _accept_all(store: Store) -> int:
    """Say of every answer that it is good, as the text worker would."""
    jobs = await store.text_jobs(1000)
    verdicts = [TextVerdict(job.sample_id, job.attempt, None) for job in jobs]
    return await store.settle_text(verdicts, lane_of=lambda _n: None)


def test_a_merge_that_runs_is_given_up_and_the_database_closed(tmp_path: Path) -> None:
    """SIGTERM in the midst of a merge: its caller is told, nothing of it is left, no -wal stays."""
    spool = tmp_path / "state/corpora/merge.tmp/ids"
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(N_MERGED)])
        with daemon(config) as process:
            process.until(lambda s: s["datasets"]["d"]["done"] == N_MERGED)
            process.stop()
        accepted = look(config, _accept_all)
        with daemon(config, _argv(config, "alter=slow_merge")) as process:
            process.ready()
            with subprocess.Popen(
                [sys.executable, "-m", "eagled", "merge", "--config", str(config)],
                env=clean_env(), stderr=subprocess.PIPE, text=True,
            ) as merge:  # fmt: skip
                process.until(lambda _s: spool.exists())
                code, _ = process.stop()
                _, said = merge.communicate(timeout=DEADLINE_S)

    assert N_MERGED == accepted
    assert (0, 69) == (code, merge.returncode), said
    assert "the merge was given up" in said
    assert not (tmp_path / "state/q.db-wal").exists()
    assert [] == list((tmp_path / "state/corpora").iterdir())
    assert {SampleState.GENERATED: N_MERGED} == look(config, states)


NO_TERMINAL = (
    "import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
ON_TERMINAL = (
    "import os, sys; os.setsid(); os.open(sys.argv.pop(1), os.O_RDWR);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def _session(script: str, config: Path, *before: str) -> list[str]:
    run = ("-m", "eagled", "run", "--config", str(config))
    return [sys.executable, "-c", script, *before, *run]


def _alarm(status: dict[str, Any]) -> str:
    return next((a["text"] for a in status["alarms"] if a["kind"] == "config"), "")


def test_hangup_without_a_terminal_looks_at_the_configuration_and_stops_nothing(
    tmp_path: Path,
) -> None:
    """What differs, and what would be refused, is named; the run goes on with what it has.

    One that comes during the start is not lost.
    """
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        before = config.read_text()
        fill(config, [[1, 2, i % 200, i // 200] for i in range(40)])
        with daemon(config, _session(NO_TERMINAL, config)) as process:
            process.logged("starting: opening the database")
            config.write_text(before.replace("max_new_tokens = 100", "max_new_tokens = 50"))
            process.signal(signal.SIGHUP)
            differs = _alarm(process.until(lambda s: "differs" in _alarm(s)))
            config.write_text(before.replace("max_new_tokens = 100", "max_new_tokens = -1"))
            process.signal(signal.SIGHUP)
            wrong = _alarm(process.until(lambda s: "refused" in _alarm(s)))
            config.write_text(before)
            process.signal(signal.SIGHUP)
            process.until(lambda s: not _alarm(s) and s["datasets"]["d"]["done"] == 40)
            code, _ = process.stop()

    assert "sampling.max_new_tokens; it holds from the next start" in differs
    assert "sampling.max_new_tokens = -1: must be >= 1" in wrong
    assert 0 == code
    assert {SampleState.GENERATED: 40} == look(config, states)


def test_a_terminal_that_closes_ends_it_in_order(tmp_path: Path) -> None:
    """The hangup of its terminal is a stop like SIGTERM: code 0 and a closed database."""
    config = write_config(tmp_path)
    ours, its = pty.openpty()
    with daemon(config, _session(ON_TERMINAL, config, os.ttyname(its))) as process:
        process.ready()
        os.close(its)
        os.close(ours)
        code = process.wait()

    assert 0 == code, process.log
    assert "SIGHUP: stopping" in process.log
    assert not (tmp_path / "state/q.db-wal").exists()
