"""`eagled serve` starts real SGLang on the CPU; only where it is installed (`make test-sglang`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.daemon_kit import ROOT, clean_env
from tests.integration.test_launch import free_port

START_S = 400.0
FLAGS = [
    "--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32",
    "--max-total-tokens", "8192", "--max-running-requests", "4", "--disable-cuda-graph",
    "--mem-fraction-static", "0.3", "--skip-server-warmup", "--sleep-on-idle",
]  # fmt: skip


def write_config(folder: Path, venv: Path, model: Path, port: int) -> Path:
    """Write the configuration of a run that serves itself."""
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text("serve-key")
    env = {
        "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "tests/sglang_cpu"),
    }  # fmt: skip
    lines = [
        "[target]", f"model = {json.dumps(str(model))}",
        "[lanes.short]", "context = 1536",
        "[generation]", "min_reply = 64",
        "[serve]", f"python = {json.dumps(str(venv / 'bin/python'))}",
        f"args = {json.dumps(FLAGS)}",
        "[serve.env]", *(f"{k} = {json.dumps(v)}" for k, v in env.items()),
        "[[servers]]", f'url = "http://127.0.0.1:{port}"',
        f"api_key_file = {json.dumps(str(key))}",
    ]  # fmt: skip
    path = folder / "eagled.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def command_lines() -> str:
    """Return every command line on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_serve_starts_sglang_and_finds_it_right(tiny_model: Path, tmp_path: Path) -> None:
    """Started with the run's flags and key, every check passes, the key is in no argv, all ends."""
    venv = os.environ.get("EAGLED_SGLANG_VENV")
    if not venv:
        pytest.skip("SGLang is not installed: make test-sglang")
    port = free_port()
    config = write_config(tmp_path, Path(venv), tiny_model, port)
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagled", "serve", "--config", str(config)],
            env=clean_env(), stdout=out, stderr=out, cwd=tmp_path,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while "serving at" not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)
        seen = command_lines()
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    text = log.read_text(errors="replace")
    checks = [line for line in text.splitlines() if line[:4].strip() in ("ok", "warn", "fail")]
    bad = [line for line in checks if not line.startswith("ok")]

    assert code == 0
    assert "serve-key" not in seen
    # Told apart by its port: the other tests of the contract may have a server of this model.
    assert f"--port {port} " in seen
    assert bad == []
    for name in ("model", "tokenizer", "vocabulary", "context", "round trip"):
        assert any(f": {name}: " in line for line in checks), text[-3000:]
    assert f"--port {port} " not in command_lines()
