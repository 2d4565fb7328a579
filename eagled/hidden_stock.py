"""Hidden states that stock SGLang hands out as JSON, to hold our own capture against.

Where no machine can hold the target in transformers, this is the second opinion: a server without
our plugin computes one short prompt and says which layers it gave by SGLang's own meaning of layer
ids. Kept in a file, since a large target is served by one server at a time: asked of a stock server
first, compared when the capturing one is up.

Guarantee: states are taken only when there is a row for each token of the prompt, of the target's
width, and of the run's layers as far as the server says which it gives. No torch.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagled.artifacts import read_json, write_json
from eagled.engine_layers import captured as captured_by
from eagled.engine_layers import ids_to_write
from eagled.errors import ArtifactError, ConfigError, ReplyBrokenError
from eagled.shards.backend import Ids
from eagled.shards.backend_sglang import CaptureServer
from eagled.shards.selfcheck import Floats, probe_inputs
from eagled.shards.target import TargetFacts

FORMAT = "eagled-stock-1"
_REQUEST_S = 600.0
_INFO_S = 20.0
_WHOLE = "start it with --disable-radix-cache --chunked-prefill-size -1"


@dataclass(frozen=True, slots=True)
class StockStates:
    """What a stock server gave for one prompt.

    Attributes:
        ids: the prompt, [T].
        states: [T, C, D], C chunks side by side: the run's layers, or the final state alone.
        layers: boundary ids of the chunks; empty is the final state after the norm.
        version: SGLang's.
    """

    ids: Ids
    states: Floats
    layers: tuple[int, ...]
    version: str


def ask_stock(server: CaptureServer, target: TargetFacts, layers: tuple[int, ...]) -> StockStates:
    """Return a stock server's states of one short prompt.

    Args:
        server: a server of the target without our plugin, started with
            `--enable-return-hidden-states`; for layers also with
            `--enable-return-aux-hidden-states` (SGLang 0.5.23).
        target: sizes of the target.
        layers: boundaries of the run.

    Raises:
        RetryableError: if the server is away.
        StatesRejectedError: if it refuses the request.
        ConfigError: if it is no stock server, or gives other layers or not all rows.
    """
    info = server.call("/server_info", None, _INFO_S)
    version = str(info.get("version", "unknown"))
    _check_layers(server.url, info, target, layers, version)
    ids = probe_inputs(target.vocab_size)[0]
    body = {
        "input_ids": ids.tolist(),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        "return_hidden_states": True,
    }
    reply = server.call("/generate", body, _REQUEST_S)
    meta = reply.get("meta_info")
    given = meta.get("hidden_states") if isinstance(meta, dict) else None
    if isinstance(given, dict):
        raise ConfigError(f"{server.url} runs with eagled's plugin; a stock server is wanted here")
    states = _rows(server.url, given, len(ids))
    return _shaped(server.url, ids, states, target, layers, version)


def _check_layers(
    url: str, info: dict[str, Any], target: TargetFacts, layers: tuple[int, ...], version: str
) -> None:
    """Raise if a server that tells its layers gives others than the run's."""
    if not info.get("enable_return_aux_hidden_states"):
        return
    config = read_json(target.folder / "config.json")
    kind = str(config.get("text_config", config).get("model_type", ""))
    asked = info.get("return_aux_hidden_state_layer_ids") or None
    given = captured_by(
        asked, engine="sglang", target_type=kind, n_layers=target.n_layers, version=version
    )
    if given != layers:
        wanted = ids_to_write(
            layers, engine="sglang", target_type=kind, n_layers=target.n_layers, version=version
        )
        ids = " ".join(map(str, wanted)) if wanted else "(none)"
        raise ConfigError(
            f"{url} returns the boundaries {list(given)}, this run plans {list(layers)}: start it "
            f"with --return-aux-hidden-state-layer-ids {ids}"
        )


def _rows(url: str, given: object, n: int) -> Floats:
    """Return the prompt's rows, [T, C * D]."""
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{url} returns no hidden states: start it with "
                          "--enable-return-hidden-states")  # fmt: skip
    block = given[0] if isinstance(given[0], list) and given[0] else given
    rows = block if isinstance(block[0], list) else given
    try:
        found = np.asarray(rows, np.float32)
    except (TypeError, ValueError) as exc:
        raise ReplyBrokenError(f"{url}: hidden states are no table of numbers: {exc}") from exc
    if found.ndim != 2:  # noqa: PLR2004 - rows and columns
        raise ReplyBrokenError(f"{url}: hidden states are no table of numbers")
    if len(found) != n:
        raise ConfigError(f"{url} gave {len(found)} rows for a prompt of {n} tokens: {_WHOLE}")
    return found


def _shaped(
    url: str,
    ids: Ids,
    states: Floats,
    target: TargetFacts,
    layers: tuple[int, ...],
    version: str,
) -> StockStates:
    chunks, left = divmod(states.shape[1], target.hidden_size)
    if left or chunks not in (1, len(layers)):
        raise ConfigError(
            f"{url} gave rows of {states.shape[1]} numbers; the target is {target.hidden_size} "
            f"wide, so {len(layers)} layers or the final state alone were expected"
        )
    shaped = states.reshape(len(ids), chunks, target.hidden_size)  # [T, C, D]
    return StockStates(ids, shaped, layers if chunks == len(layers) else (), version)


# -- the file


def save_stock(stock: StockStates, path: Path) -> None:
    """Write states into a file that `load_stock` reads; the whole file, or an error and none."""
    raw = np.ascontiguousarray(stock.states, np.float32).tobytes()
    found = {
        "format": FORMAT,
        "version": stock.version,
        "layers": list(stock.layers),
        "ids": np.asarray(stock.ids).tolist(),
        "shape": list(stock.states.shape),
        "states": base64.b64encode(raw).decode(),
    }
    try:
        write_json(path, found)
    except OSError as exc:
        raise ConfigError(f"--keep {path}: {exc.strerror}") from exc


def load_stock(path: Path, target: TargetFacts, layers: tuple[int, ...]) -> StockStates:
    """Return what `save_stock` wrote.

    Raises:
        ArtifactError: if the file is not one of it.
        ConfigError: if it is of another target or of other layers.
    """
    found = read_json(path)
    try:
        if found["format"] != FORMAT:
            raise ArtifactError(f"{path} is no file of `eagled doctor --keep`")
        raw = base64.b64decode(found["states"], validate=True)
        states = np.frombuffer(raw, np.float32).reshape(found["shape"])
        ids = np.asarray(found["ids"], np.int64)
        kept, version = tuple(int(k) for k in found["layers"]), str(found["version"])
        rows, chunks, width = states.shape
    except (KeyError, TypeError, ValueError) as exc:
        raise ArtifactError(f"{path} is no file of `eagled doctor --keep`: {exc}") from exc
    if rows != len(ids) or chunks != (len(kept) or 1):
        raise ArtifactError(f"{path} is damaged: {rows} rows of {chunks} chunks")
    if width != target.hidden_size or (kept and kept != layers):
        raise ConfigError(
            f"{path} holds boundaries {list(kept)} {width} wide; this run's are {list(layers)}, "
            f"{target.hidden_size} wide: ask the stock server again"
        )
    return StockStates(ids, states, kept, version)
