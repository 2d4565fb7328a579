"""crownelius/KimiK2.5-2000x: answers of Kimi K2.5, mostly with its reasoning.

The shape on the hub could not be looked at, so three are known: messages; problem, thinking,
solution; prompt, reasoning, response. Any other is refused.
"""

from __future__ import annotations

from eagled.errors import RowRejectedError
from eagled.readers.base import LAST_RANK, Format, RawRow, Row
from eagled.readers.instruction import read_pair
from eagled.readers.openai import read_messages
from eagled.types import Mode, RowReason

_SHAPES = (("problem", "thinking", "solution"), ("prompt", "reasoning", "response"))


def _read(row: Row) -> RawRow:
    if "messages" in row:
        return read_messages(row)
    if not _fits(row):
        shapes = "; ".join(["messages", *(", ".join(shape) for shape in _SHAPES)])
        columns = ", ".join(sorted(map(str, row)))
        detail = f"columns are {columns}; known: {shapes}"
        raise RowRejectedError(RowReason.MISSING_FIELD, detail)
    return read_pair(row)


def _fits(row: Row) -> bool:
    # a column whose every value is null is absent after Parquet, so the reasoning may be missing
    return "messages" in row or any(
        question in row and answer in row for question, _, answer in _SHAPES
    )


FORMAT = Format(
    name="kimi-k25-2000x",
    rank=LAST_RANK,
    columns="messages[{role, content, reasoning_content?}]; or problem, thinking, solution; or "
    "prompt, reasoning, response",
    detects=_fits,
    read=_read,
    hub_ids=("crownelius/KimiK2.5-2000x",),
    mode=Mode.NATIVE,
)
