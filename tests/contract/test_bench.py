"""`eagled bench` on real SGLang: it starts both servers, and knows a worthless draft.

Needs EAGLED_SGLANG_VENV (`make test-sglang`). With EAGLED_DRAFT and EAGLED_DRAFT_TARGET a trained
draft is measured: the speed of a CPU says nothing, the counts do.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eagled.cli import app
from eagled.errors import ArtifactError
from tests.contract.server import _free_port as free_port
from tests.draft_kit import random_draft

VENV = os.environ.get("EAGLED_SGLANG_VENV", "")
ROOT = Path(__file__).parents[2]
FLAGS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "65536",
    "--max-running-requests", "4", "--disable-cuda-graph", "--mem-fraction-static", "0.3",
    "--skip-server-warmup", "--sleep-on-idle", "--dtype", "float32",
)  # fmt: skip
DRAFT_FLAGS = (
    "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4", "--prefill-attention-backend", "intel_amx",
    "--decode-attention-backend", "intel_amx", "--speculative-draft-attention-backend", "intel_amx",
)  # fmt: skip
ENV = {
    "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1",
    "PYTHONPATH": str(ROOT / "tests" / "sglang_cpu"),
}  # fmt: skip
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.skipif(not VENV, reason="EAGLED_SGLANG_VENV is not set: make test-sglang"),
]


def write_setting(folder: Path, model: Path) -> int:
    """Write configuration and questions into `folder`; return the servers' port."""
    port = free_port()
    pairs = "\n".join(f"{name} = {json.dumps(value)}" for name, value in ENV.items())
    (folder / "asked.json").write_text(json.dumps(["What is rain?", "Name three rivers."]))
    (folder / "eagled.toml").write_text(
        f'[target]\nmodel = "{model}"\n'
        f'[serve]\npython = "{Path(VENV).absolute()}/bin/python"\n'
        f"args = {json.dumps(FLAGS)}\ndraft_args = {json.dumps(DRAFT_FLAGS)}\n"
        f"[serve.env]\n{pairs}\n[lanes.short]\ncontext = 1536\n"
        f'[[servers]]\nurl = "http://127.0.0.1:{port}"\nlaunch_timeout_s = 600\n'
    )
    return port


def words(draft: Path, tokens: int) -> list[str]:
    """Return the command."""
    return [
        "bench", str(draft), "--prompts", "asked.json", "--concurrency", "1,2", "--runs", "1",
        "--max-new-tokens", str(tokens), "--out", "out",
    ]  # fmt: skip


def is_free(port: int) -> bool:
    """Return whether nothing listens there."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def test_a_draft_that_is_never_right_is_a_fault(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real verify steps, none of them right: refused, the plain side kept, no server left."""
    monkeypatch.chdir(tmp_path)
    port = write_setting(tmp_path, tiny_model)
    draft = random_draft(tiny_model, tmp_path / "draft", (2, 4, 5))
    tensors = load_file(draft / "model.safetensors")
    tensors["lm_head.weight"].zero_()  # it guesses its first id, a marker that is never said
    save_file(tensors, draft / "model.safetensors")

    with pytest.raises(ArtifactError, match=r"1\.00: no guess is right"):
        app(words(draft, 24), standalone_mode=False)
    plain = json.loads((tmp_path / "out/plain.json").read_text())["side"]
    assert [1, 2] == [p["concurrency"] for p in plain["passes"]]
    assert [] == plain["notes"]
    assert is_free(port)


def test_a_trained_draft_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every greedy answer is the plain server's, and the counts of the report agree."""
    draft, target = os.environ.get("EAGLED_DRAFT"), os.environ.get("EAGLED_DRAFT_TARGET")
    if not draft or not target:
        pytest.skip("EAGLED_DRAFT and EAGLED_DRAFT_TARGET are not set")
    monkeypatch.chdir(tmp_path)
    port = write_setting(tmp_path, Path(target))
    app(words(Path(draft), 32), standalone_mode=False)
    (found,) = json.loads((tmp_path / "out/benchmark.json").read_text())["drafts"]
    accepted = found["accepted"]

    assert found["same_answers"][0] == found["same_answers"][1]
    assert accepted["verify_steps"] == sum(accepted["histogram"])
    assert accepted["right_guesses"] == sum(i * n for i, n in enumerate(accepted["histogram"]))
    assert accepted["accepted_length"] > 1.05
    assert is_free(port)
