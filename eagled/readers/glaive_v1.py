"""glaiveai/glaive-function-calling: as v2, in one text column with single line feeds."""

from __future__ import annotations

import re

from eagled.errors import RowRejectedError
from eagled.readers.base import Format, RawRow, Row, source_id_of
from eagled.readers.glaive_v2 import read_glaive, read_v2
from eagled.types import RowReason

_LINE_START = re.compile(r"^(?P<who>USER|ASSISTANT|FUNCTION RESPONSE):", re.MULTILINE)
_SYSTEM = "SYSTEM:"


def _read(row: Row) -> RawRow:
    sample = row.get("sample")
    if sample is None and "chat" in row:
        return read_v2(row)
    if sample is None:
        raise RowRejectedError(RowReason.MISSING_FIELD, "no 'sample'")
    if not isinstance(sample, str):
        raise RowRejectedError(RowReason.BAD_SCHEMA, "'sample' is not text")
    first = _LINE_START.search(sample)
    at = first.start() if first is not None and sample.lstrip().startswith(_SYSTEM) else 0
    return read_glaive(sample[:at], sample[at:], _LINE_START, source_id_of(row))


FORMAT = Format(
    name="glaive-function-calling-v1",
    rank=13,
    columns="sample (one text with role markers)",
    detects=lambda row: isinstance(row.get("sample"), str) and "ASSISTANT:" in row["sample"],
    read=_read,
    hub_ids=("glaiveai/glaive-function-calling",),
    fits=lambda row: "sample" in row,
)
