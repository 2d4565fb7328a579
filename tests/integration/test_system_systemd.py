"""The daemon's unit under a real systemd: installed, started, hung, killed, stopped.

Everything is as an administrator does it: `eagled service install`, `systemd-sysusers`,
`systemctl start`; the unit keeps its whole sandbox. Shortened here: the watchdog's period, the
wait before a restart, and no workers (their units are masked).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from eagled.types import SampleState
from tests.daemon_kit import fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess
from tests.systemd_kit import LOG, Systemd, booted, why_not

UNIT = "eagled@r1.service"
EAGLED = str(Path(sys.executable).parent / "eagled")
N = 60
SHORT = f"""
[Unit]
StartLimitBurst=100
[Service]
WatchdogSec=6s
RestartSec=100ms
StandardOutput=append:{LOG}
StandardError=append:{LOG}
"""

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "systemd can be booted")


def _install(system: Systemd, folder: Path) -> None:
    """Install the instance r1 with the configuration and the filled state directory of a test."""
    config = (folder / "eagled.toml").read_text().replace('"model"', '"/var/lib/model"')
    config += '[run]\nstate_dir = "/var/lib/eagled/r1"\n'
    system.write("/etc/eagled/r1.toml", config)
    system.run("mkdir", "-p", "/var/lib/eagled")
    system.run("cp", "-r", str(folder / "state"), "/var/lib/eagled/r1")
    system.run("cp", "-r", str(folder / "model"), "/var/lib/model")
    system.run(EAGLED, "service", "install", "r1", "--config", "/etc/eagled/r1.toml")
    for worker in ("text", "extract"):
        system.run("systemctl", "mask", f"eagled-{worker}@r1.service")
    system.write(f"/etc/systemd/system/{UNIT}.d/20-test.conf", SHORT)
    system.run("systemd-sysusers", "/etc/sysusers.d/eagled.conf")
    system.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/eagled.conf")
    system.run("systemctl", "daemon-reload")


def _again(system: Systemd, pid: str) -> bool:
    """Return whether another daemon than `pid` is ready."""
    return system.show(UNIT, "ActiveState") == "active" and system.show(UNIT, "MainPID") != pid


def test_a_hung_daemon_is_started_again_and_a_stop_is_in_order(tmp_path: Path) -> None:
    """READY, watchdog, SIGABRT, restart, SIGTERM, all in the sandbox: nothing is lost."""
    with ServerProcess() as server, booted(tmp_path) as system:
        server.steps({"do": "never"})
        fill(write_config(tmp_path, server.url), [[1, 2, 3 + i] for i in range(N)])
        _install(system, tmp_path)
        system.run("systemctl", "start", UNIT)
        started = system.show(UNIT, "SubState"), system.show(UNIT, "User")
        system.until(lambda: len(server.seen()["sent"]) >= 8, "eight requests")
        hung = system.show(UNIT, "MainPID")
        system.run("kill", "-STOP", hung)
        server.steps({"do": "answer"})  # while nobody can ask: the next daemon meets no hang
        system.until(lambda: _again(system, hung), "restart after the watchdog")
        told = system.log
        system.until(lambda: _done(system) == N, "the end of the work")
        system.run("systemctl", "stop", UNIT)
        result = [system.show(UNIT, name) for name in ("Result", "ExecMainStatus", "ActiveState")]
        shutil.rmtree(tmp_path / "state")
        system.run("cp", "-r", "/var/lib/eagled/r1", str(tmp_path / "state"))

    assert ("running", "eagled") == started
    assert "Fatal Python error: Aborted" in told
    assert ["success", "0", "inactive"] == result
    assert {SampleState.GENERATED: N} == look(tmp_path / "eagled.toml", states)


def _done(system: Systemd) -> int:
    """Return how many samples the daemon's last snapshot says are done."""
    path = Path(f"/proc/{system.pid}/root/var/lib/eagled/r1/status.json")
    return int(json.loads(path.read_text())["datasets"]["d"]["done"]) if path.exists() else 0
