"""CodeI/O tasks: a task in words, what goes in and comes out, and code that does it."""

from __future__ import annotations

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, RawTurn, Row, source_id_of, text_of
from eagled.types import RowReason

_PARTS = ("task_description", "input_output_spec")


def _read(row: Row) -> RawRow:
    missing = [key for key in _PARTS if row.get(key) is None]
    if missing:
        raise RowRejectedError(RowReason.MISSING_FIELD, f"no {missing[0]!r}")
    prompt = "\n\n".join(text_of(row[key], key) for key in _PARTS)
    turns = [RawTurn("user", prompt)]
    code = text_of(row.get("code_sample"), "code_sample")
    if code.strip():
        turns.append(RawTurn("assistant", f"```python\n{code.strip()}\n```"))
    return RawRow(tuple(turns), source_id=source_id_of(row))


FORMAT = Format(
    name="codeio",
    rank=32,
    columns="task_description, input_output_spec, code_sample?",
    detects=lambda row: all(key in row for key in _PARTS),
    read=_read,
)
