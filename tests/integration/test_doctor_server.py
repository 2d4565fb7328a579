"""What `eagled doctor` says of a server that is not quite the right one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.doctor_server import examine_server
from eagled.server.model_folder import ModelFacts
from eagled.verdicts import Check, Verdict
from tests.daemon_kit import write_model
from tests.servers.misbehaving import INFO, MODEL
from tests.servers.process import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One test server for the module; each test sets what it says of itself."""
    with ServerProcess() as process:
        yield process


async def checks(
    server: ServerProcess, folder: Path, *, info: dict[str, Any], model: dict[str, Any]
) -> dict[str, Check]:
    """Return the checks of a server that says so of itself: the worst of each short name."""
    ours = write_model(folder / "ours")
    (ours / "tokenizer.json").write_text("{}")
    server.set(info=INFO | {"enable_metrics": True} | info, model=MODEL | model)
    config = Config.model_validate(
        {
            "target": {"model": str(ours)},
            "servers": [{"url": server.url}],
            "lanes": {"short": {"context": 8192}},
            "extract": {"layers": [2, 30, 58]},
        }
    )
    found = await examine_server(config, config.servers[0], ModelFacts(283, 10_240))
    prefix = f"server {server.url}"
    worst_last = sorted(found, key=lambda check: list(Verdict).index(check.verdict))
    return {c.name.removeprefix(prefix).removeprefix(": "): c for c in worst_last}


def copy_of(folder: Path, **changes: str) -> Path:
    """Return a folder with a model's files, some of them changed."""
    model = write_model(folder)
    (model / "tokenizer.json").write_text(changes.get("tokenizer", "{}"))
    if "config" in changes:
        (model / "config.json").write_text(changes["config"])
    return model


async def test_the_same_model_elsewhere_is_fine(server: ServerProcess, tmp_path: Path) -> None:
    """Another folder with the same files passes; a context that is large enough too."""
    other = str(copy_of(tmp_path / "other"))
    found = await checks(
        server, tmp_path, info={}, model={"model_path": other, "tokenizer_path": other}
    )

    assert {name: found[name].verdict for name in ("model", "tokenizer", "vocabulary")} == {
        "model": Verdict.OK,
        "tokenizer": Verdict.OK,
        "vocabulary": Verdict.OK,
    }
    assert found["context"].verdict is Verdict.OK


async def test_another_model_and_tokenizer_fail(server: ServerProcess, tmp_path: Path) -> None:
    """Each difference is its own line, with both sides named."""
    other = copy_of(tmp_path / "other", tokenizer='{"a": 1}', config='{"vocab_size": 500}')
    says = {"model_path": str(other), "tokenizer_path": str(other)}
    found = await checks(server, tmp_path, info={"context_length": 4096}, model=says)

    failed = {name for name, check in found.items() if check.verdict is Verdict.FAIL}
    assert {"model", "tokenizer", "vocabulary", "context"} <= failed
    assert "500" in found["vocabulary"].found
    assert "283" in found["vocabulary"].found
    assert "--context-length 8192" in found["context"].advice


async def test_eagle_with_an_eagle3_draft_fails(server: ServerProcess, tmp_path: Path) -> None:
    """The draft's own config tells; its layers are compared with the run's."""
    draft = tmp_path / "draft"
    draft.mkdir()
    inner = {"eagle_aux_hidden_state_layer_ids": [3, 31, 59]}
    about = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": inner}
    (draft / "config.json").write_text(json.dumps(about))
    says = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(draft)}
    found = await checks(server, tmp_path, info=says, model={})

    assert "[3, 31, 59]" in found["draft layers"].found
    assert "[2, 30, 58]" in found["draft layers"].found
    assert found["draft"].verdict is Verdict.FAIL
    assert "EAGLE3, not EAGLE" in found["draft"].found


async def test_flags_that_spoil_data_are_named(server: ServerProcess, tmp_path: Path) -> None:
    """Silent truncation fails; a server that takes no text is warned of, not passed."""
    found = await checks(server, tmp_path, info={"allow_auto_truncate": True}, model={})

    assert found["flags"].verdict is Verdict.FAIL
    assert found["round trip"].verdict is not Verdict.OK
