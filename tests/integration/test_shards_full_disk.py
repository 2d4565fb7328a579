"""Another process fills the disk while states are extracted: held, not torn, and well again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagled.config_load import load_config
from eagled.paths import StatePaths
from eagled.store import StoreReader
from eagled.workers.verify import verify_run
from tests.daemon_kit import DEADLINE_S, ROOT, clean_env, daemon, look, write_config
from tests.integration.test_shards_ring import SAMPLES, fill
from tests.integration.toy_worker import FIRST
from tests.servers.kit import states
from tests.small_disk import SmallDisk, small_disk

MIB = 1 << 20


def _extracted(status: dict[str, Any]) -> int:
    return int(status["datasets"]["alpha"]["extracted"])


def _worker(disk: SmallDisk, socket: Path, paths: StatePaths) -> subprocess.Popen[bytes]:
    words = (str(socket), str(paths.shards), str(socket.with_name("go")))
    argv = disk.argv(sys.executable, "-m", "tests.integration.toy_worker", *words)
    return subprocess.Popen(argv, cwd=ROOT, env=clean_env())


@pytest.mark.slow
def test_extraction_outlives_another_process_that_fills_the_disk(tmp_path: Path) -> None:
    """Held at the reserve, ballast given up for what runs; with room all is done, nothing torn."""
    socket = tmp_path / "control.sock"
    config = write_config(
        tmp_path,
        daemon={"socket": str(socket)},
        extract={"backend": "transformers"},
        disk={"reserve_bytes": 4 * MIB, "resume_bytes": MIB, "ballast_bytes": MIB},
    )
    paths = StatePaths(load_config(config, environ={}).config.run.state_dir)
    look(config, fill)
    with small_disk(paths.root, "-t", "tmpfs", "-o", "size=24m", "none") as disk:
        patched = ("-m", "tests.patched", "eagled.daemon_watch:DISK_EVERY_S=0.2", "--")
        argv = disk.argv(sys.executable, *patched, "run", "--config", str(config))
        ballast = disk.inside / paths.ballast.name
        with daemon(config, argv) as process:
            process.socket = socket
            process.until(lambda _: ballast.exists())
            worker = _worker(disk, socket, paths)
            try:
                process.until(lambda s: _extracted(s) >= FIRST // 2)
                disk.fill()
                (tmp_path / "go").touch()
                full = process.until(lambda s: s["disk"]["paused"] and not ballast.exists())
                disk.free()
                well = process.until(lambda s: _extracted(s) == SAMPLES and ballast.exists())
            finally:
                worker.terminate()
                worker.wait(DEADLINE_S)
            code, _ = process.stop()
        disk.bring_out()

    assert _extracted(full) < SAMPLES
    assert not well["disk"]["paused"]
    assert (0, 0) == (code, worker.returncode)
    assert {"extracted": SAMPLES} == {k.value: n for k, n in look(config, states).items()}
    assert "Traceback" not in process.log
    with StoreReader(paths.database) as reader:
        report = verify_run(reader, paths.shards)
    assert ((), SAMPLES) == (report.findings, report.samples)
