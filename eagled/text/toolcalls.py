"""Read tool calls out of an answer's text, by the markers that its model family uses.

Guarantee: a call is whole or it is an error; nothing is repaired by guess. Odd call ids (a line
feed inside, no number) never make a call vanish. Which syntax holds for a model: `families.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from eagled.text.calls import ParsedCall, ToolCallError, json_value, object_text

Parsed = tuple[str, tuple[ParsedCall, ...]]


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """How one family writes calls.

    Attributes:
        name: for messages.
        begins: whether a text has calls.
        parse: splits such a text into (content, calls); raises `ToolCallError`.
    """

    name: str
    begins: Callable[[str], bool]
    parse: Callable[[str], Parsed]


_KIMI_SECTION = re.compile(
    r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.DOTALL
)
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL
)
_KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)\s*(?::\s*\d+)?")
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_XML_CALL = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
_XML_VALUE = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_DEEPSEEK_SECTION = re.compile(
    "<\uff5ctool\u2581calls\u2581begin\uff5c>(.*?)<\uff5ctool\u2581calls\u2581end\uff5c>", re.DOTALL
)
_DEEPSEEK_CALL = re.compile(
    "<\uff5ctool\u2581call\u2581begin\uff5c>(.*?)<\uff5ctool\u2581sep\uff5c>(.*?)"
    "<\uff5ctool\u2581call\u2581end\uff5c>",
    re.DOTALL,
)
_DEEPSEEK_FENCED = re.compile(r"\s*(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```\s*", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_ARGUMENTS = frozenset({"parameters", "arguments"})


def _sectioned(
    section: re.Pattern[str], call: re.Pattern[str], text: str
) -> tuple[str, list[tuple[str, str]]]:
    """Return (text around the call section, the two parts of each call in it)."""
    found = section.search(text)
    if found is None:
        raise ToolCallError("the call section has no end")
    if call.sub("", found[1]).strip():
        raise ToolCallError("the call section holds text that is no whole call")
    bodies = [(match[1], match[2]) for match in call.finditer(found[1])]
    if not bodies:
        raise ToolCallError("the call section is empty")
    return text[: found.start()] + text[found.end() :], bodies


def _parse_kimi(text: str) -> Parsed:
    content, bodies = _sectioned(_KIMI_SECTION, _KIMI_CALL, text)
    return content, tuple(map(_kimi_call, bodies))


def _kimi_call(parts: tuple[str, str]) -> ParsedCall:
    call_id, arguments = parts
    found = _KIMI_ID.fullmatch(call_id.strip())
    if found is None:
        raise ToolCallError(f"the call id {call_id!r} names no function")
    return ParsedCall(found["name"], object_text(arguments), call_id.strip())


def _parse_deepseek(text: str) -> Parsed:
    content, bodies = _sectioned(_DEEPSEEK_SECTION, _DEEPSEEK_CALL, text)
    return content, tuple(map(_deepseek_call, bodies))


def _deepseek_call(parts: tuple[str, str]) -> ParsedCall:
    """Read `NAME sep ARGS` (V3.1) or `function sep NAME` and fenced arguments (V3)."""
    head, rest = parts
    fenced = _DEEPSEEK_FENCED.fullmatch(rest)
    if fenced is not None:
        return ParsedCall(fenced["name"].strip(), object_text(fenced["arguments"]))
    if not head.strip():
        raise ToolCallError("a call has no name")
    return ParsedCall(head.strip(), object_text(rest))


def _parse_tagged(text: str) -> Parsed:
    rest = _TAGGED.sub("", text)
    if "<tool_call>" in rest or "</tool_call>" in rest:
        raise ToolCallError("a <tool_call> block is not closed or not opened")
    calls = tuple(_tagged_call(found[1]) for found in _TAGGED.finditer(text))
    first = text.index("<tool_call>")
    after = rest[first:].strip()
    return text[:first].rstrip("\n") + (f"\n{after}" if after else ""), calls


def _tagged_call(body: str) -> ParsedCall:
    if body.lstrip().startswith("<function="):
        return _xml_call(body)
    call = _named_object(json_value(body))
    if call is None:
        raise ToolCallError("a call has no name")
    return call


def _xml_call(body: str) -> ParsedCall:
    """Read the form of Qwen3-Coder: values are text, and print as the same text again."""
    found = _XML_CALL.fullmatch(body)
    if found is None or _XML_VALUE.sub("", found[2]).strip():
        raise ToolCallError("a <function=…> block is not whole")
    values = {value[1]: value[2] for value in _XML_VALUE.finditer(found[2])}
    return ParsedCall(found[1], json.dumps(values, ensure_ascii=False))


def _named_object(value: object) -> ParsedCall | None:
    """Return the call in an object with a name and arguments; None if it is something else."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ParsedCall(value["name"], object_text(text))


def _begins_llama(text: str) -> bool:
    """Whether an answer is a call: it has no marker of its own when it is bare JSON."""
    if _PYTHON_TAG in text:
        return True
    if not text.lstrip().startswith("{"):
        return False
    try:
        value = json_value(text)
    except ToolCallError:
        return False  # an answer that is no call may begin with a brace
    return isinstance(value, dict) and "name" in value and not _ARGUMENTS.isdisjoint(value)


def _parse_llama(text: str) -> Parsed:
    content, tagged, body = text.partition(_PYTHON_TAG)
    if not tagged:
        content, body = "", text
    call = _named_object(json_value(body))
    if call is None:
        raise ToolCallError("a call has no name")
    return content, (call,)


KIMI = ToolSyntax("kimi", lambda text: "<|tool_calls_section_begin|>" in text, _parse_kimi)
TAGGED = ToolSyntax("tagged JSON", lambda text: "<tool_call>" in text, _parse_tagged)
DEEPSEEK = ToolSyntax(
    "deepseek", lambda text: "<\uff5ctool\u2581calls\u2581begin\uff5c>" in text, _parse_deepseek
)
LLAMA = ToolSyntax("llama", _begins_llama, _parse_llama)
