"""Keep benchmark prompts out of the training data.

Guarantee: a conversation is left out if its first question is one of a benchmark, or if any later
one is and is long enough to be no coincidence; compared after Unicode, case and blank folding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from eagled.errors import ConfigError
from eagled.text.identity import normalised
from eagled.text.messages import Message, Role

_KEYS = ("prompt", "question", "instruction", "problem", "turns", "messages", "content", "value")
_SURE_CHARS = 16  # a shorter later turn ("Why?") proves nothing


class Exclusions:
    """Normalised benchmark prompts."""

    def __init__(self, prompts: Sequence[str] = ()) -> None:
        self._known = frozenset(filter(None, map(normalised, prompts)))

    @classmethod
    def load(cls, files: Sequence[Path]) -> Exclusions:
        """Read JSON or JSONL files of strings or of objects with a prompt.

        Raises:
            ConfigError: if a file cannot be read or holds no prompt.
        """
        found: list[str] = []
        for path in files:
            prompts = list(_prompts(_read(path)))
            if not prompts:
                raise ConfigError(f"prep.exclude: {path} holds no prompt")
            found += prompts
        return cls(found)

    def match(self, messages: Sequence[Message]) -> str | None:
        """Return the benchmark prompt that a conversation asks, or None."""
        asked = [normalised(m.content) for m in messages if m.role is Role.USER]
        for index, text in enumerate(asked):
            if text in self._known and (index == 0 or len(text) >= _SURE_CHARS):
                return text
        return None


def _read(path: Path) -> list[object]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            value = json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as exc:
        raise ConfigError(f"prep.exclude: {path} cannot be read: {exc}") from exc
    return value if isinstance(value, list) else [value]


def _prompts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _prompts(item)
    elif isinstance(value, Mapping):
        row = cast("Mapping[str, object]", value)
        if row.get("role") in ("assistant", "system"):
            return
        for key in _KEYS:
            yield from _prompts(row.get(key))
