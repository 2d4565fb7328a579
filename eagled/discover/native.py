"""Whether the answers of a dataset are the target's own, and what says so.

A column of the rows that names the model decides; else a sentence of the card; else the name, which
is a claim and no proof. Versions are kept apart: Kimi-K2 is not Kimi-K2.5. Price: nobody can see it
in an answer's text; a dataset that lies about itself is believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eagled.printable import printable

MODEL_KEYS = (
    "model", "model_name", "generator", "generated_by", "generation_model", "teacher",
    "teacher_model", "source_model", "answer_model", "response_model",
)  # fmt: skip
ROWS, CARD, NAME = "rows", "card", "name"
_SURE = 0.9
_TAIL = re.compile(
    r"[-_](?:instruct|chat|it|base|fp8|int[48]|awq|gptq|bf16|nvfp4|w4a16)$", re.IGNORECASE
)
_PIECES = re.compile(r"[a-z]+|\d+")
_MADE = (
    r"(?:generat\w+|written|produced|distill\w+|sampled|created|synthesi[sz]ed|answer\w*|"
    r"respon\w+|completions?|outputs?|traces?|trajector\w+)"
)
_NOT_NAME = re.compile(r"prompts?|eval|bench|versus|(?<![a-z])vs(?![a-z])|compar", re.IGNORECASE)
_NOT_SAID = re.compile(
    r"\bnot\b|\bno\b|compar|better than|instead of|unlike|for use with", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Native:
    """`by`: rows, card, name, or empty when nothing says that they are; `detail` in words."""

    by: str = ""
    detail: str = ""


def target_pattern(target: str) -> re.Pattern[str] | None:
    """Return what finds the target's name in a text, None without a name."""
    bare = target.rstrip("/").rsplit("/", 1)[-1]
    while (short := _TAIL.sub("", bare)) != bare:
        bare = short
    pieces = _PIECES.findall(bare.lower())
    if not pieces:
        return None
    body = r"[\W_]{0,2}".join(map(re.escape, pieces))
    return re.compile(rf"(?<![a-z0-9]){body}(?!\d|\.\d)", re.IGNORECASE)


def native_of(target: str, models: Mapping[str, int], kept: int, card: str, name: str) -> Native:
    """Say whose answers they are.

    Args:
        target: name of the target.
        models: values of a column that names the model, with their rows.
        kept: rows looked at.
        card: the card's text.
        name: of the dataset.
    """
    pattern = target_pattern(target)
    if pattern is None:
        return Native()
    named = sum(models.values())
    if kept and named >= _SURE * kept:
        own = sum(n for model, n in models.items() if pattern.search(model))
        most = printable(max(models, key=lambda model: models[model]), 60)
        if own >= _SURE * named:
            return Native(ROWS, f"a column of the rows names {most}")
        return Native("", f"a column of the rows names {most}")
    if said := _said(pattern, card):
        return Native(CARD, f"the card says: {printable(said, 100)}")
    if pattern.search(name) and not _NOT_NAME.search(name):
        return Native(NAME, "only its name says so")
    return Native()


def _said(pattern: re.Pattern[str], card: str) -> str:
    """Return the sentence of a card that says the target made the answers."""
    made = re.compile(
        rf"{_MADE}[^.\n]{{0,60}}\b(?:by|from|with|using|of|via)\s[^.\n]{{0,30}}?{pattern.pattern}",
        re.IGNORECASE,
    )
    for found in made.finditer(card):
        if not _NOT_SAID.search(found[0]):
            return found[0]
    return ""
