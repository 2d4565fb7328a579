"""The crash harness's world: a tiny model, prepared samples, and the processes around the daemon.

The daemon is the real one (`eagled run`), started and killed by the harness, as is the server where
that is asked for. Witness, text worker and extraction worker are processes of their own that
survive the daemon's death and find it again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.crash.engines import Engine, Kind
from eagled.paths import StatePaths
from tests.tiny_model import make_tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS = (
    "the",
    "sum",
    "of",
    "two",
    "long",
    "words",
    "and",
    "one",
    "short",
    "list",
    "gives",
    "a",
    "plan",
)
_TURNS = (1, 1, 1, 2, 3)
_POLL_S = 0.01


@dataclass(slots=True)
class World:
    """Folder, configuration and helpers of one harness run."""

    root: Path
    engine: Engine
    python: str = sys.executable
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        """The configuration that daemon and workers share."""
        return self.root / "eagled.toml"

    @property
    def state(self) -> StatePaths:
        """The state directory."""
        return StatePaths(self.root / "state")

    @property
    def acks(self) -> Path:
        """What the witness wrote, one JSON object a line."""
        return self.root / "acks.jsonl"

    def spawn(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        """Start `python -m …` with its output in a log file."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with (self.root / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self.python, "-m", *args],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=env,
            )

    def helper(self, name: str, *args: str) -> None:
        """Start a process that stays for the whole run."""
        process = self.spawn(name, *args)
        self.helpers.append(process)
        self.names[process.pid] = name

    def check_helpers(self) -> None:
        """End the run if a helper has ended: nothing would go on without it.

        Raises:
            SystemExit: with what it said last.
        """
        for helper in self.helpers:
            if helper.poll() is not None:
                name = self.names[helper.pid]
                said = (self.root / f"{name}.log").read_text(errors="replace")[-2000:]
                raise SystemExit(f"the {name} process ended with {helper.returncode}:\n{said}")

    def start_daemon(self) -> None:
        """Start the daemon unless it is there."""
        if self.daemon is None:
            self.daemon = self.spawn("daemon", "eagled", "run", "--config", str(self.config))

    def daemon_ended(self) -> int | None:
        """Return how the daemon ended by itself, None if it runs."""
        return self.daemon.poll() if self.daemon is not None else None

    def kill_daemon(self) -> None:
        """SIGKILL it."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None

    def stop_daemon(self, timeout_s: float) -> int:
        """SIGTERM it and return its exit code."""
        assert self.daemon is not None
        self.daemon.terminate()
        code, self.daemon = self.daemon.wait(timeout_s), None
        return code

    def command(self, *args: str) -> str:
        """Run an eagled command to its end and return its output."""
        done = subprocess.run(
            [self.python, "-m", "eagled", *args, "--config", str(self.config)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"eagled {' '.join(args)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> None:
        """End daemon, server and every helper."""
        self.kill_daemon()
        self.engine.kill()
        for helper in self.helpers:
            helper.kill()
            helper.wait()


def make_world(
    root: Path,
    *,
    conversations: int,
    seed: int,
    mean_ms: float,
    kind: Kind = "canned",
    venv: Path | None = None,
) -> World:
    """Build the world in an empty folder: model, dataset, running server, prepared samples."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    model = make_tiny_model(root / "model")
    world = World(root, Engine(kind, model, root / "server.log", mean_ms, venv))
    world.engine.start()
    _write_dataset(root / "chat.jsonl", conversations, random.Random(seed))
    world.config.write_text(_CONFIG.format(model=model, port=world.engine.port))
    try:
        world.command("prep")
    except SystemExit:
        world.close()
        raise
    return world


def start_helpers(world: World) -> None:
    """Start witness and workers; they wait for the daemon by themselves."""
    socket = str(world.state.socket)
    world.helper("witness", "bench.crash.witness", "--socket", socket, "--out", str(world.acks))
    for kind in ("text", "extract"):
        world.helper(kind, "eagled", "worker", kind, "--config", str(world.config))


def wait_until(ready: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"crash harness: no {what} within {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def _write_dataset(path: Path, conversations: int, rng: random.Random) -> None:
    """Write chats of one to three user turns, all different."""
    with path.open("w") as out:
        for number in range(conversations):
            turns = []
            for turn in range(rng.choice(_TURNS)):
                text = " ".join(rng.choices(_WORDS, k=rng.randint(3, 30)))
                turns.append({"from": "human", "value": f"{number} {turn} {text}"})
                turns.append({"from": "gpt", "value": "as before"})
            out.write(json.dumps({"id": f"c{number}", "conversations": turns}) + "\n")


_CONFIG = """
[run]
name = "crash"
[target]
model = "{model}"
[sampling]
max_new_tokens = 64
temperature = 0.7
[[servers]]
url = "http://127.0.0.1:{port}"
[lanes.short]
context = 512
limit = 32
concurrency = 32
[lanes.long]
context = 2048
limit = 8
concurrency = 8
[generation]
min_reply = 64
probe_interval_s = 0.2
breaker_failures = 1000
max_crashes = 1000000
retry_base_s = 0.05
retry_max_s = 0.5
[extract]
threads = 1
layers = [2, 4, 5]
[shards]
target_bytes = 1048576
max_wait_s = 0.5
[disk]
reserve_bytes = 67108864
resume_bytes = 1048576
[daemon]
workers = "external"
stop_timeout_s = 10
[[datasets]]
name = "chat"
source = "chat.jsonl"
format = "sharegpt"
"""
