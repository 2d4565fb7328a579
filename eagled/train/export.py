"""A trained head as the folder that SGLang or vLLM serves.

Guarantee: the folder is checked by `eagled.draft` before it gets its name: weights, sizes, mapping
(`d2t`, `t2d`), layers as that engine counts them, rotary settings. Weights are bfloat16 unless told
otherwise; the embedding is the target's and is left out, which both engines expect.
Both engines load weights called `layers.0.*`; SGLang also knows the older `midlayer.*`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor

import eagled
from eagled.artifacts import TMP_SUFFIX, fsync_dir, write_json
from eagled.draft import MANIFEST_NAME, Launch, check_draft
from eagled.engine_layers import Engine, ids_to_write
from eagled.errors import ArtifactError
from eagled.train.checkpoint import checkpoints, load_checkpoint
from eagled.train.geometry import Geometry, rope_type

DraftDtype: TypeAlias = Literal["bfloat16", "float32"]
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """A trained draft: geometry, weights by their name in the head, and the mapping.

    Attributes:
        geometry: its shape.
        weights: float32, `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`.
        d2t: offsets, i64 [Vd].
        t2d: bool [V].
        facts: where it comes from, for the manifest.
    """

    geometry: Geometry
    weights: Mapping[str, Tensor]
    d2t: Tensor
    t2d: Tensor
    facts: Mapping[str, Any]


def weights_of(run: Path) -> DraftWeights:
    """Return the draft of a training folder's newest checkpoint; the running mean if it has one.

    Raises:
        ArtifactError: if there is no checkpoint.
    """
    found = checkpoints(run / "checkpoints")
    if not found:
        raise ArtifactError(f"{run} has no checkpoint; train it with `eagled train`")
    last = load_checkpoint(found[-1])
    kind = "mean." if any(k.startswith("mean.") for k in last.tensors) else "model."
    weights = {k.removeprefix(kind): v for k, v in last.tensors.items() if k.startswith(kind)}
    geometry = Geometry.from_dict(last.facts["geometry"])
    facts = {**last.facts, "step": last.step, "averaged": kind == "mean."}
    return DraftWeights(geometry, weights, last.tensors["d2t"], last.tensors["t2d"], facts)


def draft_config(
    g: Geometry, engine: Engine, target: Mapping[str, Any], dtype: DraftDtype, version: str = ""
) -> dict[str, Any]:
    """Return config.json of a draft for one engine.

    Args:
        g: its geometry.
        engine: whose layer ids are written.
        target: the target's config, for the ids of its begin and end tokens.
        dtype: of the weights.
        version: the engine's; empty is a current one.

    Raises:
        ConfigError: if the engine cannot be told to capture the draft's layers.
    """
    ids = ids_to_write(
        g.layers, engine=engine, target_type=g.target_type, n_layers=g.target_layers,
        version=version,
    )  # fmt: skip
    eagle: dict[str, Any] = {"use_aux_hidden_state": True}
    if ids is not None:
        eagle["eagle_aux_hidden_state_layer_ids"] = ids
    scaled = rope_type(g.rope) != "default"
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": g.hidden_size,
        "target_hidden_size": g.target_hidden_size,
        "num_aux_hidden_states": g.n_aux,
        "intermediate_size": g.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": g.n_heads,
        "num_key_value_heads": g.n_kv_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": g.rms_norm_eps,
        "max_position_embeddings": g.max_positions,
        "vocab_size": g.vocab_size,
        "draft_vocab_size": g.draft_vocab_size,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        # transformers 5 reads rope_parameters, earlier ones the two fields before it
        "rope_theta": g.rope["rope_theta"],
        "rope_scaling": _scaling(g.rope) if scaled else None,
        "rope_parameters": {"rope_type": "default", **g.rope},
        "eagle_config": eagle,
        "dtype": dtype,
        "torch_dtype": dtype,
        **{key: target[key] for key in _TOKENS if key in target},
    }


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in rope.items() if k != "rope_theta"}
    return {**rest, "type": rope_type(rope)}


def export_draft(
    draft: DraftWeights,
    folder: Path,
    target: Mapping[str, Any],
    *,
    engine: Engine = "sglang",
    dtype: DraftDtype = "bfloat16",
    version: str = "",
) -> Path:
    """Write a served folder, replacing one that eagled wrote before; return it.

    Raises:
        ArtifactError: if `folder` holds something else, or what was written fails the checks.
        ConfigError: if the engine cannot be told to capture the draft's layers.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST_NAME).is_file():
        raise ArtifactError(f"{folder} is not empty and not a draft of eagled; name another folder")
    tmp = folder.with_name(folder.name + TMP_SUFFIX)
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    config = draft_config(draft.geometry, engine, target, dtype, version)
    write_json(tmp / "config.json", config)
    save_file(_tensors(draft, dtype, engine), tmp / "model.safetensors", metadata={"format": "pt"})
    write_json(tmp / MANIFEST_NAME, _manifest(draft, engine, version))
    faults = [
        f.text
        for f in check_draft(tmp, target, Launch(version=version, engine=engine))
        if f.level == "error"
    ]
    if faults:
        shutil.rmtree(tmp)
        raise ArtifactError(f"the draft for {folder} is not right: {'; '.join(faults)}")
    shutil.rmtree(folder, ignore_errors=True)
    tmp.rename(folder)
    fsync_dir(folder.parent)
    return folder


def _tensors(draft: DraftWeights, dtype: DraftDtype, engine: Engine) -> dict[str, Tensor]:
    layer = "midlayer." if engine == "sglang" else "layers.0."
    weights = {
        name.replace("midlayer.", layer): value.to(_DTYPES[dtype]).contiguous()
        for name, value in draft.weights.items()
    }
    return {**weights, "d2t": draft.d2t.to(torch.int64), "t2d": draft.t2d.to(torch.bool)}


def _manifest(draft: DraftWeights, engine: Engine, version: str) -> dict[str, Any]:
    return {
        "format": "eagled-draft/1",
        "eagled": eagled.__version__,
        "engine": engine,
        "engine_version": version or "current",
        "layers": list(draft.geometry.layers),
        "made_from": dict(draft.facts),
    }
