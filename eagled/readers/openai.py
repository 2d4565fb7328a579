"""OpenAI chat messages: `messages` of {role, content, reasoning_content, tool_calls, ...}."""

from __future__ import annotations

from eagled.errors import RowRejectedError
from eagled.readers.base import (
    Format,
    RawCall,
    RawRow,
    RawTurn,
    Row,
    list_of_objects,
    source_id_of,
    text_of,
    tools_of,
)
from eagled.types import RowReason

_OLD_ROLES = {"function": "tool", "developer": "system"}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def read_messages(row: Row) -> RawRow:
    """Return the turns of a row with `messages`.

    Raises:
        RowRejectedError: if it has none, or one that is not a message.
    """
    items = list_of_objects(row, "messages")
    return RawRow(
        turns=tuple(_turn(item) for item in items),
        tools=tools_of(row.get("tools") or row.get("functions")),
        source_id=source_id_of(row),
        reasoning_field=any(key in item for item in items for key in _REASONING_KEYS),
    )


def _turn(item: Row) -> RawTurn:
    role = item.get("role")
    if not isinstance(role, str):
        raise RowRejectedError(RowReason.UNKNOWN_ROLE, f"role is {role!r}")
    call_id, name = item.get("tool_call_id"), item.get("name")
    old = item.get("function_call")
    return RawTurn(
        role=_OLD_ROLES.get(role, role),
        content=text_of(item.get("content"), "content"),
        reasoning=_reasoning(item),
        calls=_calls(item.get("tool_calls") or (None if old is None else [old])),
        call_id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
    )


def _reasoning(item: Row) -> str | None:
    for key in _REASONING_KEYS:
        text = text_of(item.get(key), key)
        if text.strip():
            return text
    return None


def _calls(value: object) -> tuple[RawCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "tool_calls is not a list")
    return tuple(_call(item) for item in value)


def _call(item: object) -> RawCall:
    function = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(function, dict):
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, "a tool call is not an object")
    name, call_id = function.get("name"), item.get("id")
    if not isinstance(name, str) or not name:
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, "a tool call has no name")
    return RawCall(call_id if isinstance(call_id, str) else None, name, function.get("arguments"))


FORMAT = Format(
    name="openai",
    rank=50,
    columns="messages[{role, content, reasoning_content?, tool_calls?, tool_call_id?}], tools?",
    detects=lambda row: "messages" in row,
    read=read_messages,
)
