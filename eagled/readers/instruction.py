"""Instruction and response: one question, one answer, each in its own column."""

from __future__ import annotations

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, RawTurn, Row, source_id_of, system_turns, text_of
from eagled.types import RowReason

PROMPT_KEYS = ("instruction", "problem", "prompt")
_ANSWER_KEYS = ("output", "response", "solution")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_INPUT = "input"  # what the instruction is about; the question itself if there is no instruction


def read_pair(row: Row) -> RawRow:
    """Return the question of a row and its answer, if it has one.

    Raises:
        RowRejectedError: if it has no question, or one that is not text.
    """
    turns = [*system_turns(row), RawTurn("user", _prompt(row))]
    answer = next((row[key] for key in _ANSWER_KEYS if row.get(key) is not None), None)
    if answer is not None:
        reasoning = next((row[key] for key in _REASONING_KEYS if row.get(key)), None)
        text = text_of(reasoning, "reasoning")
        turns.append(RawTurn("assistant", text_of(answer, "answer"), text or None))
    return RawRow(
        turns=tuple(turns),
        source_id=source_id_of(row),
        reasoning_field=any(key in row for key in _REASONING_KEYS),
    )


def _prompt(row: Row) -> str:
    parts = [row.get(key) for key in (*PROMPT_KEYS, _INPUT)]
    head = next((part for part in parts if part is not None), None)
    if head is None:
        raise RowRejectedError(RowReason.MISSING_FIELD, f"none of {', '.join(PROMPT_KEYS)}")
    text = text_of(head, "prompt")
    about = text_of(parts[-1], _INPUT)
    asked = any(part is not None for part in parts[:-1])
    return f"{text}\n\n{about}" if asked and about.strip() else text


def _detects(row: Row) -> bool:
    asked = any(key in row for key in (*PROMPT_KEYS, _INPUT))
    return asked and any(key in row for key in _ANSWER_KEYS)


FORMAT = Format(
    name="instruction",
    rank=53,
    columns="instruction|problem|prompt, input?, output|response|solution, system?",
    detects=_detects,
    read=read_pair,
)
