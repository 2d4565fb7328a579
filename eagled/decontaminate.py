"""Keep benchmark prompts out of the training data.

The rule: a conversation is left out if

1. its first user turn is a benchmark prompt, after Unicode, case and blank folding;
2. or a later user turn is one of at least 16 characters (a shorter one is a coincidence);
3. or any user turn shares a run of N words with a benchmark prompt (`prep.exclude_ngram`, 13 by
   default, 0 turns this off). Words are runs of letters and digits after folding. A run that
   stands in more than 3 of the benchmark's prompts is its boilerplate ("put your final answer
   within ...") and proves nothing. Prompts of fewer than N words are matched by 1 and 2 only.

Guarantee: what was found is named (file, number of the prompt, rule). Price: the runs of all
benchmark prompts are held in memory as 64-bit numbers, in every tokenising process.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import cast

from eagled.errors import ConfigError
from eagled.text.identity import normalised
from eagled.text.messages import Message, Role

_KEYS = ("prompt", "question", "instruction", "problem", "turns", "messages", "content", "value")
_SURE_CHARS = 16
_BOILERPLATE_PROMPTS = 3
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class BenchmarkPrompt:
    """One prompt that must not be trained on; `number` counts the file's prompts from 1."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"prompt {self.number} of {self.file}"


class Exclusions:
    """Benchmark prompts, ready to be looked for."""

    def __init__(self, prompts: Sequence[BenchmarkPrompt] = (), ngram: int = 0) -> None:
        self._ngram = ngram
        self._known: dict[str, BenchmarkPrompt] = {}
        for prompt in prompts:
            if text := normalised(prompt.text):
                self._known.setdefault(text, prompt)
        self._runs = _runs_of(self._known, ngram) if ngram else {}

    @classmethod
    def load(cls, files: Sequence[Path], ngram: int = 0) -> Exclusions:
        """Read JSON or JSONL files of strings or of objects with a prompt.

        Raises:
            ConfigError: if a file cannot be read or holds no prompt.
        """
        found: list[BenchmarkPrompt] = []
        for path in files:
            texts = list(_prompts(_read(path, "prep.exclude: ")))
            if not texts:
                raise ConfigError(f"prep.exclude: {path} holds no prompt")
            found += [BenchmarkPrompt(path.name, i, text) for i, text in enumerate(texts, 1)]
        return cls(found, ngram)

    def match(self, messages: Sequence[Message]) -> str | None:
        """Say which benchmark prompt a conversation asks, None if none."""
        if not self._known:
            return None
        asked = [normalised(m.content) for m in messages if m.role is Role.USER]
        for index, text in enumerate(asked):
            same = self._known.get(text)
            if same is not None and (index == 0 or len(text) >= _SURE_CHARS):
                return f"is {same}"
            part = self._shared_run(text)
            if part is not None:
                return f"shares {self._ngram} words with {part}"
        return None

    def _shared_run(self, text: str) -> BenchmarkPrompt | None:
        if not self._runs:
            return None
        return next((p for run in _runs(text, self._ngram) if (p := self._runs.get(run))), None)


def _runs_of(known: Mapping[str, BenchmarkPrompt], ngram: int) -> dict[int, BenchmarkPrompt]:
    runs: dict[int, BenchmarkPrompt] = {}
    seen: Counter[int] = Counter()
    for text, prompt in known.items():
        own = set(_runs(text, ngram))
        seen.update(own)
        for run in own:
            runs.setdefault(run, prompt)
    return {run: prompt for run, prompt in runs.items() if seen[run] <= _BOILERPLATE_PROMPTS}


def _runs(text: str, ngram: int) -> Iterator[int]:
    words = _WORD.findall(text)
    for start in range(len(words) - ngram + 1):
        joined = " ".join(words[start : start + ngram]).encode("utf-8", "surrogatepass")
        yield int.from_bytes(blake2b(joined, digest_size=8).digest(), "little")


def read_prompts(path: Path) -> list[str]:
    """Return the first prompt of each row of a file that `Exclusions.load` reads, in order.

    Later turns of a row (MT-bench has two) are no question without the answer before them.

    Raises:
        ConfigError: if it cannot be read or holds no prompt.
    """
    first = (next(_prompts(row), None) for row in _read(path))
    texts = [text for text in first if text is not None]
    if not texts:
        raise ConfigError(f"{path} holds no prompt")
    return texts


def _read(path: Path, about: str = "") -> list[object]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            value = json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{about}{path} cannot be read: {exc}") from exc
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
