"""Put regenerated answers into a recorded conversation, up to its next target turn.

Guarantee: every target turn before the next one is the target model's own; users', systems' and
tools' turns are the dataset's. A recorded tool result is bound to the generated call in the same
place only if the whole turn called the same functions in the same order; otherwise the
conversation ends there with a reason, because the result would answer something nobody asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagled.errors import ArtifactError, OutputRejectedError
from eagled.frames import unpack_frame
from eagled.text.answer import ParsedAnswer
from eagled.text.calls import ParsedCall
from eagled.text.messages import Message, Role, ToolCall, Tools
from eagled.types import OutputReason

MAX_BODY_BYTES = 1 << 30
_CALL_ID = re.compile(r"functions\.[^\s:]+:\d+")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A conversation as prep stored it for the text worker."""

    messages: tuple[Message, ...]
    tools: Tools | None
    targets: tuple[int, ...]
    thinking: bool | None


def read_body(body: bytes) -> Recorded:
    """Return the conversation in a stored body.

    Raises:
        ArtifactError: if the bytes are not what prep wrote.
    """
    try:
        value: Mapping[str, Any] = json.loads(unpack_frame(body, MAX_BODY_BYTES))
        tools = value["tools"]
        return Recorded(
            messages=tuple(Message.from_json(message) for message in value["messages"]),
            tools=None if tools is None else tuple(tools),
            targets=tuple(value["targets"]),
            thinking=value["thinking"],
        )
    except (ArtifactError, ValueError, KeyError, TypeError) as exc:
        raise ArtifactError(f"a stored conversation is damaged: {exc!r}") from exc


@dataclass(slots=True)
class _Replay:
    """History under construction."""

    history: list[Message] = field(default_factory=list)
    count: int = 0  # calls so far
    used: set[str] = field(default_factory=set)
    bound: dict[str, str] = field(default_factory=dict)  # recorded call id -> generated call id

    def say(self, recorded: Message | None, answer: ParsedAnswer) -> None:
        calls = tuple(self._number(call) for call in answer.calls)
        theirs = recorded.tool_calls if recorded is not None else ()
        if [call.name for call in theirs] != [call.name for call in calls]:
            raise OutputRejectedError(
                OutputReason.TOOL_CALLS_DIFFER,
                f"recorded {_names(theirs)}, generated {_names(calls)}",
            )
        self.bound.update((old.id, new.id) for old, new in zip(theirs, calls, strict=True))
        turn = Message(Role.ASSISTANT, answer.content, answer.reasoning, calls)
        self.history.append(turn)

    def hear(self, message: Message) -> None:
        if message.tool_call_id is not None:
            bound = self.bound.get(message.tool_call_id, message.tool_call_id)
            message = Message(message.role, message.content, tool_call_id=bound)
        self.history.append(message)

    def _number(self, call: ParsedCall) -> ToolCall:
        """Keep the model's own id where it has the usual form; else number it."""
        own = call.id or ""
        usable = _CALL_ID.fullmatch(own) and own not in self.used
        call_id = own if usable else f"functions.{call.name}:{self.count}"
        self.count += 1
        self.used.add(call_id)
        return ToolCall(call_id, call.name, call.arguments)


def next_messages(recorded: Recorded, answers: Sequence[ParsedAnswer]) -> list[Message]:
    """Return the history that the turn after the last of `answers` is asked with.

    Args:
        recorded: the conversation as prep stored it.
        answers: one for each target turn so far, in order.

    Raises:
        OutputRejectedError: `tool_calls_differ`.
    """
    end = recorded.targets[len(answers)]
    places = dict(zip(recorded.targets, answers, strict=False))
    replay = _Replay()
    for index, message in enumerate(recorded.messages[:end]):
        if index in places:
            replay.say(message, places[index])
        else:
            replay.hear(message)
    return replay.history


def _names(calls: Sequence[ToolCall]) -> str:
    return ", ".join(call.name for call in calls) or "no call"
