"""BAAI/Infinity-Instruct, each configuration: instructions in many languages; gated on the hub."""

from __future__ import annotations

from eagled.readers.base import Format
from eagled.readers.sharegpt import read_conversations

FORMAT = Format(
    name="infinity-instruct",
    rank=25,
    columns="id, conversations[{from, value}], label, langdetect, source",
    detects=lambda row: "conversations" in row and ("label" in row or "langdetect" in row),
    read=read_conversations,
    hub_ids=("BAAI/Infinity-Instruct",),
    fits=lambda row: "conversations" in row,
)
