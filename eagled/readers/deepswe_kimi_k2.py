"""SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K: agent runs with calls written as tags.

The system text lists the functions, answers hold `<function=NAME><parameter=KEY>VALUE</parameter>
</function>`, and user turns hold the results. All three become structure, so that the target's own
template prints them. Markers inside a value don't end it: a value ends where the next parameter or
the end of the call follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagled.readers.base import Format, RawCall, RawRow, RawTurn, Row, require_json
from eagled.readers.openai import read_messages
from eagled.text.messages import Tools
from eagled.types import Mode

_OFFERED = "We have access to the following functions"
_FUNCTION = re.compile(
    r"^[^\w\n]*BEGIN FUNCTION #\d+: *(?P<name>\S+).*\n(?P<body>(?s:.*?))^[^\w\n]*END FUNCTION #\d+",
    re.MULTILINE,
)
_PARAMETER = re.compile(
    r"^[ \t]*(?:\d+\.|\(\d+\))[ \t]+(?P<name>\S+)[ \t]+"
    r"\((?P<type>[^,()]+)(?:,\s*(?P<need>required|optional))?\):?[ \t]*(?P<text>.*)$",
    re.MULTILINE,
)
_ALLOWED = re.compile(r"^[ \t]*Allowed values:[ \t]*\[(?P<values>.*)\][ \t]*$", re.MULTILINE)
_RESULT = re.compile(r"(?P<exit>Exit code: [^\n]*\n)?Execution output of \[[^\]\n]*\]:\n?")
_CALL_OPEN = re.compile(r"<function=(?P<name>[^>\s]+)>")
_CALL_CLOSE = "</function>"
_VALUE_OPEN = re.compile(r"\s*<parameter=(?P<key>[^>\s]+)>")
_VALUE_CLOSE = re.compile(r"</parameter>(?=\s*(?:<parameter=[^>\s]+>|</function>))")
_BLANK = re.compile(r"\s*")
_CUT = re.compile(r"|<|<p[a-z]*|<parameter=[^>\s]*|</[a-z]*")  # where a call can end too early
_CUT_OPEN = re.compile(r"<function=[^>\s]*\Z")
_JSON_TYPES = frozenset({"array", "integer", "number", "boolean", "object"})


def _read(row: Row) -> RawRow:
    raw = read_messages(row)
    tools: Tools = ()
    turns: list[RawTurn] = []
    for turn in raw.turns:
        if turn.role == "system" and not tools:
            tools = _declared(turn.content)
        turns += _read_turn(turn, tools)
    return replace(raw, turns=tuple(turns), tools=tools, trajectory=True)


def _read_turn(turn: RawTurn, tools: Tools) -> list[RawTurn]:
    """Return the turn with its calls and results named; no turn for a blank system text."""
    match turn.role:
        case "system":
            bare = _system(turn, offered=bool(tools))
            return [bare] if bare.content else []
        case "assistant":
            return [_answer(turn, _types(tools))]
        case "user":
            return [_result(turn)]
    return [turn]


def _system(turn: RawTurn, *, offered: bool) -> RawTurn:
    if not offered:
        return turn
    return replace(turn, content=turn.content.partition(_OFFERED)[0].rstrip())


def _declared(text: str) -> Tools:
    tools = tuple(
        {"type": "function", "function": _function(found["name"], found["body"])}
        for found in _FUNCTION.finditer(text)
    )
    require_json(tools)
    return tools


def _function(name: str, body: str) -> dict[str, Any]:
    head, _, rest = body.partition("Parameters:")
    description = head.strip().removeprefix("Description:").strip()
    found = list(_PARAMETER.finditer(rest))
    ends = [*(match.start() for match in found), len(rest)][1:]
    properties = {
        match["name"]: _schema(match["type"].strip(), match["text"] + rest[match.end() : end])
        for match, end in zip(found, ends, strict=True)
    }
    required = [match["name"] for match in found if match["need"] == "required"]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": parameters}


def _schema(kind: str, text: str) -> dict[str, Any]:
    allowed = _ALLOWED.search(text)
    schema: dict[str, Any] = {"type": kind, "description": _ALLOWED.sub("", text).strip()}
    if allowed is not None:
        values = [value.strip(" `'\"") for value in allowed["values"].split(",")]
        schema["enum"] = values
    if kind == "array":
        schema["items"] = {"type": "integer"}  # the only array of this scaffold holds line numbers
    return schema


def _types(tools: Tools) -> dict[str, dict[str, str]]:
    """Return the declared type of each parameter of each function."""
    functions = [tool["function"] for tool in tools]
    return {
        function["name"]: {
            key: schema["type"] for key, schema in function["parameters"]["properties"].items()
        }
        for function in functions
    }


def _result(turn: RawTurn) -> RawTurn:
    head = _RESULT.match(turn.content)
    if head is None:
        return turn
    return RawTurn("tool", (head["exit"] or "") + turn.content[head.end() :])


def _answer(turn: RawTurn, types: Mapping[str, Mapping[str, str]]) -> RawTurn:
    """Take the calls out of an answer's text."""
    text, calls, kept, at = turn.content, list(turn.calls), "", 0
    broken, cut = None, False
    while opened := _CALL_OPEN.search(text, at):
        kept += text[at : opened.start()]
        arguments, at, broken = _arguments(text, opened.end(), types.get(opened["name"], {}))
        if broken is not None:
            cut = at < 0
            break
        calls.append(RawCall(None, opened["name"], arguments))
    if broken is None:
        kept += text[at:]
        cut = _CUT_OPEN.search(kept) is not None
        broken = "the call is cut in its name" if cut else None
    if not calls and broken is None:
        return turn
    return replace(turn, content=kept.rstrip(), calls=tuple(calls), broken=broken, cut=cut)


