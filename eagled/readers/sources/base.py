"""One row of a source, or what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from eagled.errors import RowRejectedError
from eagled.types import RowReason


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row as it was read.

    Attributes:
        file: name of the file inside the source, or the hub id.
        number: zero-based place in the file (the line, for JSON Lines).
        value: the parsed JSON value; None if it could not be parsed.
        fault: why there is no value.
        detail: more about the fault, with the line number as people count.
    """

    file: str
    number: int
    value: object = None
    fault: RowReason | None = None
    detail: str = ""


def parse(text: str) -> object:
    """Return a JSON value; integers keep every digit, NaN stays a NaN.

    Raises:
        RowRejectedError: `bad_json_line`.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RowRejectedError(RowReason.BAD_JSON_LINE, str(exc)) from exc


def without_nulls(value: object) -> object:
    """Drop object keys whose value is null, at every depth.

    A columnar file gives every row the keys of all rows, so a null there says nothing.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
