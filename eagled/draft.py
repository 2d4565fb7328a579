"""Is this folder an EAGLE-3 draft that the engine will serve as it was trained?

Guarantee: only reads; no torch. Every finding says what is wrong, both values, and what to do. What
an engine ignores silently (an option it does not read, a weight by another name, layers counted
otherwise, EAGLE for EAGLE3) is an error here, because it costs acceptance without any message.
Price: weights are read whole once, to see that they are finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from eagled.artifacts import read_json
from eagled.draft_options import unread_options
from eagled.engine_layers import Engine, captured
from eagled.errors import ArtifactError
from eagled.shards.container import Container, map_arrays, read_container
from eagled.train.geometry import rope_settings
from eagled.train.vocab import check_mapping

Level: TypeAlias = Literal["error", "warning"]
MANIFEST_NAME = "eagled.json"
_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_USELESS_LENGTH = 1.05  # a draft that is never right still yields one token a step
_CHUNK = 1 << 24
_EXPONENT = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F800000),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a draft, or of how it would be served."""

    level: Level
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How the draft is to be served.

    Attributes:
        algorithm: `--speculative-algorithm`.
        context_length: the server's context, 0 when not known.
        version: the engine's, empty for a current one.
        engine: which engine.
    """

    algorithm: str = "EAGLE3"
    context_length: int = 0
    version: str = ""
    engine: Engine = "sglang"


def check_draft(
    folder: Path,
    target: Mapping[str, Any] | None = None,
    launch: Launch | None = None,
    trained_on: Sequence[int] = (),
) -> list[Finding]:
    """Return everything that is wrong with the draft in `folder`.

    Args:
        folder: config.json and safetensors.
        target: the target's config (its language part); None leaves comparisons out.
        launch: how it will be served.
        trained_on: boundary ids of its data; empty takes them from the draft's own manifest.
    """
    plan = launch or Launch()
    try:
        config = read_json(folder / "config.json")
    except ArtifactError as exc:
        return [Finding("error", "config.json", str(exc))]
    own = _own_manifest(folder)
    found = [
        *check_architecture(config),
        *check_launch(config, plan),
        *check_trained_length(own.get("made_from") or {}, plan),
        *unread(config, plan),
        *check_layers(config, trained_on or own.get("layers", ()), plan, target),
        *check_weights(folder, config),
    ]
    if target is not None:
        found += [*check_sizes(config, target), *check_positions(config, target)]
    return found


def _own_manifest(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / MANIFEST_NAME)
    except ArtifactError:
        return {}


def check_architecture(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what keeps an engine from loading the config as an EAGLE-3 draft."""
    names = list(config.get("architectures") or [])
    if config.get("speculators_model_type"):
        yield Finding(
            "error", "format",
            "this is speculators' own format: SGLang cannot load it; it needs a Llama config with "
            "architectures [LlamaForCausalLMEagle3] (and norm_before_residual must be off)",
        )  # fmt: skip
    elif not any("eagle3" in name.lower() for name in names):
        yield Finding(
            "error", "architectures",
            f"architectures are {names}, an EAGLE-3 draft has one of {list(_ARCHITECTURES)}",
        )  # fmt: skip
    if config.get("draft_vocab_size") and config.get("tie_word_embeddings"):
        yield Finding(
            "error", "tie_word_embeddings",
            "the output head would be the embedding, which has the target's vocabulary: set "
            "tie_word_embeddings to false",
        )  # fmt: skip
    if _nested(config, "norm_before_residual"):
        yield Finding(
            "error", "norm_before_residual",
            "the draft was trained with the normed state as residual, which SGLang does not do: "
            "train it with norm_before_residual off",
        )  # fmt: skip


