"""nebius/SWE-agent-trajectories: runs of a shell agent, commands in fenced blocks.

The answers are a fine-tuned Llama's, so they are the context of a turn, never its target text. What
stood in the text becomes structure: the last fenced block of an answer is a call, the user turn
behind it is its result.
"""

from __future__ import annotations

import re

from eagled.errors import RowRejectedError
from eagled.readers.base import (
    Format,
    RawCall,
    RawRow,
    RawTurn,
    Row,
    list_of_objects,
    source_id_of,
    text_of,
)
from eagled.types import RowReason

_ANSWER = "ai"
_FENCE = re.compile(r"^```(\S*)[ \t]*$", re.MULTILINE)
_DISCUSSION = re.compile(r"\A\s*DISCUSSION[ \t]*(?:\n|$)")
_RESPONSE_FORMAT = "RESPONSE FORMAT:"  # from here on the system text explains the fenced blocks
_SUBMIT = "submit"
_TEXT_BEHIND = "text_after_command"
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run one command in the agent shell.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": _SUBMIT,
            "description": "End the session and submit the current changes.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
)


def _read(row: Row) -> RawRow:
    flags: set[str] = set()
    turns: list[RawTurn] = []
    for item in list_of_objects(row, "trajectory"):
        after_call = bool(turns) and bool(turns[-1].calls)
        turns.append(_turn(item, flags, after_call=after_call))
    if "exit_context" in text_of(row.get("exit_status"), "exit_status"):
        flags.add("exit_context")
    return RawRow(
        tuple(turns), TOOLS, source_id_of(row), frozenset(flags), trajectory=True,
        task=text_of(row.get("instance_id"), "instance_id") or None,
    )  # fmt: skip


def _turn(item: Row, flags: set[str], *, after_call: bool) -> RawTurn:
    role = item.get("role")
    if not isinstance(role, str):
        raise RowRejectedError(RowReason.UNKNOWN_ROLE, f"role is {role!r}")
    text = text_of(item.get("text"), "text")
    if role == "system":
        text = text or text_of(item.get("system_prompt"), "system_prompt")
        return RawTurn(role, text.partition(_RESPONSE_FORMAT)[0].rstrip())
    if role == _ANSWER:
        return _answer(text.replace("\r\n", "\n"), flags)
    return RawTurn("tool" if role == "user" and after_call else role, text)


def _answer(text: str, flags: set[str]) -> RawTurn:
    block = _last_block(text)
    content = _DISCUSSION.sub("", text if block is None else text[: block[0]], count=1)
    if block is None:
        return RawTurn(_ANSWER, content)
    _, start, end, behind = block
    if text[behind:].strip():
        flags.add(_TEXT_BEHIND)
    command = text[start:end].strip("\n")
    call = (
        RawCall(None, _SUBMIT, {})
        if command.strip() == _SUBMIT
        else RawCall(None, "bash", {"command": command})
    )
    return RawTurn(_ANSWER, content.rstrip(), calls=(call,))


def _last_block(text: str) -> tuple[int, int, int, int] | None:
    """Return (start, start of the command, its end, end) of the last closed fenced block."""
    found, opened = None, None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[1]:
            found = (opened.start(), opened.end() + 1, fence.start(), fence.end())
            opened = None
    return found


FORMAT = Format(
    name="nebius-swe-agent-trajectories",
    rank=10,
    columns="trajectory[{role, text, system_prompt}], instance_id, exit_status",
    detects=lambda row: "trajectory" in row,
    read=_read,
    hub_ids=("nebius/SWE-agent-trajectories",),
)
