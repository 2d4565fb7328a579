"""ShareGPT: `conversations` of {from, value}, sometimes a `system` column, sometimes HTML."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

from eagled.errors import RowRejectedError
from eagled.readers.base import (
    Format,
    RawCall,
    RawRow,
    RawTurn,
    Row,
    list_of_objects,
    source_id_of,
    system_turns,
    text_of,
    tools_of,
)
from eagled.types import RowReason

_SCRAPED = "<div class="  # how scraped answers begin; any other HTML belongs to the text
_CALL = "function_call"
_RESULTS = {"observation": "tool", "function_response": "tool"}
_TAG = re.compile(r"<[^<>]*>")
HTML_STRIPPED = "html_stripped"


def read_conversations(row: Row) -> RawRow:
    """Return the turns of a row with `conversations`.

    Raises:
        RowRejectedError: if it has none, or one that is not a turn.
    """
    items = list_of_objects(row, "conversations")
    turns = [*system_turns(row), *(_turn(item) for item in items)]
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
    text = text_of(value, "value")
    if role == _CALL:
        return _call(text)
    return RawTurn(_RESULTS.get(role, role), text)


def _call(text: str) -> RawTurn:
    """Return the turn of a call that stands as JSON text under a role of its own."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return RawTurn("assistant", "", broken=f"the call is not JSON: {exc}")
    items = value if isinstance(value, list) else [value]
    named = [v for v in items if isinstance(v, dict) and isinstance(v.get("name"), str)]
    if not named or len(named) != len(items):
        return RawTurn("assistant", "", broken="a call has no name")
    calls = tuple(RawCall(None, item["name"], item.get("arguments")) for item in named)
    return RawTurn("assistant", "", calls=calls)


def _without_html(turn: RawTurn) -> RawTurn:
    if not turn.content.startswith(_SCRAPED):
        return turn
    return replace(turn, content=html.unescape(_TAG.sub("", turn.content)))


FORMAT = Format(
    name="sharegpt",
    rank=51,
    columns="conversations[{from, value}], system?, tools?",
    detects=lambda row: "conversations" in row,
    read=read_conversations,
)
