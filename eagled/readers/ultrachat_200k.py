"""HuggingFaceH4/ultrachat_200k: chats; the messages win over the prompt column."""

from __future__ import annotations

from eagled.readers.base import Format
from eagled.readers.openai import read_messages

FORMAT = Format(
    name="ultrachat-200k",
    rank=24,
    columns="messages[{role, content}], prompt, prompt_id",
    detects=lambda row: "messages" in row and "prompt_id" in row,
    read=read_messages,
    hub_ids=("HuggingFaceH4/ultrachat_200k",),
    fits=lambda row: "messages" in row,
)
