"""A daemon as a process of its own, on a state directory that a test has filled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagled.config import Config
from eagled.config_load import load_config
from eagled.control import call
from eagled.errors import UnreachableError
from eagled.store import Store
from tests.servers.kit import add_prompts, open_store

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 180.0  # the machine may be busy with other things
VOCAB = 283
_READY = re.compile(r"http://127\.0\.0\.1:\d+")
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")


def clean_env(**more: str) -> dict[str, str]:
    """Return an environment without settings of eagled, with one thread and our code."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    calm = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}
    return {**kept, **calm, **more}


def as_in_front() -> None:
    """Undo what nohup and a shell's background do: there SIGHUP and SIGINT are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def eagled(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one command of eagled and return how it ended."""
    return subprocess.run(
        [sys.executable, "-m", "eagled", *args],
        cwd=cwd,
        env=clean_env(**env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@contextmanager
def engine(model: Path, log: Path) -> Iterator[str]:
    """Run the embedded engine on a free port and give its address."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagled", "engine", "--model", str(model), "--port", "0",
             "--slots", "8"],
            env=clean_env(), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 2 * DEADLINE_S
        while (found := _READY.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def write_model(folder: Path) -> Path:
    """Write what the daemon reads of a target model: its config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": VOCAB, "max_position_embeddings": 10_240})
    )
    return folder


def write_config(folder: Path, *urls: str, **sections: Mapping[str, Any]) -> Path:
    """Write a configuration for tests: no workers, short waits, one lane of eight.

    `sections` are merged into it, each a table of settings.
    """
    write_model(folder / "model")
    tables: dict[str, dict[str, Any]] = {
        "target": {"model": "model"},
        "sampling": {"max_new_tokens": 100},
        "lanes.short": {"context": 4096, "limit": 8, "concurrency": 8},
        "generation": {"min_reply": 8, "probe_interval_s": 0.2, "retry_base_s": 0.05},
        "extract": {"backend": "off"},
        "daemon": {"workers": "external", "stop_timeout_s": 5.0},
    }
    for name, values in sections.items():
        tables.setdefault(name.replace("__", "."), {}).update(values)
    lines = []
    for name, values in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    for url in urls:
        lines += ["[[servers]]", f"url = {json.dumps(url)}"]
    path = folder / "eagled.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def fill(path: Path, prompts: Sequence[Sequence[int]], dataset: str = "d") -> None:
    """Queue one sample a prompt in the state directory of a configuration."""
    config = load_config(path, environ={}).config
    asyncio.run(_fill(config, prompts, dataset))


async def _fill(config: Config, prompts: Sequence[Sequence[int]], dataset: str) -> None:
    async with await open_store(config.run.state_dir, config) as store:
        await add_prompts(store, config, prompts, dataset)


def look(path: Path, reader: Callable[[Store], Any]) -> Any:
    """Open the store of a stopped daemon and return what `reader` (a coroutine function) gives."""
    config = load_config(path, environ={}).config

    async def read() -> Any:
        async with await open_store(config.run.state_dir, config) as store:
            return await reader(store)

    return asyncio.run(read())


class DaemonProcess:
    """`eagled run` as a child; `log` is what it printed.

    `argv` is another command that becomes a daemon of this configuration.
    """

    def __init__(self, config: Path, argv: Sequence[str] = (), **env: str) -> None:
        self.config = config
        self.socket = config.parent / "state/control.sock"
        self._log = (config.parent / "daemon.log").open("ab")
        self._process = subprocess.Popen(
            argv or [sys.executable, "-m", "eagled", "run", "--config", str(config)],
            cwd=config.parent,
            env=clean_env(**env),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            preexec_fn=as_in_front,  # noqa: PLW1509 - two calls, no lock
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.config.parent / "daemon.log").read_text()

    def status(self) -> dict[str, Any]:
        """Return its status document."""
        return dict(call.get(self.socket, "/v1/status"))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call it."""
        return call.post(self.socket, path, body)

    def until(
        self, ready: Callable[[dict[str, Any]], bool], timeout_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """Wait until its status satisfies `ready`, and return that status."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self._process.poll() is None, f"it ended with {self.returncode}:\n{self.log}"
            with contextlib.suppress(UnreachableError):
                status = self.status()
                if ready(status):
                    return status
            assert time.monotonic() < deadline, f"it did not come about in time:\n{self.log}"
            time.sleep(0.05)

    def ready(self) -> dict[str, Any]:
        """Wait until it answers."""
        return self.until(bool)

    def logged(self, text: str) -> None:
        """Wait until it has printed `text`."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.log:
            assert self._process.poll() is None, f"it ended with {self.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"it did not print {text!r}:\n{self.log}"
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit code and the seconds until it came."""
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        return self.wait(), time.monotonic() - began

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for its end and return the exit code."""
        return self._process.wait(timeout_s)

    @property
    def returncode(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it if it runs, and close its log."""
        if self._process.poll() is None:
            self.kill()
        self._log.close()


@contextmanager
def daemon(config: Path, argv: Sequence[str] = (), **env: str) -> Iterator[DaemonProcess]:
    """Run a daemon until the block ends."""
    process = DaemonProcess(config, argv, **env)
    try:
        yield process
    finally:
        process.close()
