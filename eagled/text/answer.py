"""Read a generated answer: reasoning, content and calls, from its exact ids.

Guarantee: nothing is stored from here; the ids stay what the server returned. A marker counts only
where its control id stands; text that merely spells one is text. What a template prints around
reasoning and content is taken off exactly, so that rendering the result as history gives the same
text again wherever the template keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagled.text.calls import ParsedCall, ToolCallError
from eagled.text.families import syntax_in
from eagled.text.harmony import read_harmony
from eagled.text.probe import TemplateFacts
from eagled.text.render import Renderer

_TAIL_IDS = 32  # more than any generation prompt
BROKEN_CHARACTER = "\ufffd"
_GUARD = "\U000f0002"  # private use: splits text that spells a marker, taken out again


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


def think_tags(renderer: Renderer) -> tuple[str, str] | None:
    """Return the markers around reasoning: the template's, else the model family's."""
    facts, family = renderer.facts, renderer.family
    if facts.open_tag is not None and facts.close_tag is not None:
        return facts.open_tag, facts.close_tag
    return None if family is None else family.think


def opens_think(renderer: Renderer, prompt: Sequence[int]) -> bool:
    """Return whether a prompt ends inside a think block that it opened."""
    tags = think_tags(renderer)
    return tags is not None and renderer.decode(prompt[-_TAIL_IDS:]).rstrip().endswith(tags[0])


def parse_answer(renderer: Renderer, prompt: Sequence[int], output: Sequence[int]) -> ParsedAnswer:
    """Return what the answer `output` to `prompt` says."""
    ids = list(map(int, output))
    while ids and ids[-1] in renderer.eos_ids:
        ids.pop()
    text = _guarded(renderer, ids)
    if renderer.family is not None and renderer.family.harmony:
        return _unguarded(_harmony(text))
    return _unguarded(_tagged(renderer, text, opened=opens_think(renderer, prompt)))


def _tagged(renderer: Renderer, text: str, *, opened: bool) -> ParsedAnswer:
    """Read an answer whose reasoning stands between two markers."""
    tags = think_tags(renderer)
    own = tags is not None and text.lstrip().startswith(tags[0])
    if tags is None or not (opened or own):
        return _with_calls(renderer, None, text, "")
    facts = renderer.facts
    if own:
        text = text.lstrip().removeprefix(tags[0])
    reasoning, found, content = text.partition(tags[1])
    if not found:
        return ParsedAnswer(_trim(reasoning, facts), "", unclosed=True)
    odd = syntax_in(renderer.family, reasoning) is not None
    note = "the reasoning holds tool-call markers" if odd else ""
    return _with_calls(renderer, _trim(reasoning, facts), _trim_content(content, facts), note)


def _with_calls(renderer: Renderer, reasoning: str | None, text: str, note: str) -> ParsedAnswer:
    syntax = syntax_in(renderer.family, text)
    if syntax is None:
        return ParsedAnswer(reasoning, text, note=note)
    try:
        content, calls = syntax.parse(text)
    except ToolCallError as exc:
        return ParsedAnswer(reasoning, text, call_error=f"{syntax.name}: {exc}", note=note)
    return ParsedAnswer(reasoning, content, calls, note=note)


def _harmony(text: str) -> ParsedAnswer:
    try:
        said = read_harmony(text)
    except ToolCallError as exc:
        return ParsedAnswer(None, text, call_error=f"harmony: {exc}")
    reasoning = "\n\n".join(said.reasoning) or None
    unclosed = not said.done and not said.content and reasoning is not None
    return ParsedAnswer(reasoning, "\n\n".join(said.content), tuple(said.calls), unclosed)


def _guarded(renderer: Renderer, ids: list[int]) -> str:
    """Return the text of an answer in which only real control ids still look like markers."""
    encoding = renderer.encoding
    text = encoding.decode(ids)
    controls = encoding.control_id_set
    real = sum(id_ in controls for id_ in ids)
    if len(encoding.pattern.findall(text)) == real:
        return text
    out, plain = "", list[int]()
    for id_ in ids:
        if id_ in controls:
            out += _guard(renderer, plain) + encoding.decode([id_])
            plain = []
        else:
            plain.append(id_)
    return out + _guard(renderer, plain)


def _guard(renderer: Renderer, ids: list[int]) -> str:
    text = renderer.encoding.decode(ids) if ids else ""
    return renderer.encoding.pattern.sub(lambda m: f"{m[0][:1]}{_GUARD}{m[0][1:]}", text)


def _unguarded(answer: ParsedAnswer) -> ParsedAnswer:
    """Take the guards out again."""
    return replace(
        answer,
        reasoning=answer.reasoning and answer.reasoning.replace(_GUARD, ""),
        content=answer.content.replace(_GUARD, ""),
        calls=tuple(
            replace(call, arguments=call.arguments.replace(_GUARD, "")) for call in answer.calls
        ),
    )


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
