"""ise-uiuc/Magicoder-Evol-Instruct-110K: one programming question, one answer."""

from __future__ import annotations

from eagled.readers.base import Format
from eagled.readers.instruction import read_pair

FORMAT = Format(
    name="magicoder-evol-instruct",
    rank=21,
    columns="instruction, response",
    detects=lambda row: set(row) == {"instruction", "response"},
    read=read_pair,
    hub_ids=("ise-uiuc/Magicoder-Evol-Instruct-110K",),
    fits=lambda row: "instruction" in row or "response" in row,
)