def _nested(config: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - JSON
    """Return an option from `eagle_config` or the top level."""
    return (config.get("eagle_config") or {}).get(key, config.get(key))


def n_aux(config: Mapping[str, Any]) -> int:
    """Return the layers that the draft's `fc` reads."""
    ids = _nested(config, "eagle_aux_hidden_state_layer_ids")
    return int(config.get("num_aux_hidden_states") or (len(ids) if ids else 3))


def check_launch(config: Mapping[str, Any], launch: Launch) -> Iterator[Finding]:
    """Yield what is wrong with serving a draft with these flags."""
    width = int(config.get("target_hidden_size") or config.get("hidden_size") or 0)
    if launch.engine == "sglang" and launch.algorithm.upper() != "EAGLE3":
        yield Finding(
            "error", "speculative_algorithm",
            f"--speculative-algorithm {launch.algorithm} with an EAGLE-3 draft: the server would "
            f"start and feed it states {width} wide instead of {n_aux(config) * width}, and every "
            "guess would be worthless, without any error; use EAGLE3",
        )  # fmt: skip
    positions = int(config.get("max_position_embeddings") or 0)
    if launch.context_length and positions < launch.context_length:
        yield Finding(
            "error", "max_position_embeddings",
            f"the draft covers {positions} positions, the server {launch.context_length}: beyond "
            f"{positions} it is slower than no draft; train on longer samples and export again, "
            f"or serve with --context-length {positions}",
        )  # fmt: skip


def check_trained_length(made_from: Mapping[str, Any], launch: Launch) -> Iterator[Finding]:
    """Yield whether the server's context is longer than anything that the draft was trained on."""
    longest = int(made_from.get("longest_tokens") or 0)
    if longest and launch.context_length > longest:
        yield Finding(
            "warning", "longest_tokens",
            f"the draft was trained on samples of up to {longest} tokens, the server takes "
            f"{launch.context_length}: how it does beyond {longest} was never seen",
        )  # fmt: skip


def unread(config: Mapping[str, Any], launch: Launch) -> Iterator[Finding]:
    """Yield one finding for each option that the server will not read."""
    for name in unread_options(config, launch.version):
        yield Finding(
            "error", name,
            f"the server does not read {name} = {_nested(config, name)!r}: what was trained with "
            "it is served without it, and acceptance falls without an error",
        )  # fmt: skip


def check_layers(
    config: Mapping[str, Any],
    trained_on: Sequence[int],
    launch: Launch,
    target: Mapping[str, Any] | None,
) -> Iterator[Finding]:
    """Yield whether the engine would capture other layers than the draft was trained on."""
    ids = _nested(config, "eagle_aux_hidden_state_layer_ids")
    if not trained_on or (target is None and not ids):
        return
    wanted = tuple(trained_on)
    if target is not None:
        seen = captured(
            ids, engine=launch.engine, target_type=str(target.get("model_type", "")),
            n_layers=int(target["num_hidden_layers"]), version=launch.version,
        )  # fmt: skip
        if seen == wanted:
            return
        how = f"{launch.engine} would capture the boundaries {list(seen)}"
    elif tuple(ids) in (wanted, tuple(k - 1 for k in wanted)):
        return  # right in one of the two ways to count; which one, only the target tells
    else:
        how = "which is neither those boundaries nor the outputs of the layers before them"
    yield Finding(
        "error", "eagle_aux_hidden_state_layer_ids",
        f"the draft says {list(ids) if ids else 'nothing'}, its data was made with boundaries "
        f"{list(wanted)}: {how}; export the draft again with `eagled export`",
    )  # fmt: skip


def check_sizes(config: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield sizes that must be the target's and are not."""
    for key in ("vocab_size", "hidden_size"):
        ours = config.get("target_hidden_size") if key == "hidden_size" else None
        ours = ours or config.get(key)
        if ours != target.get(key):
            yield Finding(
                "error", key, f"{key} of the draft is {ours}, of the target {target.get(key)}"
            )


def check_positions(config: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield differences between the rotary settings of draft and target."""
    ours, theirs = rope_settings(config), rope_settings(target)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            yield Finding(
                "warning", key,
                f"{key} of the draft is {ours.get(key)!r}, of the target {theirs.get(key)!r}: keep "
                "it only if the draft was trained so on purpose",
            )  # fmt: skip


def judge_length(length: float) -> Finding | None:
    """Return a fault if an accepted length measured on a live server is that of no draft at all.

    `length` is 1 + right guesses / verify steps.
    """
    if length > _USELESS_LENGTH:
        return None
    return Finding(
        "error", "accept_length",
        f"the accepted length is {length:.2f}: no guess is right, so this is a fault and not a "
        "result; look at --speculative-algorithm (EAGLE3), the layers and the vocabulary mapping",
    )  # fmt: skip


def check_weights(folder: Path, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield missing, misshapen, unknown or non-finite weights, and a wrong vocabulary mapping."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        yield Finding("error", "weights", f"{folder} has no safetensors file")
        return
    try:
        files = [read_container(path) for path in paths]
    except ArtifactError as exc:
        yield Finding("error", "weights", str(exc))
        return
    shapes = {_plain(n): t.shape for f in files for n, t in f.tensors.items()}
    yield from _shape_findings(shapes, expected_shapes(config), config)
    yield from _mapping_findings(files, config)
    for file in files:
        yield from (
            Finding("error", name, f"{file.path.name}: {name} holds values that are not finite")
            for name in _not_finite(file)
        )


def _plain(name: str) -> str:
    """Return a weight's name as SGLang's older layout calls it."""
    return name.removeprefix("model.").replace("layers.0.", "midlayer.")


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the weights that a draft of this config must have."""
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads = int(config["num_attention_heads"])
    kv = int(config.get("num_key_value_heads") or heads)
    width = int(config.get("head_dim") or hidden // heads)
    source = int(config.get("target_hidden_size") or hidden)
    layer = {
        "input_layernorm": (hidden,), "hidden_norm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads * width, 2 * hidden),
        "self_attn.k_proj": (kv * width, 2 * hidden),
        "self_attn.v_proj": (kv * width, 2 * hidden), "self_attn.o_proj": (hidden, heads * width),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {f"midlayer.{k}.weight": v for k, v in layer.items()}
    shapes |= {"fc.weight": (hidden, n_aux(config) * source), "norm.weight": (hidden,)}
    if config.get("draft_vocab_size"):
        shapes["lm_head.weight"] = (int(config["draft_vocab_size"]), hidden)
    if _nested(config, "norm_before_fc"):
        shapes["input_norm.weight"] = (n_aux(config) * source,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (source,) for i in range(n_aux(config))}
    return shapes


def _shape_findings(
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any],
) -> Iterator[Finding]:
    for name, shape in wanted.items():
        if name not in found:
            yield Finding("error", name, f"{name} is missing: it would stay at random values")
        elif found[name] != shape:
            yield Finding(
                "error", name, f"{name} is {list(found[name])}, the config asks for {list(shape)}"
            )
    vocab = config.get("vocab_size")
    known = {*wanted, "d2t", "t2d", "embed_tokens.weight", "lm_head.weight"}
    for name in sorted(found.keys() - known):
        yield Finding("error", name, f"{name} is not a weight that a server reads: it is dropped")
    rows = found.get("embed_tokens.weight", (vocab,))[0]
    if rows != vocab:
        yield Finding("error", "embed_tokens.weight", f"it has {rows} rows, vocab_size is {vocab}")


def _mapping_findings(files: Sequence[Container], config: Mapping[str, Any]) -> Iterator[Finding]:
    size, vocab = config.get("draft_vocab_size"), int(config["vocab_size"])
    arrays = {
        name: map_arrays(file, [name])[name]
        for file in files
        for name in ("d2t", "t2d")
        if name in file.tensors
    }
    if not arrays and size in (None, vocab):
        return
    d2t, t2d = arrays.get("d2t"), arrays.get("t2d")
    if d2t is not None and t2d is None and d2t.dtype == np.int64 and len(d2t) == size:
        yield from _offsets_alone(d2t + np.arange(len(d2t)), vocab)
        return
    try:
        check_mapping(d2t, t2d, draft_vocab=int(size) if size else None, target_vocab=vocab)
    except ArtifactError as exc:
        yield Finding("error", "d2t", str(exc))


def _offsets_alone(ids: np.ndarray[Any, np.dtype[np.int64]], vocab: int) -> Iterator[Finding]:
    """Yield what is wrong with ids that come without t2d, which serving does not need."""
    if len(np.unique(ids)) != len(ids) or int(ids.min()) < 0 or int(ids.max()) >= vocab:
        yield Finding(
            "error", "d2t",
            f"i + d2t[i] must be different ids in 0..{vocab - 1}; does d2t hold absolute ids "
            "instead of offsets?",
        )  # fmt: skip


def _not_finite(file: Container) -> Iterator[str]:
    for name, info in file.tensors.items():
        if info.dtype not in _EXPONENT:
            continue
        kind, exponent = _EXPONENT[info.dtype]
        bits = map_arrays(file, [name])[name].reshape(-1).view(kind)
        chunks = (bits[i : i + _CHUNK] for i in range(0, len(bits), _CHUNK))
        if any(bool(((c & exponent) == exponent).any()) for c in chunks):
            yield name
