"""ToolTalk: dialogues in which an assistant turn lists its calls with result or exception.

The text of such a turn was said after its calls, so it becomes a turn behind their results. No
function is declared in the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

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
)
from eagled.types import RowReason


def _read(row: Row) -> RawRow:
    turns = (turn for item in list_of_objects(row, "conversation") for turn in _turns(item))
    return RawRow(tuple(turns), source_id=source_id_of(row))


def _turns(item: Row) -> Iterator[RawTurn]:
    role, text = item.get("role"), text_of(item.get("text"), "text")
    if not isinstance(role, str):
        raise RowRejectedError(RowReason.UNKNOWN_ROLE, f"role is {role!r}")
    calls = item.get("apis") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "'apis' is not a list of objects")
    if calls:
        yield RawTurn(role, "", calls=tuple(map(_call, calls)))
        yield from (RawTurn("tool", _result(call)) for call in calls)
    if text.strip() or not calls:
        yield RawTurn(role, text)


def _call(item: Row) -> RawCall:
    request = item.get("request")
    name = request.get("api_name") if isinstance(request, dict) else None
    if not isinstance(request, dict) or not isinstance(name, str) or not name:
        raise RowRejectedError(RowReason.UNPARSEABLE_TOOL_CALL, "a call has no api_name")
    return RawCall(None, name, request.get("parameters"))


def _result(item: Row) -> str:
    """Return what the model saw of a result: the exception where there was one."""
    failed = item.get("exception")
    value = item.get("response") if failed is None else {"exception": failed}
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as exc:
        raise RowRejectedError(RowReason.BAD_SCHEMA, f"a result: {exc}") from exc


def _detects(row: Row) -> bool:
    turns = row.get("conversation")
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, dict) and "text" in first and "role" in first


FORMAT = Format(
    name="tooltalk",
    rank=31,
    columns="conversation[{role, text, apis[{request, response, exception}]?}]",
    detects=_detects,
    read=_read,
)
