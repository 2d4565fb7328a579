"""ShareGPT Vicuna unfiltered: chats of ChatGPT's users, some still as scraped HTML.

Long chats were split in pieces that begin with an answer. The shape is that of `sharegpt`, which
reads it; this entry makes the datasets' names known.
"""

from __future__ import annotations

from eagled.readers.base import Format, Row
from eagled.readers.sharegpt import read_conversations


def _detects(row: Row) -> bool:
    turns = row.get("conversations")
    first = turns[0] if isinstance(turns, list) and turns else None
    return "id" in row and isinstance(first, dict) and "from" in first and "value" in first


FORMAT = Format(
    name="sharegpt-vicuna-unfiltered",
    rank=40,
    columns="id, conversations[{from, value}]",
    detects=_detects,
    read=read_conversations,
    hub_ids=(
        "anon8231489123/ShareGPT_Vicuna_unfiltered",
        "Aeala/ShareGPT_Vicuna_unfiltered",
    ),
    fits=lambda row: "conversations" in row,
)
