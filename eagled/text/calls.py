"""Records of tool calls as a model wrote them, shared by the syntaxes of `toolcalls.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass


class ToolCallError(ValueError):
    """The call section does not parse; the message says where."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call as the model wrote it; `arguments` is its JSON text, `id` None if it writes none."""

    name: str
    arguments: str
    id: str | None = None


def json_value(text: str) -> object:
    """Return the value of JSON text.

    Raises:
        ToolCallError: if it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ToolCallError(f"a call is not JSON: {exc}") from exc


def object_text(text: str) -> str:
    """Return the JSON text of an object without blanks around it.

    Raises:
        ToolCallError: if it is something else.
    """
    if not isinstance(json_value(text), dict):
        raise ToolCallError("the arguments of a call are not a JSON object")
    return text.strip()
