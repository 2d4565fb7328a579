"""An exported draft is what the engine reads; a wrong one is found and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagled.draft import (
    Launch,
    check_architecture,
    check_draft,
    check_launch,
    check_layers,
    check_positions,
    check_trained_length,
    judge_length,
    unread,
)
from eagled.engine_layers import captured, ids_to_write
from eagled.errors import ArtifactError, ConfigError
from eagled.train.export import DraftWeights, draft_config, export_draft, weights_of
from tests.faults import fault_file
from tests.unit.train.kit import (
    VOCAB,
    WIDTH,
    geometry,
    learnable,
    make_head,
    spec,
    trainer,
    vocabulary,
)

TARGET = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": WIDTH, "vocab_size": VOCAB,
    "rope_theta": 10_000.0, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def case(name: str) -> dict[str, Any]:
    """Return a deployment fault's input."""
    return dict(json.loads(fault_file(f"deploy/{name}.json").read_text(encoding="utf-8")))


def launch_of(args: dict[str, Any]) -> Launch:
    """Return the launch plan that a fault describes."""
    return Launch(args["speculative_algorithm"], args.get("context_length", 0))


def toy_draft(**changes: Any) -> DraftWeights:
    """Return a random draft of the toy geometry."""
    head, vocab = make_head(**changes), vocabulary()
    weights = {k: v.detach() for k, v in head.named_parameters()}
    return DraftWeights(
        head.geometry, weights, torch.from_numpy(vocab.d2t), torch.from_numpy(vocab.t2d), {}
    )


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return export_draft(toy_draft(), tmp_path / "draft", TARGET)


def test_an_export_has_the_weights_and_passes_the_checks(folder: Path) -> None:
    """Every weight of the head is there in bfloat16 by SGLang's names, with both mappings."""
    tensors = load_file(folder / "model.safetensors")
    ours = dict(make_head().named_parameters())

    assert [] == check_draft(folder, TARGET)
    assert {*ours, "d2t", "t2d"} == set(tensors)
    for name, weight in ours.items():
        assert torch.equal(weight.detach().bfloat16(), tensors[name])


@pytest.mark.fault("F79")
def test_the_mapping_is_in_the_exported_weights(tmp_path: Path) -> None:
    """Ten draft ids of forty: d2t i64 [10] and t2d bool [40], read back as they were chosen."""
    given = json.loads(fault_file("vocab/counts.json").read_text(encoding="utf-8"))
    draft = toy_draft(vocab_size=40, draft_vocab_size=10)
    mapped = DraftWeights(
        draft.geometry, draft.weights, torch.tensor(given["expect_d2t"]),
        torch.tensor(given["expect_t2d"]).bool(), {},
    )  # fmt: skip
    folder = export_draft(mapped, tmp_path / "draft", {**TARGET, "vocab_size": 40})
    tensors = load_file(folder / "model.safetensors")

    assert (torch.int64, given["expect_d2t"]) == (tensors["d2t"].dtype, tensors["d2t"].tolist())
    assert (torch.bool, 40, 10) == (tensors["t2d"].dtype, len(tensors["t2d"]), tensors["t2d"].sum())


@pytest.mark.fault("F79")
def test_a_reduced_draft_without_a_mapping_is_refused(folder: Path) -> None:
    """Without d2t the ids would mean the target's first ones."""
    fault_file("vocab/counts.json")
    rewrite(folder, lambda t: [t.pop("d2t"), t.pop("t2d")])

    assert any("needs d2t and t2d" in f.text for f in check_draft(folder, TARGET))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the weights of a draft."""
    tensors = dict(load_file(folder / "model.safetensors"))
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def reconfigure(folder: Path, **changes: object) -> None:
    """Change the config of a draft."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


Q_NAME = "midlayer.self_attn.q_proj.weight"