def _arguments(
    text: str, at: int, types: Mapping[str, str]
) -> tuple[dict[str, object], int, str | None]:
    """Read a call's parameters: (arguments, end, what is wrong); the end of a cut call is -1."""
    arguments: dict[str, object] = {}
    while opened := _VALUE_OPEN.match(text, at):
        closed = _VALUE_CLOSE.search(text, opened.end())
        if closed is None:
            return {}, -1, f"the call is cut in parameter {opened['key']!r}"
        key, value = opened["key"], _bare(text[opened.end() : closed.start()])
        if key in arguments:
            return {}, at, f"parameter {key!r} is given twice"
        try:
            arguments[key] = json.loads(value) if types.get(key) in _JSON_TYPES else value
        except (ValueError, RecursionError) as exc:
            return {}, at, f"parameter {key!r} is no {types[key]}: {exc}"
        at = closed.end()
    blank = _BLANK.match(text, at)
    at = blank.end() if blank is not None else at
    if text.startswith(_CALL_CLOSE, at):
        return arguments, at + len(_CALL_CLOSE), None
    cut = _CUT.fullmatch(text, at) is not None
    return {}, -1 if cut else at, "the call has no end" if cut else "text stands in the call"


def _bare(value: str) -> str:
    """Return a value without the one line feed on each side that the layout adds."""
    return value.removeprefix("\n").removesuffix("\n")


def _detects(row: Row) -> bool:
    messages = row.get("messages")
    if not isinstance(messages, list):
        return False
    texts = [str(m.get("content")) for m in messages[:3] if isinstance(m, dict)]
    return any("BEGIN FUNCTION #" in text or "<function=" in text for text in texts)


FORMAT = Format(
    name="deepswe-kimi-k2",
    rank=11,
    columns="messages[{role, content}], functions and calls inside the text",
    detects=_detects,
    read=_read,
    hub_ids=("SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K",),
    mode=Mode.NATIVE,
    fits=lambda row: "messages" in row,
)
