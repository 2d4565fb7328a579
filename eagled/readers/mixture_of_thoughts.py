"""open-r1/Mixture-of-Thoughts: one question, one answer with its think block; some are cut."""

from __future__ import annotations

from eagled.readers.base import Format
from eagled.readers.openai import read_messages

FORMAT = Format(
    name="mixture-of-thoughts",
    rank=22,
    columns="messages[{role, content}], num_tokens, source",
    detects=lambda row: "messages" in row and "num_tokens" in row,
    read=read_messages,
    hub_ids=("open-r1/Mixture-of-Thoughts",),
    fits=lambda row: "messages" in row,
)
