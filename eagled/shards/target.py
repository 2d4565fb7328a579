"""What a target model's folder says about itself, read as JSON: no torch, no transformers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json, sha256_file, sha256_json
from eagled.errors import ArtifactError, ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer.model")
_WEIGHT_SUFFIXES = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Sizes and identity of a target model.

    Attributes:
        folder: where it lies.
        n_layers: decoder layers (N).
        hidden_size: D.
        vocab_size: V, rows of the embedding; ids are below it.
        target_hash: SHA-256 over config.json and the names and sizes of the weight files.
        tokenizer_hash: SHA-256 of the tokenizer file, or of nothing when there is none.
    """

    folder: Path
    n_layers: int
    hidden_size: int
    vocab_size: int
    target_hash: str
    tokenizer_hash: str


def read_target(folder: Path) -> TargetFacts:
    """Return the facts of the model in `folder`.

    Raises:
        ConfigError: if there is no model, or its config lacks a size.
    """
    try:
        config = read_json(folder / "config.json")
    except ArtifactError as exc:
        raise ConfigError(
            f"target.model = {str(folder)!r} is not a model folder: {exc}; "
            "give a folder with config.json, tokenizer and weights"
        ) from exc
    sizes = _sizes(config.get("text_config", config), folder)
    weights = sorted(p for p in folder.iterdir() if p.suffix in _WEIGHT_SUFFIXES)
    identity = [sha256_file(folder / "config.json"), [[p.name, p.stat().st_size] for p in weights]]
    return TargetFacts(folder, *sizes, sha256_json(identity), tokenizer_hash(folder))


def resolve_model(model: str, revision: str | None = None) -> Path:
    """Return the folder of a model: `model` itself, or the local copy of a hub repository.

    Raises:
        ConfigError: if it is neither a folder nor can be fetched.
    """
    if Path(model).is_dir():
        return Path(model)
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model, revision=revision))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as exc:
        raise ConfigError(
            f"target.model = {model!r} is not a folder, and the hub gives no copy of it "
            f"({type(exc).__name__}); download the model and give its folder"
        ) from exc


def tokenizer_hash(folder: Path) -> str:
    """Return the SHA-256 of the tokenizer's vocabulary file in `folder`."""
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            return sha256_file(folder / name)
    return hashlib.sha256().hexdigest()


def _sizes(config: dict[str, Any], folder: Path) -> tuple[int, int, int]:
    """Return N, D and V."""
    names = ("num_hidden_layers", "hidden_size", "vocab_size")
    values = tuple(config.get(name) for name in names)
    missing = [n for n, v in zip(names, values, strict=True) if type(v) is not int or v < 1]
    if missing:
        raise ConfigError(f"{folder / 'config.json'} has no usable {', '.join(missing)}")
    n_layers, hidden, vocab = (int(v) for v in values if v is not None)
    return n_layers, hidden, vocab
