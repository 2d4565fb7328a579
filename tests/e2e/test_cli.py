"""The command line as a person meets it: messages, exit codes, JSON."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eagled.types import SampleState
from tests.daemon_kit import as_in_front, clean_env, daemon, eagled, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess

COMMANDS = (
    "init", "config", "doctor", "prep", "enqueue", "profile", "plan", "run", "worker", "engine",
    "top", "status", "pause", "resume", "drain", "set", "prioritize", "retry", "reject", "undo",
    "samples", "failures", "events", "merge", "extract", "vocab", "verify", "db", "service", "demo",
)  # fmt: skip
NEED_DAEMON = (
    ("pause",),
    ("resume",),
    ("drain",),
    ("merge",),
    ("extract", "start"),
    ("undo",),
    ("samples",),
    ("failures",),
    ("events",),
    ("enqueue",),
    ("set", "lane.short.limit", "4"),
    ("prioritize", "d"),
    ("retry", "--all"),
    ("reject", "00"),
)


def test_help_names_every_command() -> None:
    """`eagled --help` lists all of them, and exits 0."""
    done = eagled("--help")
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}

    assert (0, set()) == (done.returncode, set(COMMANDS) - listed)


@pytest.mark.parametrize("command", NEED_DAEMON, ids=lambda c: c[0])
def test_without_a_daemon_the_exit_code_is_69(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Commands that need the daemon say how to start it, in one message."""
    config = write_config(tmp_path)
    done = eagled(*command, "--config", str(config))

    assert 69 == done.returncode, done.stderr
    assert "eagled run" in done.stderr
    assert "Traceback" not in done.stderr
    assert "" == done.stdout


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("nonsense",), 2, "No such command"),
        (("set", "lane.short.colour", "3"), 2, "lane.NAME.limit"),
        (("set", "lane.short.limit", "many"), 2, "valid number"),
        (("extract", "sideways"), 2, "start, pause"),
        (("worker", "sideways"), 2, "text, extract"),
        (("retry",), 2, "--all"),
        (("config", "--set", "seed"), 2, "PATH=VALUE"),
        (("config", "--set", "run.seed=x"), 78, "[from the flag]"),
        (("config", "--config", "absent.toml"), 78, "eagled init"),
        (("profile", "d"), 1, "eagled prep"),
        (("profile", "unknown"), 78, "no dataset is called"),
    ],
)
def test_a_wrong_command_line_says_what_is_accepted(
    tmp_path: Path, args: tuple[str, ...], code: int, told: str
) -> None:
    """One message on stderr, no traceback, the documented exit code."""
    path = write_config(tmp_path)
    path.write_text(path.read_text() + '[[datasets]]\nname = "d"\nsource = "d.jsonl"\n')
    done = eagled(*args, cwd=tmp_path)

    assert code == done.returncode, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_init_writes_a_file_that_config_accepts_and_never_overwrites(tmp_path: Path) -> None:
    """init, config, init again: 0, 0 and 2, and the first file stays."""
    first = eagled("init", "--model", "m", cwd=tmp_path)
    text = (tmp_path / "eagled.toml").read_text()
    checked = eagled("config", cwd=tmp_path)
    second = eagled("init", "--model", "other", cwd=tmp_path)

    assert (0, 0, 2) == (first.returncode, checked.returncode, second.returncode)
    assert text == (tmp_path / "eagled.toml").read_text()


def test_config_show_gives_each_value_with_its_origin(tmp_path: Path) -> None:
    """Flag, environment, file and default are told apart, as JSON and as text."""
    write_config(tmp_path, run={"name": "x"})
    flags = ("--set", "lanes.short.limit=9")
    shown = eagled("config", "--json", *flags, cwd=tmp_path, EAGLED_RUN__SEED="4")
    values = json.loads(shown.stdout)["values"]
    text = eagled("config", "--show", *flags, cwd=tmp_path, EAGLED_RUN__SEED="4").stdout

    assert [(9, "flag"), (4, "environment"), ("x", "file"), (120.0, "default")] == [
        (values[name]["value"], values[name]["origin"])
        for name in ("lanes.short.limit", "run.seed", "run.name", "generation.hang_s")
    ]
    assert any(line.split() == ["run.seed", "4", "environment"] for line in text.splitlines())


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    """EAGLED_DEBUG=1 adds the traceback to the message."""
    done = eagled("config", cwd=tmp_path, EAGLED_DEBUG="1")

    assert 78 == done.returncode
    assert "Traceback" in done.stderr
    assert "eagled init" in done.stderr.splitlines()[-1]


