"""mlabonne/open-perfectblend: a blend of chat, maths and code sets; many rows are one question."""

from __future__ import annotations

from eagled.readers.base import Format
from eagled.readers.sharegpt import read_conversations

FORMAT = Format(
    name="open-perfectblend",
    rank=26,
    columns="conversations[{from, value}], source",
    detects=lambda row: set(row) == {"conversations", "source"},
    read=read_conversations,
    hub_ids=("mlabonne/open-perfectblend",),
    fits=lambda row: "conversations" in row,
)
