"""Berkeley function calling (BFCL): questions beside Python-like function schemas.

Type names become those of JSON Schema and dots in function names underscores, as chat templates
and servers want them. Rows whose functions stand in another file (`involved_classes`) are refused:
without their tools the questions make no sense.
"""

from __future__ import annotations

import re
from typing import Any, cast

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, RawTurn, Row, source_id_of, tools_of
from eagled.readers.openai import read_messages
from eagled.types import RowReason

_TYPES = {
    "dict": "object",
    "hashmap": "object",
    "float": "number",
    "double": "number",
    "tuple": "array",
    "arraylist": "array",
    "long": "integer",
    "char": "string",
    "any": None,
    "": None,
}
_KNOWN = frozenset({"object", "number", "array", "integer", "string", "boolean", "null"})
_NOT_NAME = re.compile(r"[^\w-]")


def _read(row: Row) -> RawRow:
    if not row.get("function") and "involved_classes" in row:
        detail = "its functions are in another file (involved_classes)"
        raise RowRejectedError(RowReason.TOOLS_UNDECLARED, detail)
    asked = row.get("question")
    if not isinstance(asked, list) or not all(isinstance(turn, list) for turn in asked):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "'question' is not a list of lists")
    turns: list[RawTurn] = []
    for messages in asked:
        if turns and turns[-1].role != "assistant":
            turns.append(RawTurn("assistant", ""))  # the place of the answer between two questions
        turns += read_messages({"messages": messages}).turns
    functions = row.get("function")
    tools = tools_of([_function(item) for item in functions] if functions else None)
    return RawRow(tuple(turns), tools, source_id_of(row))


def _function(value: object) -> object:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return value  # refused with the other tools that are none
    parameters = _schema(value.get("parameters"))
    name = _NOT_NAME.sub("_", value["name"])
    return {**value, "name": name, "parameters": parameters}


def _schema(value: object) -> object:
    """Return a schema in the words of JSON Schema, at every depth."""
    if not isinstance(value, dict):
        return value
    schema = {str(key): item for key, item in value.items()}
    kind = schema.get("type")
    if isinstance(kind, str):
        schema |= {"type": _TYPES.get(kind.lower(), kind.lower())}
        if schema["type"] not in _KNOWN:  # a unit of the field rather than a type, "file" for one
            schema.pop("type")
    for key in ("items", "additionalProperties"):
        if key in schema:
            schema[key] = _schema(schema[key])
    if isinstance(schema.get("properties"), dict):
        fields = cast("dict[str, Any]", schema["properties"])
        schema["properties"] = {name: _schema(field) for name, field in fields.items()}
    return schema


def _detects(row: Row) -> bool:
    asked = row.get("question")
    return isinstance(asked, list) and bool(asked) and isinstance(asked[0], list)


FORMAT = Format(
    name="bfcl",
    rank=30,
    columns="question[[{role, content}]], function[{name, description, parameters}]",
    detects=_detects,
    read=_read,
)
