"""glaiveai/glaive-function-calling-v2: tool chats as text with role markers.

`system` holds function schemas as loose JSON objects, `chat` the turns. Arguments stand in single
quotes inside JSON, so a call is not JSON as a whole; an apostrophe in a value is no end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eagled.errors import RowRejectedError
from eagled.readers.base import (
    Format,
    RawCall,
    RawRow,
    RawTurn,
    Row,
    require_json,
    source_id_of,
)
from eagled.text.messages import Tools
from eagled.types import RowReason

_MARKERS = r"(?P<who>USER|ASSISTANT|FUNCTION RESPONSE):"
_AFTER_BLANK = re.compile(r"(?:\A|(?<=\n\n))[ \t]*" + _MARKERS)  # else it is a word of the text
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_END = "<|endoftext|>"
_CALL = "<functioncall>"
_QUOTED = re.compile(
    r"""\{\s*"name":\s*"(?P<name>[^"]+)",\s*"arguments":\s*'(?P<arguments>.*)'\s*\}""", re.DOTALL
)
_SYSTEM = re.compile(r"\A\s*SYSTEM:\s*")
_NO_PARAMETERS = {"type": "object", "properties": {}}
_decoder = json.JSONDecoder()


def read_glaive(system: str, chat: str, markers: re.Pattern[str], source_id: str | None) -> RawRow:
    """Return the turns of a chat whose role markers are found by `markers`.

    Raises:
        RowRejectedError: if the chat is blank or begins before its first marker.
    """
    if not chat.strip():
        raise RowRejectedError(RowReason.EMPTY_CONVERSATION, "the chat is empty")
    tools = _declared(system)
    text = _SYSTEM.sub("", system).strip()
    turns = [RawTurn("system", text)] if text and not tools else []
    turns += _turns(chat, markers)
    return RawRow(tuple(turns), tools, source_id)


def _declared(system: str) -> Tools | None:
    """Return the function schemas in a system text; None if it has none."""
    found, at = [], 0
    while (at := system.find("{", at)) >= 0:
        try:
            value, end = _decoder.raw_decode(system, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        at = end
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            found.append({"type": "function", "function": _function(value)})
    require_json(found)
    return tuple(found) or None


def _function(value: Mapping[str, Any]) -> dict[str, Any]:
    parameters = value.get("parameters") or _NO_PARAMETERS
    return {**value, "parameters": parameters}


def _turns(chat: str, markers: re.Pattern[str]) -> Iterator[RawTurn]:
    found = list(markers.finditer(chat))
    if not found or chat[: found[0].start()].strip():
        raise RowRejectedError(RowReason.BAD_SCHEMA, "the chat does not begin with a role marker")
    ends = [*(match.start() for match in found[1:]), len(chat)]
    for match, end in zip(found, ends, strict=True):
        yield _turn(_ROLES[match["who"]], chat[match.end() : end])


def _turn(role: str, text: str) -> RawTurn:
    content = text.replace(_END, "").strip()
    if role != "assistant" or _CALL not in content:
        return RawTurn(role, content)
    said, _, call = content.partition(_CALL)
    call = call.strip()
    read = _call(call)
    if read is not None:
        return RawTurn(role, said.strip(), calls=(read,))
    cut = _END not in text and not call.endswith("}")
    return RawTurn(role, said.strip(), broken=f"no call can be read in {call!r}", cut=cut)


def _call(text: str) -> RawCall | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        quoted = _QUOTED.fullmatch(text)
        return RawCall(None, quoted["name"], quoted["arguments"]) if quoted else None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    return RawCall(None, value["name"], value.get("arguments"))


def read_v2(row: Row) -> RawRow:
    """Return the turns of a row with `system` and `chat`.

    Raises:
        RowRejectedError: if there is no chat, or it is blank or not text.
    """
    chat, system = row.get("chat"), row.get("system")
    if chat is None:
        raise RowRejectedError(RowReason.MISSING_FIELD, "no 'chat'")
    if not isinstance(chat, str) or not isinstance(system, str | None):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "'chat' or 'system' is not text")
    return read_glaive(system or "", chat, _AFTER_BLANK, source_id_of(row))


FORMAT = Format(
    name="glaive-function-calling-v2",
    rank=12,
    columns="system, chat (both text with role markers)",
    detects=lambda row: "chat" in row and "system" in row,
    read=read_v2,
    hub_ids=("glaiveai/glaive-function-calling-v2",),
    fits=lambda row: "chat" in row,
)
