"""Prompts without answers: one text, several in a row, or messages under the name `prompt`."""

from __future__ import annotations

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, RawTurn, Row, source_id_of, text_of
from eagled.readers.instruction import PROMPT_KEYS, read_pair
from eagled.readers.openai import read_messages
from eagled.types import RowReason

_LISTS = ("turns", "prompts")


def _read(row: Row) -> RawRow:
    for key in _LISTS:
        if isinstance(row.get(key), list):
            return RawRow(_questions(row[key], key), source_id=source_id_of(row))
    prompt = row.get("prompt")
    if isinstance(prompt, list) and all(isinstance(item, dict) for item in prompt):
        return read_messages({**row, "messages": prompt})
    return read_pair(row)


def _questions(value: list[object], what: str) -> tuple[RawTurn, ...]:
    """Return questions of one chat, with a place for each answer between them."""
    if not value:
        raise RowRejectedError(RowReason.EMPTY_CONVERSATION, f"{what!r} is empty")
    turns: list[RawTurn] = []
    for question in value:
        if turns:
            turns.append(RawTurn("assistant", ""))
        turns.append(RawTurn("user", text_of(question, what)))
    return tuple(turns)


def _detects(row: Row) -> bool:
    listed = any(isinstance(row.get(key), list) for key in _LISTS)
    return listed or any(key in row for key in PROMPT_KEYS)


FORMAT = Format(
    name="prompt",
    rank=54,
    columns="prompt|instruction|problem (text, or messages); or turns|prompts[text]",
    detects=_detects,
    read=_read,
)
