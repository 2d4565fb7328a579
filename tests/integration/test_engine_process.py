"""The embedded server as a process: start, refusals at start, signals."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import aiohttp
import pytest

from tests.contract.server import (
    EngineProcess,
    engine_command,
    engine_environment,
    running_engine,
)

_START_S = 120.0
_STOP_WITHIN_S = 60.0  # a limit of failure; 12 answers of 2,000 tokens would take minutes


def _refused(model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run an engine that must not start."""
    return subprocess.run(
        engine_command(model, *flags),
        env=engine_environment(),
        capture_output=True,
        text=True,
        timeout=_START_S,
        check=False,
    )


async def _ask(engine: EngineProcess, new_tokens: int) -> tuple[int, str, int]:
    """Return status, finish reason and number of ids of one long request."""
    params = {"temperature": 0, "ignore_eos": True, "max_new_tokens": new_tokens}
    body = {"input_ids": [20, 30, 40], "sampling_params": params}
    async with (
        aiohttp.ClientSession(engine.url) as session,
        session.post("/generate", json=body) as response,
    ):
        reply = await response.json()
        finish = reply["meta_info"]["finish_reason"]["type"]
        return response.status, finish, len(reply["output_ids"])


async def _running(engine: EngineProcess) -> None:
    async with aiohttp.ClientSession(engine.url) as session, asyncio.timeout(_START_S):
        while True:
            async with session.get("/v1/loads") as response:
                if (await response.json())["loads"][0]["num_running_reqs"]:
                    return
            await asyncio.sleep(0.01)


async def test_sigterm_answers_what_runs_and_exits_with_0(tiny_model: Path, tmp_path: Path) -> None:
    """After SIGTERM a short answer finishes, a long one comes back as aborted, the exit is 0."""
    flags = ("--context-length", "2048")
    with running_engine(tiny_model, tmp_path / "log", *flags) as engine:
        long = [asyncio.create_task(_ask(engine, 2000)) for _ in range(12)]
        short = asyncio.create_task(_ask(engine, 20))
        await _running(engine)

        began = time.monotonic()
        code = await asyncio.to_thread(engine.terminate)
        elapsed = time.monotonic() - began
        replies = await asyncio.gather(*long, return_exceptions=True)

        assert 0 == code
        assert elapsed < _STOP_WITHIN_S
        assert (200, "length", 20) == await short
        assert {200} == {r[0] for r in replies if isinstance(r, tuple)}
        assert {r[1] for r in replies if isinstance(r, tuple)} <= {"abort", "length"}
        assert 12 == sum(isinstance(r, tuple) for r in replies)


def test_an_idle_engine_stops_at_once(tiny_model: Path, tmp_path: Path) -> None:
    """Without work SIGTERM ends the process with 0 and no traceback."""
    with running_engine(tiny_model, tmp_path / "log") as engine:
        assert 0 == engine.terminate()

    assert "Traceback" not in engine.log.read_text()


async def test_flags_reach_the_server(tiny_model: Path, tmp_path: Path) -> None:
    """Pool, slots, context and queue limit are what /server_info says."""
    flags = (
        "--slots", "3", "--max-total-tokens", "1500", "--context-length", "600",
        "--max-queued", "7",
    )  # fmt: skip
    with running_engine(tiny_model, tmp_path / "log", *flags) as engine:
        async with (
            aiohttp.ClientSession(engine.url) as session,
            session.get("/server_info") as response,
        ):
            info = await response.json()

    names = ("max_running_requests", "max_total_num_tokens", "context_length",
             "max_queued_requests", "max_req_input_len", "dtype", "device")  # fmt: skip
    assert [3, 1500, 600, 7, 594, "float32", "cpu"] == [info[name] for name in names]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sliding_window": 64, "model_type": "mistral"}, "sliding_window = 64"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 8}, "kv_lora_rank = 8"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    tiny_model: Path, tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    """The exit code is that of a configuration error, and the property is named."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))

    done = _refused(folder)

    assert 78 == done.returncode
    assert named in done.stderr
    assert "what works" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """No config.json: 78, and the folder is named."""
    done = _refused(tmp_path)

    assert (78, True) == (done.returncode, f"{tmp_path} is not a model folder" in done.stderr)


def test_missing_weights_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    """A tensor that is not in the files is never replaced by random numbers."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 9}
    (folder / "config.json").write_text(json.dumps(config))

    done = _refused(folder)

    assert 78 == done.returncode
    assert "9 weights are missing, the first is model.layers.8." in done.stderr


def test_torn_weights_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    """A cut safetensors file is a configuration error with the folder's name, not a traceback."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])

    done = _refused(folder)

    assert (78, False) == (done.returncode, "Traceback" in done.stderr)
    assert str(folder) in done.stderr


def test_a_taken_port_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    """The address is checked first: even a folder without a model is not looked at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _refused(tmp_path, "--port", str(port))

    assert 78 == done.returncode
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [("--slots", "0"), ("--threads", "0"), ("--max-total-tokens", "3"), ("--dtype", "int3")],
)
def test_impossible_values_are_refused(tiny_model: Path, flags: tuple[str, ...]) -> None:
    """Each impossible flag is a configuration error."""
    done = _refused(tiny_model, *flags)

    assert (78, False) == (done.returncode, "Traceback" in done.stderr)
