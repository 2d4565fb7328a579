"""`eagled serve` with a stand-in for SGLang: its command, its checks, the ends it meets."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.errors import ConfigError
from eagled.server.command import draft_config_problems, plan_serve, write_key
from eagled.server.launch import start_ticks
from tests.daemon_kit import ROOT, clean_env, eagled, write_config
from tests.faults import fault_file
from tests.integration.test_launch import _pairs, free_port

STAND_IN = '#!/bin/sh\nshift 2\nexec {python} -m tests.servers.launchable "$@"\n'


def config_of(**sections: Any) -> Config:
    """Return a configuration with one server and one lane of 4096."""
    base = {
        "target": {"model": "/models/toy"},
        "servers": [{"url": "http://127.0.0.1:30000"}],
        "lanes": {"short": {"context": 4096}},
    }
    return Config.model_validate(base | sections)


def plan_of(config: Config, **more: Any) -> list[str]:
    """Return the planned command line."""
    return list(plan_serve(config, config.servers[0], **more).argv)


def test_the_command_has_what_the_run_needs() -> None:
    """Model, address, context and metrics; nothing that parses, truncates or holds a key."""
    argv = plan_of(config_of())

    assert argv == shlex.split(
        "python3 -m sglang.launch_server --model-path /models/toy --host 127.0.0.1 --port 30000 "
        "--context-length 4096 --enable-metrics"
    )


def test_an_open_lane_leaves_the_context_to_the_model() -> None:
    """A lane that takes what the server has asks for no context."""
    assert "--context-length" not in plan_of(config_of(lanes={"long": {"context": 0}}))


def test_capture_turns_the_prefix_cache_off() -> None:
    """Both flags that whole hidden states need, and the plugin's variables."""
    config = config_of()
    plan = plan_serve(config, config.servers[0], capture=True, capture_env={"EAGLED_CAPTURE": "1"})

    assert {"--disable-radix-cache", "--enable-return-hidden-states"} <= set(plan.argv)
    assert plan.env == {"EAGLED_CAPTURE": "1"}


def test_a_draft_is_served_as_eagle3(tmp_path: Path) -> None:
    """The algorithm is EAGLE3, whatever else is set."""
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 4096})
    )
    argv = plan_of(config_of(), draft=tmp_path)

    assert argv[argv.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert argv[argv.index("--speculative-draft-model-path") + 1] == str(tmp_path)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--reasoning-parser", "kimi_k2"], "--reasoning-parser"),
        (["--tool-call-parser=kimi_k2"], "--tool-call-parser"),
        (["--allow-auto-truncate"], "silently"),
        (["--api-key", "secret"], "api_key_file"),
        (["--port", "1"], "servers.url"),
        (["--speculative-algorithm", "EAGLE"], "--draft"),
    ],
)
def test_flags_that_spoil_the_data_are_refused(args: list[str], word: str) -> None:
    """Each is named with what to do instead."""
    with pytest.raises(ConfigError, match=word):
        plan_of(config_of(serve={"args": args}))


@pytest.mark.fault("F87")
def test_an_eagle3_draft_is_never_served_with_eagle() -> None:
    """The plan of the fault's input is refused, and says what EAGLE would do."""
    given = json.loads(fault_file("deploy/flag_eagle.json").read_text())
    args, draft = given["args"], given["draft_config"]
    wrong = draft_config_problems(
        draft, args["speculative_algorithm"], args["context_length"], "draft"
    )
    right = draft_config_problems(draft, "EAGLE3", args["context_length"], "draft")

    assert ["EAGLE3, not EAGLE" in text for text in wrong] == [True]
    assert right == []


@pytest.mark.fault("F88")
def test_a_draft_of_fewer_positions_is_refused() -> None:
    """2048 positions against a context of 10240: both numbers are named."""
    given = json.loads(fault_file("deploy/short_positions.json").read_text())
    (text,) = draft_config_problems(given["draft_config"], "EAGLE3", 10_240, "draft")

    assert ("2048" in text, "10240" in text) == (True, True)


def test_the_key_is_in_a_file_of_its_owner_only(tmp_path: Path) -> None:
    """Mode 0600 in a folder of mode 0700, quotes and all; never on the command line."""
    path = write_key(tmp_path / "servers", "s", "it's")

    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert path.read_text() == "api-key: 'it''s'\n"