def torn(folder: Path) -> None:
    """Cut the end of the weights off."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "absolute ids in d2t": (
        lambda f: rewrite(f, lambda t: t.update(d2t=t["d2t"] + torch.arange(len(t["d2t"])))),
        "offsets",
    ),
    "a weight is missing": (
        lambda f: rewrite(f, lambda t: t.pop("fc.weight")),
        "fc.weight is missing",
    ),
    "q reads one width": (
        lambda f: rewrite(f, lambda t: t.update({Q_NAME: torch.zeros(32, 32)})),
        r"the config asks for \[32, 64\]",
    ),
    "an unknown weight": (
        lambda f: rewrite(f, lambda t: t.update({"midlayer.extra.weight": torch.zeros(2)})),
        "it is dropped",
    ),
    "not finite": (
        lambda f: rewrite(f, lambda t: t["norm.weight"].fill_(torch.inf)),
        "not finite",
    ),
    "another target width": (lambda f: reconfigure(f, vocab_size=95), "vocab_size"),
    "speculators' format": (
        lambda f: reconfigure(f, speculators_model_type="eagle3"),
        "cannot load it",
    ),
    "tied head": (lambda f: reconfigure(f, tie_word_embeddings=True), "tie_word_embeddings"),
    "normed residual": (
        lambda f: reconfigure(f, norm_before_residual=True),
        "norm_before_residual",
    ),
    "another architecture": (
        lambda f: reconfigure(f, architectures=["LlamaForCausalLM"]),
        "EAGLE-3",
    ),
    "truncated file": (
        torn,
        "model.safetensors",
    ),
    "explicit default ids": (
        lambda f: reconfigure(f, eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}),
        r"boundaries \[3, 5, 6\]",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_is_wrong_is_found_and_explained(folder: Path, name: str) -> None:
    """Each way of breaking a draft is an error whose text says what it is."""
    change, text = BROKEN[name]
    change(folder)
    found = [f for f in check_draft(folder, TARGET) if f.level == "error"]

    assert found
    assert any(pytest.approx(1) == 1 and __import__("re").search(text, f.text) for f in found), (
        found
    )


def test_an_export_never_replaces_a_folder_of_others(tmp_path: Path) -> None:
    """A folder with something else in it is left alone."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "mine.txt").write_text("x")

    with pytest.raises(ArtifactError, match="not a draft of eagled"):
        export_draft(toy_draft(), tmp_path / "draft", TARGET)


def test_a_run_is_exported_from_its_checkpoint(tmp_path: Path) -> None:
    """The running mean is exported where there is one, in vLLM's layout if asked."""
    run = trainer(spec(tmp_path / "run", epochs=1, ema=0.5), learnable(8))
    run.run()
    draft = weights_of(tmp_path / "run")
    folder = export_draft(draft, tmp_path / "draft", TARGET, engine="vllm", dtype="float32")
    tensors = load_file(folder / "model.safetensors")

    assert draft.facts["averaged"]
    assert torch.equal(run.mean["fc.weight"], tensors["fc.weight"])
    assert "layers.0.self_attn.q_proj.weight" in tensors
    assert [] == check_draft(folder, TARGET, Launch(engine="vllm"))


@pytest.mark.parametrize(
    ("engine", "target", "n", "version", "boundaries", "written"),
    [
        ("sglang", "qwen3", 36, "", (2, 18, 33), None),
        ("sglang", "qwen3", 36, "", (3, 18, 33), [2, 17, 32]),
        ("sglang", "kimi_k25", 61, "0.5.23", (2, 30, 58), None),
        ("sglang", "kimi_k25", 61, "0.5.23", (3, 31, 59), [3, 31, 59]),
        ("sglang", "kimi_k25", 61, "0.5.12.post1", (3, 31, 59), [2, 30, 58]),
        ("sglang", "deepseek_v3", 61, "", (2, 31, 59), [1, 30, 58]),
        ("sglang", "gpt_oss", 24, "", (2, 12, 24), [1, 11, 23]),
        ("sglang", "gpt_oss", 24, "", (3, 12, 20), [2, 11, 19]),
        ("vllm", "kimi_k25", 61, "", (3, 31, 59), [3, 31, 59]),
    ],
)
def test_layer_ids_are_those_of_the_engine(
    engine: Any,
    target: str,
    n: int,
    version: str,
    boundaries: tuple[int, ...],
    written: list[int] | None,
) -> None:
    """What is written makes that engine, in that version, capture the boundaries."""
    where: dict[str, Any] = {
        "engine": engine,
        "target_type": target,
        "n_layers": n,
        "version": version,
    }
    ids = ids_to_write(boundaries, **where)

    assert written == ids
    assert boundaries == captured(ids, **where)


