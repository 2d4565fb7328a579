"""Read tool calls out of an answer's text, by the markers that its model family uses.

Guarantee: a call is whole or it is an error; nothing is repaired by guess. A new family is one
entry in `SYNTAXES`. Odd call ids (a line feed inside, no number) never make a call vanish.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass


class ToolCallError(ValueError):
    """The call section does not parse; the message says where."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call as the model wrote it; `arguments` is its JSON text, `id` None if it writes none."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """How one family writes calls.

    Attributes:
        name: for messages.
        marker: text that begins a call section and never stands in an answer without one.
        parse: splits an answer into (content, calls); raises `ToolCallError`.
    """

    name: str
    marker: str
    parse: Callable[[str], tuple[str, tuple[ParsedCall, ...]]]


_KIMI_SECTION = re.compile(
    r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.DOTALL
)
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL
)
_KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)\s*(?::\s*\d+)?")
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _parse_kimi(text: str) -> tuple[str, tuple[ParsedCall, ...]]:
    section = _KIMI_SECTION.search(text)
    if section is None:
        raise ToolCallError("the call section has no end")
    if _KIMI_CALL.sub("", section[1]).strip():
        raise ToolCallError("the call section holds text that is no whole call")
    calls = tuple(_kimi_call(found[1], found[2]) for found in _KIMI_CALL.finditer(section[1]))
    if not calls:
        raise ToolCallError("the call section is empty")
    return text[: section.start()] + text[section.end() :], calls


def _kimi_call(call_id: str, arguments: str) -> ParsedCall:
    found = _KIMI_ID.fullmatch(call_id.strip())
    if found is None:
        raise ToolCallError(f"the call id {call_id!r} names no function")
    return ParsedCall(found["name"], _object_text(arguments), call_id.strip())


def _parse_tagged(text: str) -> tuple[str, tuple[ParsedCall, ...]]:
    rest = _TAGGED.sub("", text)
    if "<tool_call>" in rest or "</tool_call>" in rest:
        raise ToolCallError("a <tool_call> block is not closed or not opened")
    calls = tuple(_tagged_call(found[1]) for found in _TAGGED.finditer(text))
    first = text.index("<tool_call>")
    after = rest[first:].strip()
    return text[:first].rstrip("\n") + (f"\n{after}" if after else ""), calls


def _tagged_call(body: str) -> ParsedCall:
    value = _json(body)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise ToolCallError("a call has no name")
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ParsedCall(value["name"], _object_text(text))


def _object_text(text: str) -> str:
    if not isinstance(_json(text), dict):
        raise ToolCallError("the arguments of a call are not a JSON object")
    return text.strip()


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ToolCallError(f"a call is not JSON: {exc}") from exc


SYNTAXES: tuple[ToolSyntax, ...] = (
    ToolSyntax("kimi", "<|tool_calls_section_begin|>", _parse_kimi),
    ToolSyntax("tagged JSON", "<tool_call>", _parse_tagged),
)


def syntax_of(text: str) -> ToolSyntax | None:
    """Return the syntax whose marker is in `text`; None if there is no call."""
    return next((syntax for syntax in SYNTAXES if syntax.marker in text), None)
