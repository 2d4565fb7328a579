"""ShareGPT: `conversations` of {from, value}, sometimes a `system` column, sometimes HTML."""

from __future__ import annotations

import html
import re

from eagled.errors import RowRejectedError
from eagled.readers.base import (
    Format,
    RawRow,
    RawTurn,
    Row,
    list_of_objects,
    source_id_of,
    text_of,
    tools_of,
)
from eagled.types import RowReason

_SCRAPED = "<div class="  # how scraped answers begin; any other HTML belongs to the text
_TAG = re.compile(r"<[^>]*>")
HTML_STRIPPED = "html_stripped"


def _read(row: Row) -> RawRow:
    items = list_of_objects(row, "conversations")
    turns = [_turn(item) for item in items]
    system = row.get("system")
    if isinstance(system, str) and system.strip():
        turns.insert(0, RawTurn("system", system))
    cleaned = tuple(_without_html(turn) for turn in turns)
    return RawRow(
        turns=cleaned,
        tools=tools_of(row.get("tools")),
        source_id=source_id_of(row),
        flags=frozenset() if cleaned == tuple(turns) else frozenset({HTML_STRIPPED}),
    )


def _turn(item: Row) -> RawTurn:
    role = item.get("from", item.get("role"))
    if not isinstance(role, str):
        raise RowRejectedError(RowReason.UNKNOWN_ROLE, f"role is {role!r}")
    value = item["value"] if "value" in item else item.get("content")
    return RawTurn(role, text_of(value, "value"))


def _without_html(turn: RawTurn) -> RawTurn:
    if not turn.content.startswith(_SCRAPED):
        return turn
    return RawTurn(turn.role, html.unescape(_TAG.sub("", turn.content)))


FORMAT = Format(
    name="sharegpt",
    rank=20,
    columns="conversations[{from, value}], system?, tools?",
    detects=lambda row: "conversations" in row,
    read=_read,
)
