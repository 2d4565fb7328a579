"""The back end and the doctor's check over real SGLang with the plugin."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from eagled.config import Config
from eagled.errors import RetryableError
from eagled.hidden_doctor import check_hidden_states, keep_stock
from eagled.shards.backend_sglang import CaptureServer, SglangBackend
from eagled.shards.backend_transformers import TransformersBackend
from eagled.shards.layers import plan_layers
from eagled.shards.selfcheck import check_layers
from eagled.shards.target import read_target
from tests.sglang.kit import LAYERS, VOCAB, Server, seeded, serving_stock

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


@pytest.fixture(scope="module")
def stock(venv: Path, qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `doctor --keep` wrote of a stock server, which is ended then."""
    folder = tmp_path_factory.mktemp("stock")
    with serving_stock(venv, qwen3, folder) as server:
        keep_stock(_config(server, folder), server.url, folder / "stock.json")
    return folder / "stock.json"


@pytest.fixture(scope="module")
def server(stock: Path, server: Server) -> Server:
    """The usual one, started when the stock one has gone: two at once are slow on two cores."""
    del stock
    return server


def _config(server: Server, root: Path, **extract: object) -> Config:
    return Config.model_validate(
        {
            "target": {"model": str(server.model)},
            "servers": [{"url": server.url}],
            "run": {"state_dir": root},
            "extract": {"backend": "sglang", "spool": server.spool, "device": "cpu"} | extract,
        }
    )


def _backend(server: Server, layers: tuple[int, ...] = LAYERS) -> SglangBackend:
    return SglangBackend(
        read_target(server.model),
        layers=layers,
        servers=[CaptureServer(server.url)],
        spool=server.spool,
    )


def test_default_layers_are_those_of_the_fixture() -> None:
    """The servers here capture what a run plans by itself."""
    assert plan_layers(8) == LAYERS


def test_passes_and_generation_give_the_states_of_transformers(server: Server) -> None:
    """A prefill-only pass and a file from generation, both through the back end's own checks."""
    rng, backend = seeded(), _backend(server)
    reference = TransformersBackend(
        read_target(server.model), layers=LAYERS, device="cpu", dtype="bfloat16"
    )
    prompt = [rng.randrange(10, VOCAB) for _ in range(300)]
    reply = server.generate("one-pass", prompt, 9)
    whole = np.array(prompt + reply["output_ids"])
    passed = np.array([rng.randrange(10, VOCAB) for _ in range(411)])
    backend.self_check()
    generated, prefilled = backend.capture([whole, passed])
    backend.release([whole, passed])

    assert ("one_pass", len(whole) - 1) == (generated.capture, len(generated.last))
    assert ("prefill", len(passed)) == (prefilled.capture, len(prefilled.last))
    for ids, states in ((whole, generated), (passed, prefilled)):
        truth = reference.reference(ids)
        rows = len(states.last)
        cut = type(truth)(tuple(b[:rows] for b in truth.boundaries), truth.last[:rows])
        check_layers(states, cut, LAYERS)
    assert not [p for p in server.spool.iterdir() if p.name.startswith(("pass-", "one-pass"))]


def test_doctor_says_good_of_a_right_server(server: Server, tmp_path: Path) -> None:
    """Every chunk is nearest to what is planned; the head agrees with a greedy answer."""
    good, lines = check_hidden_states(_config(server, tmp_path), samples=3, reference=True)
    said = "\n".join(lines)

    assert good, said
    assert "boundary 2" in said
    assert "greedy answer" in said


def test_doctor_without_a_reference_asks_the_head(server: Server, tmp_path: Path) -> None:
    """Where transformers cannot hold the target, one greedy answer is checked by its own head."""
    good, lines = check_hidden_states(_config(server, tmp_path), samples=2, reference=False)

    assert good, lines
    assert any("head of last" in line for line in lines)
    assert any("not checked: the layers" in line for line in lines)


def test_doctor_compares_with_what_stock_sglang_hands_out(
    server: Server, stock: Path, tmp_path: Path
) -> None:
    """The layers are those of SGLang's own JSON; swapped ones are named."""
    config = _config(server, tmp_path)
    good, lines = check_hidden_states(config, samples=2, reference=False, stock=str(stock))
    kept = json.loads(stock.read_text())
    states = np.frombuffer(base64.b64decode(kept["states"]), np.float32).reshape(kept["shape"])
    kept["states"] = base64.b64encode(states[:, [1, 0, 2]].tobytes()).decode()
    (tmp_path / "swapped.json").write_text(json.dumps(kept))
    wrong, said = check_hidden_states(
        config, samples=2, reference=False, stock=str(tmp_path / "swapped.json")
    )

    assert (list(LAYERS), "0.5.23") == (kept["layers"], kept["version"])
    assert good, lines
    assert [] == [line for line in lines if "not checked" in line]
    assert not wrong
    assert any("boundary 2: it is boundary 4" in line for line in said)


def test_other_layers_than_the_servers_are_named(server: Server, tmp_path: Path) -> None:
    """A plan that the server was not started for stops with both lists."""
    config = _config(server, tmp_path, layers=(3, 5, 6))
    with pytest.raises(RetryableError, match=r"\[2, 4, 5\].*\[3, 5, 6\]"):
        check_hidden_states(config, samples=1, reference=False)
