"""Real SGLang with the plugin, and the reference that its rows are compared with.

The plugin enters SGLang's environment as users install it: `pip install --no-deps`, into a folder
of its own here, so that the shared environment stays stock. The reference is transformers, in
another process with another torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.contract.server import _free_port

ROOT = Path(__file__).parents[2]
LAYERS = (2, 4, 5)
N_LAYERS, HIDDEN, VOCAB = 8, 256, 2048
ROW_ERROR = 0.03  # of the worst row; bf16 noise was at most 0.013, another layer is above 0.3
_START_S = 600.0  # a failure limit; two cores, shared
_STOP_S = 30.0
_POLL_S = 0.05
_REQUEST_S = 240.0


def seeded() -> random.Random:
    """Return the generator of a test's requests, the same for each."""
    return random.Random(3)  # noqa: S311 - test data


def make_model(family: str, folder: Path) -> Path:
    """Write a random bf16 model of 8 layers, without a tokenizer."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 512,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    model = (
        Qwen3ForCausalLM(Qwen3Config(**sizes))
        if family == "qwen3"
        else LlamaForCausalLM(LlamaConfig(**sizes))
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def install_plugin(folder: Path) -> Path:
    """Install eagled without its dependencies into `folder`, as into SGLang's environment."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(folder)]
    subprocess.run([*command, *options, str(ROOT)], check=True, capture_output=True)
    return folder


_FIXED = ("--skip-tokenizer-init", "--context-length", "4096", "--max-running-requests", "16")


def launch(
    venv: Path,
    model: Path,
    port: int,
    log: Path,
    *flags: str,
    fixed: Sequence[str] = _FIXED,
    **env: str,
) -> subprocess.Popen[bytes]:
    """Start SGLang in a process group of its own; `flags` win over the script's."""
    script = str(ROOT / "scripts" / "sglang_cpu.sh")
    with log.open("wb") as out:
        return subprocess.Popen(
            [script, str(venv), str(model), str(port), *fixed, *flags],
            stdout=out,
            stderr=out,
            env=os.environ | env,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a server and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOP_S)


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    model: Path
    spool: Path
    log: Path
    pid: int

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """POST JSON; return status and body."""
        request = urllib.request.Request(  # noqa: S310 - our own http address
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_S) as reply:  # noqa: S310 - as above
                raw = reply.read()
        except urllib.error.HTTPError as exc:
            return exc.code, json.loads(exc.read() or b"null")
        return 200, json.loads(raw) if raw else None

    def generate(self, rid: str, ids: list[int], new: int, **more: Any) -> dict[str, Any]:
        """Ask for an answer with states."""
        status, body = self.post("/generate", request_body(rid, ids, new, **more))
        assert status == 200, body
        return dict(body)


def request_body(rid: str, ids: list[int], new: int, **more: Any) -> dict[str, Any]:
    """Return a request for states; `more` overrides sampling parameters."""
    sampling = {"max_new_tokens": new, "temperature": 1.0, "ignore_eos": True} | more
    return {
        "input_ids": ids,
        "rid": rid,
        "sampling_params": sampling,
        "return_hidden_states": True,
    }


_OF_CAPTURE = ("--disable-radix-cache", "--enable-return-hidden-states")


@contextmanager
def serving(
    venv: Path, site: Path, model: Path, folder: Path, *flags: str, fixed: Sequence[str] = _FIXED
) -> Iterator[Server]:
    """Serve `model` with the plugin, yield, end it; `fixed` replaces the usual flags."""
    env = capture_environment(site, folder / "spool")
    with _served(venv, model, folder, *_OF_CAPTURE, *flags, fixed=fixed, **env) as server:
        yield server


@contextmanager
def serving_stock(venv: Path, model: Path, folder: Path, *flags: str) -> Iterator[Server]:
    """Serve `model` without the plugin, as docs/capture.md starts it for layers as JSON."""
    layers = ("--speculative-algorithm", "EAGLE3", "--enable-return-aux-hidden-states")
    whole = ("--chunked-prefill-size", "-1")
    with _served(venv, model, folder, *_OF_CAPTURE, *layers, *whole, *flags) as server:
        yield server


@contextmanager
def _served(
    venv: Path,
    model: Path,
    folder: Path,
    *flags: str,
    fixed: Sequence[str] = _FIXED,
    **env: str,
) -> Iterator[Server]:
    port, log = _free_port(), folder / "server.log"
    process = launch(venv, model, port, log, *flags, fixed=fixed, **env)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(process, url, log)
        yield Server(url, model, folder / "spool", log, process.pid)
    finally:
        kill(process)


def capture_environment(site: Path, spool: Path, layers: str = "2,4,5") -> dict[str, str]:
    """Return the variables that switch the plugin on."""
    return {
        "PYTHONPATH": str(site),
        "EAGLED_CAPTURE": "1",
        "EAGLED_CAPTURE_SPOOL": str(spool),
        "EAGLED_CAPTURE_LAYERS": layers,
        "EAGLED_CAPTURE_RESERVE_MB": "64",
    }


def _wait_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=25):  # noqa: S310 - our own http address
            return
        time.sleep(_POLL_S)
    raise AssertionError(f"SGLang did not start: {log.read_text(errors='replace')[-3000:]}")


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    """Wait until `condition()` holds, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(_POLL_S)


class Reference:
    """What transformers computes for the same ids."""

    def __init__(self, model: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()

    def worst_row(self, ids: list[int], states: torch.Tensor, layers: tuple[int, ...]) -> float:
        """Return the largest relative error of one row of one chunk.

        Args:
            ids: prompt and answer.
            states: [rows, (L+1)*D].
            layers: boundary ids; the chunk after them is the state after the final norm.
        """
        with torch.no_grad():
            found = self._model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        chunks = states.view(len(states), len(layers) + 1, -1).float()  # [rows, L+1, D]
        worst = 0.0
        for index, k in enumerate([*layers, N_LAYERS]):
            wanted = found[k][0][: len(states)].float()
            error = (chunks[:, index] - wanted).norm(dim=-1) / wanted.norm(dim=-1)
            worst = max(worst, float(error.max()))
        return worst


def check_reply(
    reply: dict[str, Any], prompt: list[int], reference: Reference, layers: tuple[int, ...] = LAYERS
) -> int:
    """Check a reply's receipt, file and every row; return the number of rows."""
    receipt = reply["meta_info"]["hidden_states"]
    assert receipt["state"] == "complete", receipt
    ids = prompt + reply["output_ids"]
    rows = len(prompt) + max(0, len(reply["output_ids"]) - 1)
    tensors = load_file(receipt["path"])
    states = tensors["states"]

    assert ids == tensors["input_ids"].tolist()
    assert (rows, (len(layers) + 1) * HIDDEN) == tuple(states.shape)
    assert (rows, states.shape[1]) == (receipt["rows"], receipt["width"])
    assert zlib.crc32(states.view(torch.uint8).numpy().tobytes()) == receipt["crc32"]
    assert Path(receipt["path"]).stat().st_size == receipt["bytes"]
    assert reference.worst_row(ids, states, layers) < ROW_ERROR
    return rows
