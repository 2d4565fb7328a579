"""Read a generated answer: reasoning, content and calls, from its exact ids.

Guarantee: nothing is stored from here; the ids stay what the server returned. What a template
prints around reasoning and content is taken off exactly, so that rendering the result as history
gives the same text again wherever the template keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagled.text.probe import TemplateFacts
from eagled.text.render import Renderer
from eagled.text.toolcalls import ParsedCall, ToolCallError, syntax_of

_TAIL_IDS = 32  # more than any generation prompt
BROKEN_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What an answer says.

    Attributes:
        reasoning: text of its think block, or None.
        content: text behind it, without calls.
        calls: whole calls, in order.
        unclosed: a think block was open and is not closed.
        call_error: why the call section does not parse, or None.
        note: something odd that does not spoil the answer.
    """

    reasoning: str | None
    content: str
    calls: tuple[ParsedCall, ...] = ()
    unclosed: bool = False
    call_error: str | None = None
    note: str = ""

    @property
    def broken_text(self) -> bool:
        """Whether decoding lost bytes (the ids are whole; only the text is not)."""
        return BROKEN_CHARACTER in self.content + (self.reasoning or "")


def opens_think(renderer: Renderer, prompt: Sequence[int]) -> bool:
    """Return whether a prompt ends inside a think block that it opened."""
    tag = renderer.facts.open_tag
    return tag is not None and renderer.decode(prompt[-_TAIL_IDS:]).rstrip().endswith(tag)


def parse_answer(renderer: Renderer, prompt: Sequence[int], output: Sequence[int]) -> ParsedAnswer:
    """Return what the answer `output` to `prompt` says."""
    ids = list(map(int, output))
    while ids and ids[-1] in renderer.eos_ids:
        ids.pop()
    text = renderer.decode(ids)
    facts = renderer.facts
    opened = opens_think(renderer, prompt)
    own = bool(facts.open_tag) and text.lstrip().startswith(facts.open_tag or "")
    if not (opened or own):
        return _with_calls(None, text, "")
    if own:
        text = text.lstrip().removeprefix(facts.open_tag or "")
    reasoning, found, content = text.partition(facts.close_tag or "")
    if not found:
        return ParsedAnswer(_trim(reasoning, facts), "", unclosed=True)
    note = "the reasoning holds tool-call markers" if syntax_of(reasoning) else ""
    return _with_calls(_trim(reasoning, facts), _trim_content(content, facts), note)


def _with_calls(reasoning: str | None, text: str, note: str) -> ParsedAnswer:
    syntax = syntax_of(text)
    if syntax is None:
        return ParsedAnswer(reasoning, text, note=note)
    try:
        content, calls = syntax.parse(text)
    except ToolCallError as exc:
        return ParsedAnswer(reasoning, text, call_error=f"{syntax.name}: {exc}", note=note)
    return ParsedAnswer(reasoning, content, calls, note=note)


def _trim(reasoning: str, facts: TemplateFacts) -> str | None:
    """Take off the line feeds that the template prints around reasoning."""
    head, close = facts.head_reasoning or "", facts.think_close or ""
    if head.endswith("\n"):
        reasoning = reasoning.removeprefix("\n")
    if close.startswith("\n"):
        reasoning = reasoning.removesuffix("\n")
    return reasoning if reasoning.strip() else None


def _trim_content(content: str, facts: TemplateFacts) -> str:
    close = facts.think_close or ""
    return content.lstrip("\n") if close.endswith("\n") else content
