"""The daemon's unit under a real systemd: installed, started, hung, killed, stopped.

Everything is as an administrator does it: `eagled service install`, `systemd-sysusers`,
`systemctl start`; the unit keeps its whole sandbox. Shortened here: the watchdog's period, the
wait before a restart, and no workers (their units are masked). A busy machine may make the
watchdog bite more often than the test asks for; nothing depends on it, and later it is off.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from eagled.control import call
from eagled.errors import UnreachableError
from eagled.types import SampleState
from tests.daemon_kit import fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess
from tests.systemd_kit import Systemd, booted, why_not

UNIT = "eagled@r1.service"
EAGLED = str(Path(sys.executable).parent / "eagled")
KEY = "sk-planted-in-a-credential-77"
KEY_FILE = "/etc/eagled/r1.key"
N = 60
SHORT = """
[Unit]
StartLimitBurst=100
[Service]
WatchdogSec=4s
RestartSec=100ms
"""

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "systemd can be booted")


def _install(system: Systemd, folder: Path) -> None:
    """Install the instance r1 with the configuration and the filled state directory of a test."""
    config = (folder / "eagled.toml").read_text().replace('"model"', '"/var/lib/model"')
    config = config.replace("[[servers]]", f'[[servers]]\napi_key_file = "{KEY_FILE}"')
    config += '[run]\nstate_dir = "/var/lib/eagled/r1"\n'
    system.write("/etc/eagled/r1.toml", config)
    system.write(KEY_FILE, KEY)
    system.run("chmod", "600", KEY_FILE)  # root's: the daemon's user cannot read it
    system.run("mkdir", "-p", "/var/lib/eagled")
    system.run("cp", "-r", str(folder / "state"), "/var/lib/eagled/r1")
    system.run("cp", "-r", str(folder / "model"), "/var/lib/model")
    system.run(EAGLED, "service", "install", "r1", "--config", "/etc/eagled/r1.toml")
    workers = [f"eagled-{worker}@r1.service" for worker in ("text", "extract")]
    system.run("systemctl", "mask", "--no-reload", *workers)
    system.write(f"/etc/systemd/system/{UNIT}.d/20-test.conf", SHORT)
    system.run("systemd-sysusers", "/etc/sysusers.d/eagled.conf")
    system.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/eagled.conf")
    system.run("systemctl", "daemon-reload")


def _again(system: Systemd, pid: str) -> bool:
    """Return whether another daemon than `pid` is ready."""
    return system.show(UNIT, "ActiveState") == "active" and system.show(UNIT, "MainPID") != pid


def _done(system: Systemd) -> int:
    """Return how many samples the daemon says are done, asked as root over its socket."""
    try:
        status = call.get(system.path("/run/eagled/r1/control.sock"), "/v1/status")
    except UnreachableError:
        return 0
    return int(status["datasets"]["d"]["done"])


def _files_with_key(root: Path) -> list[str]:
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and KEY.encode() in path.read_bytes()
    ]


def test_a_hung_daemon_is_started_again_and_a_stop_is_in_order(tmp_path: Path) -> None:
    """READY, watchdog, SIGABRT, restart, SIGTERM, all in the sandbox: nothing is lost or told."""
    with ServerProcess() as server, booted(tmp_path) as system:
        server.steps({"do": "never"})
        fill(write_config(tmp_path, server.url), [[1, 2, 3 + i] for i in range(N)])
        _install(system, tmp_path)
        system.run("systemctl", "start", UNIT)
        started = system.show(UNIT, "SubState"), system.show(UNIT, "User")
        system.until(lambda: len(server.seen()["sent"]) >= 8, "eight requests")
        hung = system.show(UNIT, "MainPID")
        system.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", UNIT)
        server.steps({"do": "answer"})  # while nobody can ask: the next daemon meets no hang
        system.until(lambda: _again(system, hung), "restart after the watchdog")
        system.run("systemctl", "service-watchdogs", "no")
        system.until(lambda: _done(system) == N, "the end of the work")
        system.run("sed", "-i", "s/min_reply = 8/min_reply = 9/", "/etc/eagled/r1.toml")
        system.run("systemctl", "reload", UNIT)
        system.until(lambda: "differs from what runs" in system.told(), "a word on the reload")
        system.run("systemctl", "stop", UNIT)
        result = [system.show(UNIT, name) for name in ("Result", "ExecMainStatus", "ActiveState")]
        told = system.journal("-u", UNIT)
        shutil.rmtree(tmp_path / "state")
        system.run("cp", "-r", "/var/lib/eagled/r1", str(tmp_path / "state"))
        keys = {request["key"] for request in server.seen()["sent"]}

    assert ("running", "eagled") == started
    assert any("Fatal Python error: Aborted" in _text(entry) for entry in told)
    assert ["success", "0", "inactive"] == result
    assert {SampleState.GENERATED: N} == look(tmp_path / "eagled.toml", states)
    _fields_are_there(told)
    assert {f"Bearer {KEY}"} == keys, "systemd hands the file over; its user cannot read it"
    assert [] == _files_with_key(tmp_path / "state")
    assert [] == [entry for entry in told if KEY in str(entry)]


def _text(entry: dict[str, Any]) -> str:
    return str(entry.get("MESSAGE"))


def _fields_are_there(told: list[dict[str, Any]]) -> None:
    """The journal has the daemon's lines with their priority, their origin and their values."""
    (first, *_) = [entry for entry in told if _text(entry).startswith("ready socket=")]
    wanted = ("PRIORITY", "LOGGER", "CODE_FUNC", "SYSLOG_IDENTIFIER", "EAGLED_SOCKET")

    assert ["6", "eagled.daemon", "_begin", "eagled", "/run/eagled/r1/control.sock"] == [
        first.get(name) for name in wanted
    ]
