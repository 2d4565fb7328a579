"""Training ids of answers that the dataset already has: exact prompt, then exact answer.

Guarantee: a finished conversation is never rendered in one go (templates drop reasoning from it);
the answer's ids are what the model would have had to say behind exactly that prompt: reasoning,
close, content, calls and stop token, with the literal parts read off the template, which is shown
the same kind of turn made of sentinel words. Where it drops a last answer's reasoning, the parts
come from a turn that keeps it (`probe.py`). What the prompt already holds, an empty think block for
example, is not in the answer. So the loss mask needs no search: 0 on the prompt, 1 on the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagled.errors import RowRejectedError
from eagled.text.messages import Message, Role, Tools
from eagled.text.probe import suffix_of
from eagled.text.render import Renderer
from eagled.types import RowReason

_ASKED = Message(Role.USER, "qzuserword")
_CONTENT, _REASONING = "qzcontentword", "qzreasonword"


@dataclass(frozen=True, slots=True)
class NativeTurn:
    """Exact ids of one answered turn; `thinking` is what the template was asked for."""

    prompt: list[int]
    answer: list[int]
    thinking: bool | None


@dataclass(frozen=True, slots=True)
class _Frame:
    """The literal text around an answer's own: before it, behind its reasoning, behind its content.

    `head` is everything from the end of the question, so it still holds what the prompt prints.
    """

    head: str
    between: str
    tail: str


class NativeRenderer:
    """Makes native turns with one renderer; remembers what each kind of plain answer prints."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._suffixes: dict[bool | None, str] = {}
        self._plain: dict[tuple[bool, bool | None], _Frame] = {}
        self._base = self._shown([_ASKED], thinking=None)

    def turn(self, messages: Sequence[Message], tools: Tools | None, target: int) -> NativeTurn:
        """Return the ids of the answer at `target` behind everything before it.

        Raises:
            RowRejectedError: if the template cannot show the prompt, or has no way to say this
                answer: `lost_in_template`, `template_error` or `control_text`.
        """
        answer = messages[target]
        thinking = answer.reasoning is not None if self._renderer.thinking_switch else None
        prompt = self._renderer.prompt_ids(messages[:target], tools, thinking=thinking)
        frame = self._frame(answer, thinking=thinking)
        mark = self._renderer.mark
        said = self._opening(frame, answer, thinking=thinking)
        if answer.reasoning is not None:
            said += f"{mark(answer.reasoning)}{frame.between}"
        said += f"{mark(answer.content)}{frame.tail}"
        return NativeTurn(prompt, self._renderer.encode_pieces(said), thinking)

    def _frame(self, answer: Message, *, thinking: bool | None) -> _Frame:
        kind = (answer.reasoning is not None, thinking)
        if answer.tool_calls or not answer.content:
            return self._made(answer, thinking=thinking)
        if kind not in self._plain:
            self._plain[kind] = self._made(answer, thinking=thinking)
        return self._plain[kind]

    def _made(self, answer: Message, *, thinking: bool | None) -> _Frame:
        """Show the template a turn of this kind and cut its text at the sentinel words."""
        shown = Message(
            Role.ASSISTANT,
            _CONTENT if answer.content else "",
            None if answer.reasoning is None else _REASONING,
            answer.tool_calls,
        )
        text = self._turn_text(shown, thinking=thinking)
        if any(call.name not in text for call in answer.tool_calls):
            raise _lost("the chat template does not print tool calls")
        if _REASONING not in text and answer.reasoning is not None:
            return self._frame_of_facts(answer)
        if answer.content and _CONTENT not in text:
            raise _lost("the chat template does not print the content of such an answer")
        head, _, rest = text.partition(_REASONING if answer.reasoning is not None else _CONTENT)
        if answer.reasoning is None:
            if answer.content:
                return _Frame(head, "", rest)
            return self._bare(text, shown, thinking=thinking)
        between, found, tail = rest.partition(_CONTENT)
        return _Frame(head, between, tail) if found else _Frame(head, "", rest)

    def _bare(self, text: str, shown: Message, *, thinking: bool | None) -> _Frame:
        """Cut a turn that has calls alone where the prompt ends, or its head does."""
        worded = Message(Role.ASSISTANT, _CONTENT, None, shown.tool_calls)
        head = self._turn_text(worded, thinking=thinking).partition(_CONTENT)[0]
        for start in (self._suffix(thinking=thinking), head):
            if text.startswith(start):
                return _Frame(start, "", text[len(start) :])
        raise _lost("the turn does not begin where its prompt ends")

    def _frame_of_facts(self, answer: Message) -> _Frame:
        """Return the frame of a last answer whose reasoning the template drops."""
        facts = self._renderer.facts
        if facts.head_reasoning is None or answer.tool_calls:
            raise _lost("the row has reasoning, and the chat template never prints any")
        return _Frame(facts.head_reasoning, facts.think_close or "", facts.stop_text)

    def _turn_text(self, shown: Message, *, thinking: bool | None) -> str:
        """Return what a turn prints behind its question, up to and with its stop token."""
        text = self._shown([_ASKED, shown], thinking=thinking)
        if not text.startswith(self._base):
            raise _lost("a turn is not printed behind its question")
        return self._up_to_stop(text[len(self._base) :])

    def _shown(self, messages: list[Message], *, thinking: bool | None) -> str:
        renderer = self._renderer
        return str(
            renderer.apply(
                renderer.mark(renderer.to_template(messages, renderer.facts.arguments)),
                None,
                tokenize=False,
                add_generation_prompt=False,
                **renderer.arguments_with(thinking=thinking),
            )
        )

    def _up_to_stop(self, text: str) -> str:
        """Cut what templates print behind the stop token, a line feed for example."""
        renderer = self._renderer
        stops = renderer.stop_texts
        end = max((text.rfind(stop) + len(stop) for stop in stops if stop in text), default=0)
        if not end or renderer.find_control(text[end:]) is not None:
            detail = f"such a turn does not end in a stop token ({', '.join(map(repr, stops))})"
            raise RowRejectedError(RowReason.TEMPLATE_ERROR, detail)
        return text[:end]

    def _opening(self, frame: _Frame, answer: Message, *, thinking: bool | None) -> str:
        """Return the literal text that the answer itself has to begin with."""
        suffix = self._suffix(thinking=thinking)
        if answer.reasoning is not None:
            return self._with_reasoning(frame.head, suffix)
        return self._without_reasoning(frame.head, suffix)

    def _with_reasoning(self, head: str, suffix: str) -> str:
        if head.startswith(suffix):
            return head[len(suffix) :]
        if head.rstrip() == suffix.rstrip():
            return ""
        raise _lost("the row has reasoning, and the prompt does not open a think block for it")

    def _without_reasoning(self, head: str, suffix: str) -> str:
        close_tag = self._renderer.facts.close_tag
        rest = head.removeprefix(suffix)
        if head.startswith(suffix) and not (close_tag and close_tag in rest):
            return rest
        if close_tag and suffix.rstrip().endswith(close_tag):
            return ""
        detail = (
            "the prompt opens a think block, the row has no reasoning, and the chat template has "
            "no switch to turn thinking off: the draft would learn to close the block at once"
        )
        raise RowRejectedError(RowReason.TEMPLATE_ERROR, detail)

    def _suffix(self, *, thinking: bool | None) -> str:
        if thinking not in self._suffixes:
            self._suffixes[thinking] = suffix_of(self._renderer, thinking=thinking)
        return self._suffixes[thinking]


def _lost(detail: str) -> RowRejectedError:
    return RowRejectedError(RowReason.LOST_IN_TEMPLATE, detail)
