"""Run the check of `hidden_check.py` on a configuration: samples, servers, reference model.

Guarantee: nothing is stored; what the servers wrote into the spool for it is removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from eagled.capture import capture_servers, spool_folder
from eagled.config import Config
from eagled.errors import ConfigError, EagledError
from eagled.hidden_check import (
    SampleFinding,
    check_shape,
    compare,
    head_check,
    summary,
)
from eagled.paths import StatePaths
from eagled.shards.backend import Captured, Ids, StatesBackend
from eagled.shards.backend_sglang import SglangBackend
from eagled.shards.layers import plan_layers
from eagled.shards.selfcheck import Floats, Reference, probe_inputs
from eagled.shards.target import TargetFacts, read_target, resolve_model
from eagled.store.reader import StoreReader
from eagled.tokens import unpack_ids

MAX_TOKENS = 2048  # of one sample; longer ones cost memory and show no more
GREEDY_TOKENS = 32
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
_TIED = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight")


def check_hidden_states(config: Config, *, samples: int, reference: bool) -> tuple[bool, list[str]]:
    """Return the verdict on a run's hidden states, and its lines.

    Raises:
        EagledError: if the check itself cannot be made.
    """
    if config.extract.backend == "off":
        raise ConfigError('extract.backend is "off": this run has no hidden states')
    target = read_target(resolve_model(config.target.model, config.target.revision))
    layers = plan_layers(target.n_layers, config.extract.layers)
    chosen = real_samples(config, samples, target)
    model = ReferenceModel(target, layers, config) if reference else None
    backend: Any = _servers(config, target, layers)
    if backend is None:
        if model is None:
            raise ConfigError(
                "--no-reference is for servers that capture; this run uses transformers"
            )
        backend = model.backend
    backend.self_check()
    findings: list[SampleFinding] = []
    if model is not None:
        captured = _taken(backend, [ids for _, ids in chosen])
        findings += compare(chosen, captured, model)
    if isinstance(backend, SglangBackend):
        findings += _greedy(config, backend, target, chosen)
    return summary(findings)


def _servers(config: Config, target: TargetFacts, layers: tuple[int, ...]) -> SglangBackend | None:
    if config.extract.backend != "sglang":
        return None
    return SglangBackend(
        target,
        layers=layers,
        servers=capture_servers(config),
        spool=spool_folder(config),
        wait_s=config.extract.capture_wait_s,
    )


def _taken(backend: StatesBackend, samples: Sequence[Ids]) -> list[Captured]:
    try:
        return backend.capture(samples)
    finally:
        backend.release(samples)


def real_samples(config: Config, n: int, target: TargetFacts) -> list[tuple[str, Ids]]:
    """Return up to `n` answers of the run that are not too long; probes where there are none."""
    database = StatePaths(config.run.state_dir).database
    found: list[tuple[str, Ids]] = []
    if database.exists():
        with StoreReader(database) as reader:
            for frozen in reader.freeze()[: 20 * n]:
                (body,) = reader.bodies([frozen.id])
                ids = np.concatenate(
                    [unpack_ids(p.z, p.crc) for p in (body.prompt, body.output)]
                ).astype(np.int64)
                if len(ids) <= MAX_TOKENS:
                    found.append((body.uid.hex(), ids))
                if len(found) == n:
                    return found
    probes = probe_inputs(target.vocab_size)
    return found or [(f"probe {i}", ids) for i, ids in enumerate(probes[:n])]


def _greedy(
    config: Config, backend: SglangBackend, target: TargetFacts, chosen: Sequence[tuple[str, Ids]]
) -> list[SampleFinding]:
    """Check one greedy answer by the target's own head."""
    head = read_head(target.folder)
    if head is None:
        return []
    name, ids = min(chosen, key=lambda s: len(s[1]))
    server = capture_servers(config)[0]
    body = {
        "rid": f"pass-{uuid.uuid4().hex}",
        "input_ids": np.asarray(ids).tolist(),
        "sampling_params": {"max_new_tokens": GREEDY_TOKENS, "temperature": 0, "ignore_eos": True},
    }
    reply = server.call("/generate", body, 600.0)
    answer = np.array(reply.get("output_ids") or [], np.int64)
    if not len(answer):
        raise EagledError(f"{server.url} gave no answer to check")
    whole = np.concatenate([ids, answer])
    (states,) = _taken(backend, [whole])
    check_shape(name, states, backend.manifest.layers, target.hidden_size)
    share = head_check(states, len(answer), head)
    return [SampleFinding(f"{name} + greedy", len(whole), (), share)]


def read_head(folder: Path) -> Floats | None:
    """Return the output head [V, D] of a model's safetensors files; None if it has none there."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    files = sorted(folder.glob("*.safetensors"))
    if index.exists():
        places = orjson.loads(index.read_bytes())["weight_map"]
        files = [folder / places[n] for n in (*_HEADS, *_TIED) if n in places] or files
    for name in (*_HEADS, *_TIED):
        for file in files:
            with safe_open(file, "pt") as tensors:
                if name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    head: Floats = tensors.get_tensor(name).float().numpy()
                    return head
    return None


class ReferenceModel:
    """The target in transformers, with all of its boundaries."""

    def __init__(self, target: TargetFacts, layers: tuple[int, ...], config: Config) -> None:
        from eagled.shards.backend_transformers import TransformersBackend

        self.layers = layers
        extract = config.extract
        self.backend = TransformersBackend(
            target, layers=layers, device=extract.device, dtype=extract.dtype
        )

    def states(self, ids: Ids) -> tuple[Reference, Floats]:
        """Return all boundaries and `last`, and the final state before the norm, [T, D]."""
        return self.backend.reference(ids), self.backend.before_norm(ids)
