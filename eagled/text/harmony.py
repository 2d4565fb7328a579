"""Read an answer in OpenAI's harmony form: messages on channels, each with a header.

Guarantee: a call is whole or it is an error. Analysis is reasoning, the final channel and what is
said on commentary are content, a message with a recipient is a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from eagled.text.calls import ParsedCall, ToolCallError, object_text

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_RECIPIENT = re.compile(r"\bto=(\S+?)(?=<\||\s|$)")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")


@dataclass(slots=True)
class HarmonyAnswer:
    """What the messages of one answer say; `done` if it ends in content or a call."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[ParsedCall] = field(default_factory=list)
    done: bool = False


def read_harmony(text: str) -> HarmonyAnswer:
    """Return what an answer says.

    Args:
        text: its decoded ids, behind a prompt that ends in the header of an assistant message.

    Raises:
        ToolCallError: if a call is not whole.
    """
    answer = HarmonyAnswer()
    for part in text.split(_START):
        header, found, body = part.partition(_MESSAGE)
        if not found:
            continue  # a header alone says nothing
        _add(answer, header, body)
    return answer


def _add(answer: HarmonyAnswer, header: str, body: str) -> None:
    for end in _ENDS:
        body = body.partition(end)[0]
    channel = header.partition(_CHANNEL)[2].partition("<|")[0].split(" ")[0].strip()
    recipient = _RECIPIENT.search(header)
    if recipient is not None:
        name = recipient[1].removeprefix("functions.")
        if not name:
            raise ToolCallError("a call names no function")
        answer.calls.append(ParsedCall(name, object_text(body)))
    elif channel == "analysis":
        answer.reasoning.append(body)
    else:
        answer.content.append(body)
    answer.done = recipient is not None or channel == "final"
