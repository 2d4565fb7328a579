"""Starting an engine process, and talking to any server of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

_START_S = 120.0
_STOP_S = 30.0
_POLL_S = 0.02
_SGLANG_START_S = 300.0  # a cold disk takes minutes to bring in 7 GB
_SGLANG_SCRIPT = Path(__file__).parents[2] / "scripts" / "sglang_cpu.sh"
_READY = re.compile(r"ready at (http://\S+)")


@dataclass(frozen=True)
class ContractServer:
    """Where the server is. `embedded` marks every deliberate difference from SGLang."""

    url: str
    model: Path
    key: str | None
    embedded: bool


@dataclass(frozen=True)
class Reply:
    """Status and body of one call; `body` is JSON, or None when there is none."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """The error text in whichever of the protocol's shapes it came."""
        error = self.body.get("error", self.body)
        return str(error.get("message", error) if isinstance(error, dict) else error)

    @property
    def ids(self) -> list[int]:
        """The answer's ids."""
        return list(self.body["output_ids"])

    @property
    def finish(self) -> dict[str, Any]:
        """The finish reason."""
        return dict(self.body["meta_info"]["finish_reason"])


class Peer:
    """One client of the server under test."""

    def __init__(self, session: aiohttp.ClientSession, server: ContractServer) -> None:
        self.session = session
        self.server = server
        self.info: dict[str, Any] = {}
        self.context = 0

    @property
    def endless(self) -> int:
        """New tokens for a request that must still run when the test acts on it."""
        return self.context - 40

    async def learn(self) -> None:
        """Read what the server says about itself."""
        self.info = (await self.get("/server_info")).body
        models = (await self.get("/v1/models")).body
        self.context = int(models["data"][0]["max_model_len"])

    async def get(self, path: str) -> Reply:
        """GET a path."""
        async with self.session.get(path) as response:
            return await _reply(response)

    async def post(self, path: str, body: object) -> Reply:
        """POST JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with self.session.post(path, data=data, headers=headers) as response:
            return await _reply(response)

    async def generate(self, ids: object, rid: str | None = None, **sampling: Any) -> Reply:
        """Ask for a greedy continuation that ignores end ids, unless told otherwise."""
        params = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 8} | sampling
        body = {"input_ids": ids, "sampling_params": params}
        return await self.post("/generate", body if rid is None else body | {"rid": rid})

    async def load(self) -> dict[str, Any]:
        """Return the first rank's load."""
        return dict((await self.get("/v1/loads")).body["loads"][0])

    async def until(self, *, running: int, waiting: int = 0) -> None:
        """Wait until exactly so many requests run and wait."""
        async with asyncio.timeout(60):
            while True:
                load = await self.load()
                if (load["num_running_reqs"], load["num_waiting_reqs"]) == (running, waiting):
                    return
                await asyncio.sleep(_POLL_S)

    async def until_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        await self.until(running=0)


async def _reply(response: aiohttp.ClientResponse) -> Reply:
    raw = await response.read()
    try:
        return Reply(response.status, orjson.loads(raw))
    except orjson.JSONDecodeError:
        return Reply(response.status, None)


@dataclass(frozen=True)
class EngineProcess:
    """A running engine."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)


def engine_command(model: Path, *flags: str) -> list[str]:
    """Return the command line of an engine on a free port."""
    fixed = ["--model", str(model), "--port", "0", "--dtype", "float32", "--device", "cpu"]
    return [sys.executable, "-m", "eagled.engine", *fixed, *flags]


def engine_environment() -> dict[str, str]:
    """Return our environment with OpenMP kept to one sleeping thread."""
    return os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@contextmanager
def running_engine(model: Path, log: Path, *flags: str) -> Iterator[EngineProcess]:
    """Start an engine, wait until it is ready, and end it with the block."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            engine_command(model, *flags), stderr=stderr, env=engine_environment()
        )
    try:
        yield EngineProcess(_wait_ready(process, log), process, log)
    finally:
        _end(process)


@contextmanager
def running_sglang(venv: Path, model: Path, log: Path, *extra: str) -> Iterator[str]:
    """Start real SGLang on the CPU from its environment, yield its address, end it."""
    port = _free_port()
    flags = (
        "--dtype",
        "float32",
        "--max-queued-requests",
        "8",
        "--api-key",
        "contract-key",
        *extra,
    )
    command = [str(_SGLANG_SCRIPT), str(venv), str(model), str(port), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(process, url, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # SGLang's own children do not follow a SIGTERM
        process.wait(_STOP_S)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _SGLANG_START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=25):  # noqa: S310 - our own http address
            return
        time.sleep(_POLL_S)
    raise AssertionError(f"SGLang did not start: {log.read_text(errors='replace')[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := _READY.search(log.read_text(errors="replace")):
            return found[1]
        time.sleep(_POLL_S)
    raise AssertionError(f"the engine did not start: {log.read_text(errors='replace')}")
