"""Known faults that only a whole daemon can show."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eagled.config_load import load_config
from eagled.store import Store
from eagled.types import SampleState
from tests.daemon_kit import ROOT, clean_env, daemon, fill, look, write_config
from tests.faults import fault_file, fault_row
from tests.servers.kit import open_store, states
from tests.servers.process import ServerProcess

CLAIM_AND_DIE = """
import asyncio, os, pathlib, sys
from eagled.config_load import load_config
from tests.servers.kit import open_store

async def main():
    config = load_config(pathlib.Path(sys.argv[1]), environ={}).config
    store = await open_store(config.run.state_dir, config)
    claims = await store.claim("short", int(sys.argv[2]))
    print(len(claims), flush=True)
    os._exit(9)

asyncio.run(main())
"""
READ_FOR_EVER = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
while True:
    row = connection.execute("SELECT count(*) FROM sample WHERE state = 3").fetchone()
    print(row[0], flush=True)
"""


async def _attempts(store: Store) -> list[int]:
    return sorted(row.attempt for row in await store.samples(limit=100))


@pytest.mark.fault("F53")
def test_claims_of_a_process_that_is_gone_are_taken_back_at_start(tmp_path: Path) -> None:
    """All samples get done; those that a dead process held are asked for again, once."""
    given = json.loads(fault_file("resume/orphans.json").read_text())
    assert "all 14 get done; the 4 are taken back at start" in fault_row("F53")["expect"]
    held, waiting = given["running_rows"], given["pending_rows"]
    with ServerProcess() as server:
        config = write_config(
            tmp_path, server.url, lanes__short={"concurrency": given["concurrency"]}
        )
        fill(config, [[1, 2, i] for i in range(held + waiting)])
        dead = subprocess.run(
            [sys.executable, "-c", CLAIM_AND_DIE, str(config), str(held)],
            cwd=ROOT, env=clean_env(), capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        with daemon(config) as process:
            process.until(lambda status: status["datasets"]["d"]["done"] == held + waiting)
            code, _ = process.stop()
        sent = len(server.seen()["sent"])

    assert (f"{held}\n", 9) == (dead.stdout, dead.returncode), dead.stderr
    assert (0, held + waiting) == (code, sent)
    assert [1] * waiting + [2] * held == look(config, _attempts)


@pytest.mark.fault("F96")
def test_readers_and_200_writers_never_lock_each_other_out(tmp_path: Path) -> None:
    """200 requests at once, a status screen and another reading process: nothing is ever locked."""
    assert "no 'database is locked' ever reaches a sample" in fault_row("F96")["expect"]
    n = 3000
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url, lanes__short={"limit": 200, "concurrency": 200})
        fill(config, [[1, 2, i % 200, i // 200] for i in range(n)])
        with daemon(config) as process:
            process.ready()
            with subprocess.Popen(
                [sys.executable, "-c", READ_FOR_EVER, str(tmp_path / "state/q.db")],
                env=clean_env(), stdout=subprocess.PIPE, text=True,
            ) as reader:  # fmt: skip
                seen: list[str] = []
                assert reader.stdout is not None
                watcher = threading.Thread(target=seen.extend, args=(reader.stdout,))
                watcher.start()
                process.until(lambda status: status["datasets"]["d"]["done"] == n)
                reader_went_on = reader.poll() is None
                reader.kill()
                watcher.join()
            code, _ = process.stop()
            log = process.log
        sent = len(server.seen()["sent"])

    assert (True, 0, n) == (reader_went_on, code, sent)
    assert len(seen) > 10
    assert "locked" not in log
    assert {SampleState.GENERATED: n} == look(config, states)


def test_a_crash_at_any_named_point_loses_nothing(tmp_path: Path) -> None:
    """Killed before and after a commit, and after the stamp: the next daemon finishes the run."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(1500)])
        for point in ("before_commit:20", "after_commit:20", "after_stamp:20"):
            with daemon(config, EAGLED_CRASH_AT=point) as process:
                assert 137 == process.wait()
        with daemon(config) as process:
            process.until(lambda status: status["datasets"]["d"]["done"] == 1500)
            code, _ = process.stop()

    assert 0 == code
    assert {SampleState.GENERATED: 1500} == look(config, states)


def test_the_kit_fills_what_the_daemon_reads(tmp_path: Path) -> None:
    """The samples that these tests queue are in the state directory that the daemon opens."""
    config = write_config(tmp_path)
    fill(config, [[1, 2, 3]])
    loaded = load_config(config, environ={}).config

    async def count() -> int:
        async with await open_store(loaded.run.state_dir, loaded) as store:
            return sum((await states(store)).values())

    assert 1 == asyncio.run(count())
