"""Run the check of `hidden_check.py` on a configuration: samples, servers, second opinion.

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
    judge_stock,
    summary,
)
from eagled.hidden_stock import StockStates, ask_stock, load_stock, save_stock
from eagled.paths import StatePaths
from eagled.shards.backend import Captured, Ids, StatesBackend
from eagled.shards.backend_sglang import CaptureServer, SglangBackend
from eagled.shards.layers import plan_layers
from eagled.shards.selfcheck import Floats, Reference, probe_inputs
from eagled.shards.target import TargetFacts, read_target, resolve_model
from eagled.store.reader import StoreReader
from eagled.tokens import unpack_ids

MAX_TOKENS = 2048  # of one sample; longer ones cost memory and show no more
GREEDY_TOKENS = 32
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
_TIED = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight")


def keep_stock(config: Config, source: str, path: Path) -> list[str]:
    """Ask a stock server for its states of the probe prompt and keep them in a file.

    Raises:
        EagledError: if it does not give them.
    """
    target, layers = _planned(config)
    stock = _stock(config, source, target, layers)
    save_stock(stock, path)
    what = f"boundaries {list(stock.layers)}" if stock.layers else "the final state"
    said = f"{path}: {what} of {len(stock.ids)} tokens, by SGLang {stock.version}"
    return [said, f"compare: `eagled doctor --hidden-states --no-reference --stock {path}`"]


def _planned(config: Config) -> tuple[TargetFacts, tuple[int, ...]]:
    if config.extract.backend == "off":
        raise ConfigError('extract.backend is "off": this run has no hidden states')
    target = read_target(resolve_model(config.target.model, config.target.revision))
    return target, plan_layers(target.n_layers, config.extract.layers)


def _stock(
    config: Config, source: str, target: TargetFacts, layers: tuple[int, ...]
) -> StockStates:
    """Return the states of a stock server, or of a file that has them."""
    if not source.startswith(("http://", "https://")):
        return load_stock(Path(source), target, layers)
    url = source.rstrip("/")
    known = {server.url: server for server in capture_servers(config)}
    return ask_stock(known.get(url, CaptureServer(url)), target, layers)


def check_hidden_states(
    config: Config, *, samples: int, reference: bool, stock: str | None = None
) -> tuple[bool, list[str]]:
    """Return the verdict on a run's hidden states, and its lines.

    Args:
        config: the run's.
        samples: how many to compare with transformers.
        reference: whether this machine can hold the target in transformers.
        stock: address of a stock server, or a file that `keep_stock` wrote.

    Raises:
        EagledError: if the check itself cannot be made.
    """
    target, layers = _planned(config)
    theirs = _stock(config, stock, target, layers) if stock is not None else None
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
    if theirs is not None:
        findings.append(_against_stock(backend, target, layers, theirs))
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


def _against_stock(
    backend: StatesBackend, target: TargetFacts, layers: tuple[int, ...], stock: StockStates
) -> SampleFinding:
    """Compare the probe prompt's states with a stock server's."""
    (states,) = _taken(backend, [stock.ids])
    check_shape("stock", states, layers, target.hidden_size)
    chunks = judge_stock(states, stock.states, stock.layers)
    return SampleFinding(f"of stock SGLang {stock.version}", len(stock.ids), chunks)


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