class Serving:
    """`eagled serve` as a child, SGLang being the stand-in."""

    def __init__(self, folder: Path, *flags: str, told: dict[str, Any] | None = None) -> None:
        self.port = free_port()
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN.format(python=sys.executable))
        stand_in.chmod(0o755)
        serve = {"python": str(stand_in)}
        self.config = write_config(folder, f"http://127.0.0.1:{self.port}", serve=serve)
        self.pids = folder / "pids"
        self.log = folder / "serve.log"
        env = clean_env(
            LAUNCHABLE=json.dumps(told or {}),
            LAUNCHABLE_PIDS=str(self.pids),
            PYTHONPATH=str(ROOT),
        )
        command = [sys.executable, "-m", "eagled", "serve", "--config", str(self.config), *flags]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=folder)

    def printed(self, text: str) -> str:
        """Wait until it has printed `text`; return everything."""
        deadline = time.monotonic() + 60
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self.log.read_text()

    def all_gone(self) -> bool:
        """Return whether server and children are gone, given a moment."""
        deadline = time.monotonic() + 10
        every = [pid for pair in _pairs(self.pids) for pid in pair]
        while any(start_ticks(pid) is not None for pid in every):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return bool(every)


def test_serve_starts_checks_and_ends(tmp_path: Path) -> None:
    """What came up is looked at, line by line; SIGTERM ends everything with code 0."""
    serving = Serving(tmp_path)
    text = serving.printed("serving at")
    serving.process.send_signal(signal.SIGTERM)
    code = serving.process.wait(30)

    assert code == 0
    assert serving.all_gone()
    for line in ("ok    server", ": context: 4096 tokens", ": model: ", ": round trip: "):
        assert line in text
    assert '"--context-length", "4096"' in text


def test_what_is_not_what_was_asked_for_is_ended(tmp_path: Path) -> None:
    """A server that came up with less context is refused: exit 78, nothing left."""
    less = {"info": {"version": "0.5.23", "context_length": 1024}}
    serving = Serving(tmp_path, told={"settings": less})
    code = serving.process.wait(60)
    text = serving.log.read_text()

    assert (code, serving.all_gone()) == (78, True)
    assert "fail  server" in text
    assert "--context-length 4096" in text


def test_a_server_that_ends_gives_its_code(tmp_path: Path) -> None:
    """A start that fails ends the command with the server's own code."""
    serving = Serving(tmp_path, told={"exit": 7})

    assert serving.process.wait(60) == 7
    assert "out of memory" in serving.log.read_text()


def test_a_killed_command_leaves_no_server(tmp_path: Path) -> None:
    """SIGKILL of `eagled serve` ends the server: the kernel does it."""
    serving = Serving(tmp_path)
    serving.printed("serving at")
    leader, child = _pairs(serving.pids)[0]
    serving.process.kill()
    serving.process.wait()
    deadline = time.monotonic() + 10
    while start_ticks(leader) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    gone = start_ticks(leader) is None
    os.kill(child, signal.SIGKILL)  # the stand-in's child has no such signal; SGLang's have

    assert gone


def test_dry_run_prints_a_line_for_the_shell(tmp_path: Path) -> None:
    """The command line, and no key; nothing is started."""
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("s3cret")
    config = write_config(tmp_path, "http://127.0.0.1:30000")
    with config.open("a") as file:
        file.write(f"api_key_file = {json.dumps(str(key))}\n")
    done = eagled("serve", "--dry-run", "--config", str(config))
    as_json = eagled("serve", "--dry-run", "--json", "--config", str(config))

    assert done.returncode == 0, done.stderr
    assert "sglang.launch_server" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert json.loads(as_json.stdout)["url"] == "http://127.0.0.1:30000"


@pytest.mark.parametrize("flags", [["--url", "http://other:1"], ["--draft", "/absent"]])
def test_wrong_use_starts_nothing(tmp_path: Path, flags: list[str]) -> None:
    """An unknown address is exit 2, a draft that is none is exit 78."""
    config = write_config(tmp_path, "http://127.0.0.1:30000")
    done = eagled("serve", *flags, "--config", str(config))

    assert done.returncode == (2 if flags[0] == "--url" else 78), done.stderr
