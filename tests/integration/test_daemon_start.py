"""What the daemon refuses to start on, and what it starts in spite of."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from eagled.types import SampleState
from tests.daemon_kit import (
    DEADLINE_S,
    clean_env,
    daemon,
    eagled,
    fill,
    look,
    write_config,
)
from tests.servers.kit import states
from tests.servers.misbehaving import MODEL
from tests.servers.process import ServerProcess

PROMPTS = [[1, 2, 3 + i] for i in range(12)]


def test_a_second_daemon_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Exit code 75 and the holder's process id; the first one goes on."""
    config = write_config(tmp_path)
    with daemon(config) as first:
        first.ready()
        second = eagled("run", "--config", str(config))

        assert (75, True) == (second.returncode, f"pid {first.pid}" in second.stderr)
        assert first.status()["pid"] == first.pid


def test_a_read_only_state_directory_is_refused(tmp_path: Path) -> None:
    """Exit code 74, with the folder and what to do."""
    config = write_config(tmp_path)
    blocked = tmp_path / "state"
    blocked.write_text("a file where the folder should be")
    done = eagled("run", "--config", str(config))

    assert 74 == done.returncode, done.stderr
    assert str(blocked) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    """Exit code 74 and the words read-only."""
    config = write_config(tmp_path, run={"state_dir": "ro/state"})
    (tmp_path / "ro").mkdir()
    script = f"mount -t tmpfs -o ro none {tmp_path}/ro && exec {sys.executable} -m eagled run"
    try:
        done = subprocess.run(
            ["/usr/bin/unshare", "-m", "/bin/sh", "-c", f"{script} --config {config}"],
            env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("unshare is not there")
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("this machine does not let a test mount")

    assert 74 == done.returncode, done.stderr
    assert "read-only" in done.stderr


def test_a_missing_model_is_a_configuration_error(tmp_path: Path) -> None:
    """Exit code 78, naming the setting and the folder."""
    config = write_config(tmp_path)
    shutil.rmtree(tmp_path / "model")
    done = eagled("run", "--config", str(config), HF_HUB_OFFLINE="1")

    assert 78 == done.returncode, done.stderr
    assert "target.model" in done.stderr


def test_a_wrong_configuration_is_reported_whole(tmp_path: Path) -> None:
    """Exit code 78 and every problem, one line each."""
    config = write_config(tmp_path, run={"seed": -1}, disk={"reserve": 5})
    done = eagled("run", "--config", str(config))

    assert 78 == done.returncode
    assert ["  - run.seed = -1: must be >= 0 (accepted: an integer >= 0)"] == [
        line for line in done.stderr.splitlines() if "run.seed" in line
    ]
    assert "did you mean disk.reserve_bytes?" in done.stderr


def test_a_damaged_database_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Exit code 73 with what to do; not one byte of it is changed."""
    config = write_config(tmp_path)
    fill(config, PROMPTS)
    database = tmp_path / "state/q.db"
    database.write_bytes(b"not a database" * 1000)
    done = eagled("run", "--config", str(config))

    assert 73 == done.returncode, done.stderr
    assert b"not a database" * 1000 == database.read_bytes()


def test_a_database_that_went_back_in_time_is_refused(tmp_path: Path) -> None:
    """An older copy in the database's place is noticed by the stamp: exit code 73."""
    config = write_config(tmp_path)
    fill(config, PROMPTS)
    database = tmp_path / "state/q.db"
    older = database.read_bytes()
    fill(config, [[9, 9]], "more")
    database.write_bytes(older)
    done = eagled("run", "--config", str(config))

    assert 73 == done.returncode, done.stderr
    assert "eagled db accept" in done.stderr


def test_a_socket_path_that_is_too_long_says_what_to_set(tmp_path: Path) -> None:
    """Exit code 2, naming daemon.socket."""
    path = tmp_path / ("x" * 120)
    config = write_config(tmp_path, daemon={"socket": str(path)})
    done = eagled("run", "--config", str(config))

    assert (2, True) == (done.returncode, "daemon.socket" in done.stderr)


def test_a_stale_socket_does_not_stop_the_start(tmp_path: Path) -> None:
    """The socket file of a daemon that was killed is replaced, with mode 0600."""
    config = write_config(tmp_path)
    with daemon(config) as first:
        first.ready()
        first.kill()
    with daemon(config) as second:
        second.ready()

        assert 0o600 == second.socket.stat().st_mode & 0o777


def test_it_starts_while_its_server_is_down_and_goes_on_when_it_comes(tmp_path: Path) -> None:
    """A missing server is shown as an alarm, never an end; its samples wait uncharged."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, PROMPTS)
        server.kill()
        with daemon(config) as process:
            down = process.until(lambda status: status["servers"][0]["state"] == "down")
            alarms = process.until(lambda status: bool(status["alarms"]))["alarms"]
            server.start()
            process.until(lambda status: status["datasets"]["d"]["done"] == 12)
            code, _ = process.stop()

    assert 12 == down["datasets"]["d"]["queued"]
    assert ["error"] == [alarm["level"] for alarm in alarms]
    assert 0 == code


def test_a_server_with_another_model_gets_nothing(tmp_path: Path) -> None:
    """A server that comes back as another model is refused, by name, and sent nothing."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, PROMPTS[:1])
        with daemon(config) as process:
            process.until(lambda status: status["datasets"]["d"]["done"] == 1)
            process.stop()
        server.set(model={**MODEL, "model_path": "/models/other", "served_model_name": "other"})
        fill(config, PROMPTS[1:], "second")
        sent = len(server.seen()["sent"])
        with daemon(config) as process:
            status = process.until(lambda status: status["servers"][0]["state"] == "refused")
            process.stop()

        assert "/models/other" in status["servers"][0]["error"]
        assert sent == len(server.seen()["sent"])


def test_a_disk_that_fills_up_is_a_clear_end_or_an_alarm_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """With files limited to a few pages every stored answer is whole and the rest is queued."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, [[1, 2, i % 200, i // 200] for i in range(2000)])
        size = max(f.stat().st_size for f in (tmp_path / "state").iterdir()) // 1024
        limited = f"ulimit -f {size + 400}; exec {sys.executable} -m eagled run --config {config}"
        process = subprocess.Popen(
            ["/bin/bash", "-c", f"trap '' XFSZ; {limited}"],
            env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            out = _until_disk_trouble(process)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        found = look(config, states)

    assert "disk" in out.lower()
    assert "Traceback" not in out + rest
    assert 2000 == sum(found.values())
    assert found.get(SampleState.GENERATED, 0) > 0
    assert {SampleState.GENERATED, SampleState.QUEUED} >= set(found)


def _until_disk_trouble(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "transaction given up" in line or "cannot write" in line:
            break
    return "".join(seen)


def test_more_lanes_than_open_files_are_refused(tmp_path: Path) -> None:
    """Exit code 78, with the number that is needed."""
    config = write_config(tmp_path, lanes__short={"limit": 5000, "concurrency": 8})
    script = f"ulimit -n 256; exec {sys.executable} -m eagled run --config {config}"
    done = subprocess.run(
        ["/bin/bash", "-c", script], env=clean_env(), capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip

    assert 78 == done.returncode, done.stderr
    assert "10400 open files" in done.stderr


def test_it_tells_systemd_what_it_does(tmp_path: Path) -> None:
    """READY after the start, WATCHDOG while it runs, STOPPING at the end, on NOTIFY_SOCKET."""
    config = write_config(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_S)
        with daemon(config, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="60000000") as it:
            _heard(manager, "READY=1")
            _heard(manager, "WATCHDOG=1")
            it.signal(signal.SIGTERM)
            _heard(manager, "STOPPING=1")

            assert 0 == it.wait()


def _heard(manager: socket.socket, field: str) -> None:
    while field not in manager.recv(4096).decode().splitlines():
        pass


def test_metrics_are_on_the_loopback_port_and_nothing_else_is(tmp_path: Path) -> None:
    """Prometheus can scrape without the socket; the port controls nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = write_config(tmp_path, daemon={"metrics_port": port})
    fill(config, PROMPTS)
    with daemon(config) as process:
        process.ready()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/pause", data=b"{}", timeout=10)
        process.stop()

    assert 'eagled_samples{dataset="d",state="queued"} 12.0' in text.splitlines()


def test_a_config_in_another_folder_keeps_its_state_beside_it(tmp_path: Path) -> None:
    """Where the command is started does not matter."""
    config = write_config(tmp_path)
    with daemon(config) as process:
        process.ready()
        process.stop()

    assert json.loads((tmp_path / "state/status.json").read_text())["run"] == "default"