def test_doctor_names_what_would_stop_the_run(tmp_path: Path) -> None:
    """A missing tokenizer is a failure with advice; the exit code is that of configuration."""
    write_config(tmp_path, "http://127.0.0.1:9")
    done = eagled("doctor", "--json", cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    assert 78 == done.returncode
    assert {"configuration": "ok", "state directory": "ok", "target model": "ok"} == {
        name: checks[name]["verdict"]
        for name in ("configuration", "state directory", "target model")
    }
    assert ("fail", "warn") == (
        checks["tokenizer"]["verdict"],
        checks["server http://127.0.0.1:9"]["verdict"],
    )
    assert checks["tokenizer"]["advice"]
    assert not (tmp_path / "state").exists()


def test_doctor_knows_its_server(tmp_path: Path) -> None:
    """A server that is there is shown with its model and context."""
    with ServerProcess() as server:
        write_config(tmp_path, server.url)
        done = eagled("doctor", cwd=tmp_path)

    assert f"ok    server {server.url}: /models/toy, context 10240, version 0.5.23" in done.stdout


def test_a_reader_that_closes_the_pipe_is_no_error_message(tmp_path: Path) -> None:
    """`eagled config --show | head -1` prints one line and nothing on stderr."""
    write_config(tmp_path)
    done = subprocess.run(
        ["/bin/bash", "-c", f"{sys.executable} -m eagled config --show | head -1"],
        cwd=tmp_path, env=clean_env(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert ("", 1) == (done.stderr, len(done.stdout.splitlines()))


def test_a_run_is_watched_and_steered(tmp_path: Path) -> None:
    """Pause, limit, priority, undo, resume, events and drain on a daemon that works."""
    with ServerProcess() as server:
        server.steps({"do": "answer", "delay_s": 0.2})
        config = write_config(tmp_path, server.url)
        fill(config, [[1, 2, 3 + i] for i in range(60)])
        with daemon(config) as process:
            process.until(lambda status: status["datasets"]["d"]["done"] > 0)
            told = [
                eagled(*args, cwd=tmp_path).stdout.strip()
                for args in (
                    ("pause", "short"),
                    ("set", "lane.short.limit", "3"),
                    ("prioritize", "d", "7"),
                    ("undo",),
                    ("resume", "short"),
                    ("drain",),
                )
            ]
            held = process.until(lambda status: status["phase"] == "paused")
            shown = eagled("status", cwd=tmp_path)
            listed = eagled("events", "--json", cwd=tmp_path)
            eagled("resume", cwd=tmp_path)
            process.until(lambda status: status["datasets"]["d"]["done"] == 60)
            code, _ = process.stop()

    assert [
        "lane short: paused, limit 8",
        "lane short: paused, limit 3",
        "dataset d: running, priority 7",
    ] == told[:3]
    assert "priority" in told[3]
    assert "lane short: running, limit 3" == told[4]
    assert told[5].startswith("draining; ")
    assert (3, 0) == (held["lanes"]["short"]["limit"], held["lanes"]["short"]["in_flight"])
    assert 0 == code
    assert "paused" in shown.stdout.splitlines()[0]
    kinds = [json.loads(line)["kind"] for line in listed.stdout.splitlines()]
    assert ["lane_changed", "lane_changed", "dataset_changed", "undone", "lane_changed"] == [
        kind for kind in kinds if kind in ("lane_changed", "dataset_changed", "undone")
    ]


def test_what_an_operator_set_holds_over_a_restart(tmp_path: Path) -> None:
    """A drain and a limit are still there when the daemon comes back."""
    config = write_config(tmp_path)
    fill(config, [[1, 2, 3]])
    with daemon(config) as process:
        process.ready()
        eagled("set", "lane.short.limit", "3", cwd=tmp_path)
        eagled("drain", cwd=tmp_path)
        process.kill()
    with daemon(config) as process:
        status = process.ready()
        process.stop()

    assert ("paused", 3) == (status["phase"], status["lanes"]["short"]["limit"])


def test_status_without_a_daemon_shows_the_last_snapshot(tmp_path: Path) -> None:
    """Exit code 69, the old numbers marked as old, in text and JSON."""
    config = write_config(tmp_path)
    fill(config, [[1, 2, 3]])
    with daemon(config) as process:
        process.ready()
        process.stop()
    text = eagled("status", cwd=tmp_path)
    document = eagled("status", "--json", cwd=tmp_path)

    assert (69, 69) == (text.returncode, document.returncode)
    assert "the last snapshot" in text.stderr
    assert (False, "stopped") == (
        json.loads(document.stdout)["live"],
        json.loads(document.stdout)["phase"],
    )


def test_failed_samples_are_listed_and_retried(tmp_path: Path) -> None:
    """Failures are grouped by reason; retry queues them, and they get their answer."""
    with ServerProcess() as server:
        server.steps({"do": "status", "status": 400, "body": {"error": {"message": "bad"}}})
        config = write_config(tmp_path, server.url)
        fill(config, [[1, 2, 3]])
        with daemon(config) as process:
            process.until(lambda status: status["datasets"]["d"]["rejected"] == 1)
            failures = json.loads(eagled("failures", "--json", cwd=tmp_path).stdout)
            server.steps({"do": "answer"})
            retried = eagled("retry", "--all", cwd=tmp_path)
            process.until(lambda status: status["datasets"]["d"]["done"] == 1)
            process.stop()

        assert ["refused_by_server"] == [group["reason"] for group in failures]
        assert "1 samples are queued again" == retried.stdout.strip()
        assert {SampleState.GENERATED: 1} == look(config, states)


@pytest.mark.parametrize("args", [("status", "--watch"), ("events", "--follow")])
def test_ctrl_c_ends_a_watching_command_with_130(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Interrupting is no error: no traceback, the shell's own exit code."""
    config = write_config(tmp_path)
    with daemon(config) as process:
        process.ready()
        watching = subprocess.Popen(
            [sys.executable, "-m", "eagled", *args],
            cwd=tmp_path, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, preexec_fn=as_in_front,  # noqa: PLW1509 - one call, no lock
        )  # fmt: skip
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=10)
        process.stop()

    assert (130, False) == (watching.returncode, "Traceback" in errors)


def test_the_database_is_checked_backed_up_and_restored(tmp_path: Path) -> None:
    """Check and backup work beside a daemon; restore needs the lock."""
    config = write_config(tmp_path)
    fill(config, [[1, 2, 3]])
    with daemon(config) as process:
        process.ready()
        backup = eagled("db", "backup", str(tmp_path / "copy.db"), cwd=tmp_path)
        refused = eagled("db", "restore", str(tmp_path / "copy.db"), cwd=tmp_path)
        process.stop()
    restored = eagled("db", "restore", str(tmp_path / "copy.db"), cwd=tmp_path)
    checked = eagled("db", "check", "--json", cwd=tmp_path)

    assert (0, 75, 0, 0) == (
        backup.returncode, refused.returncode, restored.returncode, checked.returncode,
    ), checked.stderr  # fmt: skip
    assert json.loads(checked.stdout)["ok"]
    assert {SampleState.QUEUED: 1} == look(config, states)


def test_version_and_start_are_quick() -> None:
    """Printing the version takes well under a second of computing, however busy the machine is."""
    taken = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = eagled("--version")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert done.stdout.startswith("eagled ")
    assert min(taken) < 1.0
