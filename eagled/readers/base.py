"""What a dataset format is: which columns it knows, and how it reads one row.

A reader only names things: roles, text, calls. All rules about shape, reasoning and tools are in
`eagled/text/canonical.py`, the same for every format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagled.errors import RowRejectedError
from eagled.text.messages import Tools
from eagled.types import Mode, RowReason

Row = Mapping[str, Any]
GENERIC_RANK = 50
LAST_RANK = 90  # from here on a format of one dataset whose columns are common ones
_ID_KEYS = ("id", "prompt_id", "conversation_id", "uuid", "instance_id")


@dataclass(frozen=True, slots=True)
class RawCall:
    """A tool call as the row has it; `arguments` is text, an object or None."""

    id: str | None
    name: str
    arguments: object


@dataclass(frozen=True, slots=True)
class RawTurn:
    """One turn as the row names it, before any rule but "content is text".

    Attributes:
        reasoning: None where the row has no such field, or nothing in it.
        name: who speaks; on a tool turn, the function whose result this is.
        broken: why a call in this turn cannot be read; None when there is nothing wrong.
        cut: the turn ends in the middle of a call (then `broken` says so as well).
    """

    role: str
    content: str
    reasoning: str | None = None
    calls: tuple[RawCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    broken: str | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as its format reads it.

    Attributes:
        tools: declared functions; None where nothing can be declared (then no call is undeclared),
            empty where the shape has a place for declarations and nothing is in it.
        reasoning_field: the shape has a place for reasoning, filled or not.
        trajectory: a recorded agent run: blank answers make it useless, several runs of one task
            are no duplicates, and each of its turns stands for itself.
        task: of a trajectory, what was to be done, if the row names it; else its question says so.
    """

    turns: tuple[RawTurn, ...]
    tools: Tools | None = None
    source_id: str | None = None
    flags: frozenset[str] = frozenset()
    reasoning_field: bool = False
    trajectory: bool = False
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A dataset format; a module of `eagled.readers` that has one as `FORMAT` is found by itself.

    Attributes:
        name: word for the configuration.
        rank: formats are asked in ascending order, the first that knows the columns wins. Those of
            one dataset come before the generic ones (`GENERIC_RANK` and above).
        columns: what `eagled prep --formats` shows.
        detects: whether a row shows that it is of this format and of no other.
        read: gives the turns; raises `RowRejectedError`.
        hub_ids: the datasets that have this format.
        mode: whose answers they hold, where nobody says otherwise.
        fits: whether a row of a file that is known to have this format can be read with it; None
            asks `detects`.
    """

    name: str
    rank: int
    columns: str
    detects: Callable[[Row], bool]
    read: Callable[[Row], RawRow]
    hub_ids: tuple[str, ...] = ()
    mode: Mode = Mode.REGENERATE
    fits: Callable[[Row], bool] | None = None

    def reads(self, row: Row) -> bool:
        """Return whether a row of a file of this format can be read."""
        return (self.fits or self.detects)(row)


def source_id_of(row: Row) -> str | None:
    """Return the row's own id as text, integers digit for digit."""
    for key in _ID_KEYS:
        value = row.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return None


def list_of_objects(row: Row, key: str) -> list[Row]:
    """Return the turns in `row[key]`.

    Raises:
        RowRejectedError: missing, of another type, or empty.
    """
    value = row.get(key)
    if value is None:
        raise RowRejectedError(RowReason.MISSING_FIELD, f"no {key!r}")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RowRejectedError(RowReason.BAD_SCHEMA, f"{key!r} is not a list of objects")
    if not value:
        raise RowRejectedError(RowReason.EMPTY_CONVERSATION, f"{key!r} is empty")
    return value


def system_turns(row: Row) -> list[RawTurn]:
    """Return the system turn of a row that has its text in a column of its own.

    Raises:
        RowRejectedError: if it is not text.
    """
    text = text_of(row.get("system"), "system")
    return [RawTurn("system", text)] if text.strip() else []


def text_of(value: object, what: str) -> str:
    """Return content as text: null is empty, text parts are joined.

    Raises:
        RowRejectedError: for anything else, an image part for example.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_part_text(part, what) for part in value)
    raise RowRejectedError(RowReason.BAD_SCHEMA, f"{what} is a {type(value).__name__}")


def _part_text(part: object, what: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") == "text":
        return text_of(part.get("text"), what)
    raise RowRejectedError(RowReason.BAD_SCHEMA, f"{what} has a part that is not text")


def tools_of(value: object) -> Tools | None:
    """Return declared function schemas in OpenAI wrapping; absent, null and empty are the same.

    Raises:
        RowRejectedError: if it is neither a list of objects nor the JSON text of one.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise RowRejectedError(RowReason.BAD_SCHEMA, f"tools are not JSON: {exc}") from exc
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "tools are not a list of objects")
    require_json(value)
    return tuple(_wrapped(tool) for tool in value)


def require_json(value: object) -> None:
    """Refuse declared tools that JSON cannot hold, before anything is silently written as null.

    Raises:
        RowRejectedError: if there is a NaN or half a character in them.
    """
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (ValueError, TypeError) as exc:
        raise RowRejectedError(RowReason.BAD_SCHEMA, f"tools: {exc}") from exc


def _wrapped(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "a tool has no name")
    return tool if "function" in tool else {"type": "function", "function": tool}