def test_layers_that_an_engine_cannot_be_told_are_refused() -> None:
    """Boundary 1 of a DeepSeek-like target has no ids that SGLang takes for it."""
    with pytest.raises(ConfigError, match="cannot be told"):
        ids_to_write((1, 30, 58), engine="sglang", target_type="kimi_k2", n_layers=61)


@pytest.mark.fault("F87")
def test_eagle_with_an_eagle3_draft_is_refused() -> None:
    """The refusal names both widths; a length of 1.00 is a fault, not a result."""
    given = case("flag_eagle")
    found = list(check_launch(given["draft_config"], launch_of(given["args"])))
    right = list(
        check_launch(
            given["draft_config"], launch_of({**given["args"], "speculative_algorithm": "EAGLE3"})
        )
    )

    assert ["speculative_algorithm"] == [f.about for f in found]
    assert "7168 wide instead of 21504" in found[0].text
    assert [] == right
    fault = judge_length(1.0)
    assert fault is not None
    assert "not a result" in fault.text
    assert judge_length(1.4) is None


@pytest.mark.fault("F88")
def test_a_draft_shorter_than_the_server_is_refused() -> None:
    """Both numbers are named; an export declares the target's context."""
    given = case("short_positions")
    found = list(check_launch(given["draft_config"], launch_of(given["args"])))
    config = draft_config(
        geometry(max_positions=given["args"]["context_length"]), "sglang", TARGET, "bfloat16"
    )

    assert ["error"] == [f.level for f in found]
    assert "2048 positions, the server 10240" in found[0].text
    assert [] == list(check_launch(config, launch_of(given["args"])))


@pytest.mark.fault("F88")
def test_contexts_longer_than_the_training_samples_are_warned_of() -> None:
    """The draft knows the longest sample that it saw."""
    given = case("short_positions")
    made_from = {"longest_tokens": given["trained_max_len"]}
    found = list(check_trained_length(made_from, launch_of(given["args"])))

    assert ["warning"] == [f.level for f in found]
    assert "up to 2048 tokens, the server takes 10240" in found[0].text
    assert [] == list(check_trained_length(made_from, Launch(context_length=2048)))


@pytest.mark.fault("F89")
def test_other_position_settings_are_named() -> None:
    """Base and scaling that differ are each named with both values."""
    given = case("rope")
    found = {
        f.about: f.text for f in check_positions(given["draft_config"], given["target_config"])
    }

    assert {"rope_theta", "rope_type", "factor", "original_max_position_embeddings"} == set(found)
    assert "10000.0" in found["rope_theta"]
    assert "50000.0" in found["rope_theta"]
    assert "'yarn'" in found["rope_type"]
    scaled: dict[str, Any] = {"rope_theta": 50_000.0, "rope_type": "yarn", "factor": 64.0}
    scaled["original_max_position_embeddings"] = 4096
    same = draft_config(geometry(rope=scaled), "sglang", TARGET, "bfloat16")
    assert [] == list(check_positions(same, given["target_config"]))


@pytest.mark.fault("F90")
def test_layers_other_than_those_of_the_data_are_refused() -> None:
    """[3, 31, 59] for data of [2, 30, 58] is refused, with or without knowing the target."""
    given = case("layers_plus_one")
    kimi = {"model_type": "kimi_k2", "num_hidden_layers": 61}
    for target in (None, kimi):
        found = list(check_layers(given["draft_config"], given["trained_on"], Launch(), target))
        assert ["error"] == [f.level for f in found]
        assert "[3, 31, 59]" in found[0].text
        assert "[2, 30, 58]" in found[0].text
    right = case("flag_eagle")["draft_config"]
    assert [] == list(check_layers(right, given["trained_on"], Launch(), kimi))


@pytest.mark.fault("F91")
def test_options_that_the_server_does_not_read_are_named() -> None:
    """A version that is not known to read either names both; a newer one only the unknown one."""
    given = case("unknown_option")["draft_config"]

    assert ["new_option", "norm_before_fc"] == [
        f.about for f in unread(given, Launch(version="0.5.17"))
    ]
    assert ["new_option"] == [f.about for f in unread(given, Launch(version="0.5.23"))]
    assert [] == list(check_architecture(given))
