"""Limits that are reached: open files, connections, slow readers, prompts without end."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from eagled.store import Store
from eagled.types import SampleState
from tests.daemon_kit import clean_env, daemon, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess

NONE_LEFT = 3  # what is open stays open
FOLLOW = b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: eagled\r\n\r\n"
READER = """
import asyncio, pathlib, sys
from eagled.control.client import ControlClient

async def main():
    async with ControlClient(pathlib.Path(sys.argv[1])) as client:
        async for event in client.events(acks=True, follow=True):
            print(event, flush=True)

asyncio.run(main())
"""


def _prompts(n: int) -> list[list[int]]:
    return [[1, 2, i % 200, i // 200] for i in range(n)]


async def _reasons(store: Store) -> list[str]:
    return [row.reason for row in await store.samples(limit=100) if row.reason]


async def _charges(store: Store) -> int:
    return sum(row.failures for row in await store.samples(limit=1000))


def test_open_files_that_run_out_are_said_and_cost_nothing(tmp_path: Path) -> None:
    """Nothing can be opened for a while: a line a second, no sample charged, the run goes on."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        server.steps({"do": "answer", "delay_s": 0.02})
        fill(config, _prompts(300))
        with daemon(config) as process, ExitStack() as held:
            process.until(lambda s: s["datasets"]["d"]["done"] > 20)
            before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (NONE_LEFT, before[1]))
            call = held.enter_context(socket.socket(socket.AF_UNIX))
            call.connect(str(process.socket))
            process.logged("no open file is left for a control connection")
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
            process.until(lambda s: s["datasets"]["d"]["done"] == 300)
            code, _ = process.stop()

    assert 0 == code
    assert ({SampleState.GENERATED: 300}, 0) == (look(config, states), look(config, _charges))
    assert "Traceback" not in process.log


def test_callers_that_hold_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Beyond the limit the oldest idle connection goes; one with a call in hand stays."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        patched = ["tests.patched", "eagled.control.server:MAX_CONNECTIONS=8", "--"]
        argv = [sys.executable, "-m", *patched, "run", "--config", str(config)]
        with daemon(config, argv) as process, ExitStack() as held:
            process.ready()
            stream = held.enter_context(socket.socket(socket.AF_UNIX))
            stream.connect(str(process.socket))
            stream.sendall(FOLLOW)
            assert stream.recv(12) == b"HTTP/1.1 200"
            idle = [held.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(30)]
            for each in idle:
                each.connect(str(process.socket))
            process.post("/v1/pause", {})
            heard = b""
            while b"setting_changed" not in heard:
                piece = stream.recv(65536)
                assert piece, "the stream was cut"
                heard += piece
            idle[0].settimeout(60)
            cut = _cut(idle[0])
            code, _ = process.stop()

    assert (True, 0) == (cut, code)


def _cut(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_reader_that_was_stopped_holds_up_neither_the_run_nor_the_end(tmp_path: Path) -> None:
    """A screen under SIGSTOP does not take its lines: completions, status and exit go on."""
    with ServerProcess() as server:
        config = write_config(tmp_path, server.url)
        fill(config, _prompts(1000))
        with daemon(config) as process:
            process.ready()
            with subprocess.Popen(
                [sys.executable, "-c", READER, str(process.socket)], env=clean_env(),
                stdout=subprocess.PIPE,
            ) as reader:  # fmt: skip
                assert reader.stdout is not None
                reader.stdout.readline()
                reader.send_signal(signal.SIGSTOP)
                process.until(lambda s: s["datasets"]["d"]["done"] == 1000)
                code, _ = process.stop()
                reader.kill()

    assert 0 == code
    assert {SampleState.GENERATED: 1000} == look(config, states)


def test_a_prompt_beyond_every_limit_is_refused_with_its_reason(tmp_path: Path) -> None:
    """120,000 tokens at a server that takes 10,240: never sent, never retried; others go on."""
    with ServerProcess() as server:
        config = write_config(
            tmp_path, server.url, lanes__long={"context": 200_000, "limit": 2, "concurrency": 2}
        )
        fill(config, [*_prompts(20), [3] * 120_000])
        with daemon(config) as process:
            ended = ("generated", "rejected", "failed")
            process.until(lambda s: sum(s["datasets"]["d"][state] for state in ended) == 21)
            code, _ = process.stop()
        sent = max(each["n_prompt"] for each in server.seen()["sent"])

    assert (0, 4) == (code, sent)
    assert {SampleState.GENERATED: 20, SampleState.REJECTED: 1} == look(config, states)
    assert ["too_long_for_server"] == look(config, _reasons)
