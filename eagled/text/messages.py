"""Conversations as eagled knows them: typed, and with one JSON form.

Guarantee: `content` is always text, tool arguments are once-encoded JSON text, and a message has a
key in its JSON form only if it has the thing; `Message.from_json(m.to_json()) == m`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eagled.types import Mode


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `id` is `functions.NAME:N`, `arguments` the JSON text of an object."""

    id: str
    name: str
    arguments: str

    def to_json(self) -> dict[str, Any]:
        """Return the OpenAI form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the canonical JSON object."""
        out: dict[str, Any] = {"role": self.role.value, "content": self.content}
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Message:
        """Return the message that `to_json` wrote."""
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in value.get("tool_calls", ())
        )
        return cls(
            role=Role(value["role"]),
            content=value["content"],
            reasoning=value.get("reasoning_content"),
            tool_calls=calls,
            tool_call_id=value.get("tool_call_id"),
        )


Tools = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A row that passed all rules.

    Attributes:
        messages: in order, never empty.
        tools: declared function schemas, or None.
        targets: indexes of the assistant turns to train on (native) or to regenerate; an index
            equal to the number of messages means one new turn at the end.
        flags: sorted words for what was done or seen.
        source_id: the row's own id as text.
        mode: whose answers count.
        trajectory: a recorded agent run, whose turns each stand for themselves.
        task: of a trajectory, the name of what was to be done, if the row has one.
    """

    messages: tuple[Message, ...]
    tools: Tools | None
    targets: tuple[int, ...]
    flags: tuple[str, ...]
    source_id: str | None
    mode: Mode
    trajectory: bool = False
    task: str | None = None


def to_json(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the canonical JSON list of a conversation's messages."""
    return [message.to_json() for message in messages]
