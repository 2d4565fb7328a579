"""Alpaca: instruction, optional input, output; in some sets with a system text and a history."""

from __future__ import annotations

from dataclasses import replace

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, RawTurn, Row, text_of
from eagled.readers.instruction import read_pair
from eagled.types import RowReason

_PAIR = 2


def _read(row: Row) -> RawRow:
    raw = read_pair(row)
    history = row.get("history")
    if not history:
        return raw
    if not isinstance(history, list) or not all(map(_is_pair, history)):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "'history' is not a list of pairs")
    earlier = tuple(
        RawTurn(role, text_of(text, "history"))
        for pair in history
        for role, text in zip(("user", "assistant"), pair, strict=True)
    )
    first = next(i for i, turn in enumerate(raw.turns) if turn.role == "user")
    return replace(raw, turns=raw.turns[:first] + earlier + raw.turns[first:])


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == _PAIR


FORMAT = Format(
    name="alpaca",
    rank=52,
    columns="instruction, input?, output, system?, history[[question, answer]]?",
    detects=lambda row: "instruction" in row and "output" in row,
    read=_read,
)
