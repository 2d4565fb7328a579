"""Control tokens of a target, from its tokenizer files read as JSON; no transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json
from eagled.errors import ArtifactError, ConfigError

# <|im_end|>, <think>, </tool_call>, [BOS], [/INST]: one word in brackets
_CONTROL = re.compile(r"^(<[^\s<>]+>|\[/?[A-Za-z_]+\])$")
# places kept free by a tokenizer's makers: never produced, so they would only waste the draft's
_PLACEHOLDER = re.compile(r"reserved|unused", re.IGNORECASE)
_STOP_KEYS = ("bos_token_id", "eos_token_id")


def special_ids(model: Path, tokenizer: Path | None = None) -> tuple[int, ...]:
    """Return the ids of all control tokens, sorted; empty if no file names any.

    These are the added tokens that are marked special or look like control tokens, without
    reserved placeholders, and the begin and end ids of config.json and generation_config.json.

    Args:
        model: the target's folder.
        tokenizer: folder of the tokenizer when it is not the model's.

    Raises:
        ConfigError: if a file is there but cannot be read.
    """
    folder = tokenizer if tokenizer is not None and tokenizer.is_dir() else model
    ids = {
        *_added(_read(folder / "tokenizer.json")),
        *_decoder(_read(folder / "tokenizer_config.json")),
        *_stops(_read(model / "generation_config.json")),
        *_stops(_read(model / "config.json")),
    }
    size = _vocab_size(_read(model / "config.json"))
    return tuple(sorted(i for i in ids if 0 <= i < size))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except ArtifactError as exc:
        raise ConfigError(f"{path} cannot be read as JSON: {exc}") from exc


def _is_control(token: dict[str, Any]) -> bool:
    text = str(token.get("content", ""))
    if _PLACEHOLDER.search(text):
        return False
    return bool(token.get("special")) or _CONTROL.match(text) is not None


def _added(tokenizer: dict[str, Any]) -> Iterator[int]:
    """Yield from `added_tokens` of tokenizer.json."""
    for token in tokenizer.get("added_tokens") or ():
        if _is_control(token):
            yield int(token["id"])


def _decoder(config: dict[str, Any]) -> Iterator[int]:
    """Yield from `added_tokens_decoder` of tokenizer_config.json, which others keep instead."""
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        if _is_control(token):
            yield int(number)


def _stops(config: dict[str, Any]) -> Iterator[int]:
    for part in (config, config.get("text_config") or {}):
        for key in _STOP_KEYS:
            value = part.get(key)
            yield from (
                i for i in (value if isinstance(value, list) else [value]) if type(i) is int
            )


def _vocab_size(config: dict[str, Any]) -> int:
    """Return the target's vocabulary size, or a bound that every id meets."""
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if type(size) is int else 1 << 32
