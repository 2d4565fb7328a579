"""Training ids of answers that the dataset already has: exact prompt, then exact answer.

Guarantee: a finished conversation is never rendered in one go (templates drop reasoning from it);
the answer's ids are reasoning, close, content, calls and stop token, with the literal parts read
off the template by the probe. What the prompt already holds, an empty think block for example, is
not in the answer. So the loss mask needs no search: 0 on the prompt, 1 on the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagled.errors import RowRejectedError
from eagled.text.messages import Message, Role, ToolCall, Tools
from eagled.text.probe import suffix_of
from eagled.text.render import Renderer
from eagled.types import RowReason

_ASKED = Message(Role.USER, "qzuserword")
_CONTENT = "qzcontentword"


@dataclass(frozen=True, slots=True)
class NativeTurn:
    """Exact ids of one answered turn; `thinking` is what the template was asked for."""

    prompt: list[int]
    answer: list[int]
    thinking: bool | None


class NativeRenderer:
    """Makes native turns with one renderer; remembers what each thinking setting prints."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._suffixes: dict[bool | None, str] = {}

    def turn(self, messages: Sequence[Message], tools: Tools | None, target: int) -> NativeTurn:
        """Return the ids of the answer at `target` behind everything before it.

        Raises:
            RowRejectedError: if the template cannot show the prompt, or has no way to say this
                answer: `lost_in_template`, `template_error` or `control_text`.
        """
        answer = messages[target]
        thinking, opening = self._opening(answer)
        prompt = self._renderer.prompt_ids(messages[:target], tools, thinking=thinking)
        text = opening + self._spoken(answer) + self._calls(answer.tool_calls)
        return NativeTurn(prompt, self._renderer.encode_pieces(text), thinking)

    def _opening(self, answer: Message) -> tuple[bool | None, str]:
        """Return (thinking to ask for, literal text that the answer has to begin with)."""
        wanted = answer.reasoning is not None
        thinking = wanted if self._renderer.thinking_switch else None
        suffix = self._suffix(thinking=thinking)
        opening = self._with_reasoning(suffix) if wanted else self._without_reasoning(suffix)
        return thinking, opening

    def _with_reasoning(self, suffix: str) -> str:
        head = self._renderer.facts.head_reasoning
        if head is None:
            detail = "the row has reasoning, and the chat template never prints any"
            raise RowRejectedError(RowReason.LOST_IN_TEMPLATE, detail)
        if head.startswith(suffix):
            return head[len(suffix) :]
        if head.rstrip() == suffix.rstrip():
            return ""
        detail = "the row has reasoning, and the prompt does not open a think block for it"
        raise RowRejectedError(RowReason.LOST_IN_TEMPLATE, detail)

    def _without_reasoning(self, suffix: str) -> str:
        facts = self._renderer.facts
        rest = facts.head_plain.removeprefix(suffix)
        if facts.head_plain.startswith(suffix) and not (
            facts.close_tag and facts.close_tag in rest
        ):
            return rest
        if facts.close_tag and suffix.rstrip().endswith(facts.close_tag):
            return ""
        detail = (
            "the prompt opens a think block, the row has no reasoning, and the chat template has "
            "no switch to turn thinking off: the draft would learn to close the block at once"
        )
        raise RowRejectedError(RowReason.TEMPLATE_ERROR, detail)

    def _spoken(self, answer: Message) -> str:
        content = str(self._renderer.mark(answer.content))
        if answer.reasoning is None:
            return content
        close = self._renderer.facts.think_close or ""
        return f"{self._renderer.mark(answer.reasoning)}{close}{content}"

    def _calls(self, calls: tuple[ToolCall, ...]) -> str:
        """Return the literal text behind the content: call section and stop token."""
        facts = self._renderer.facts
        if not calls:
            return facts.stop_text
        renderer = self._renderer
        shown = Message(Role.ASSISTANT, _CONTENT, tool_calls=calls)
        messages = renderer.mark(renderer.to_template([_ASKED, shown], facts.arguments))
        text = str(renderer.apply(messages, None, tokenize=False, add_generation_prompt=False))
        section = text.partition(_CONTENT)[2]
        if not facts.keeps_calls or any(call.name not in section for call in calls):
            detail = "the chat template does not print tool calls"
            raise RowRejectedError(RowReason.LOST_IN_TEMPLATE, detail)
        return _up_to_stop(section, facts.stop_text)

    def _suffix(self, *, thinking: bool | None) -> str:
        if thinking not in self._suffixes:
            self._suffixes[thinking] = suffix_of(self._renderer, thinking=thinking)
        return self._suffixes[thinking]


def _up_to_stop(section: str, stop_text: str) -> str:
    """Cut what templates print behind the stop token, a line feed for example."""
    end = section.rfind(stop_text)
    if end < 0:
        detail = f"a turn with tool calls does not end in {stop_text!r}"
        raise RowRejectedError(RowReason.TEMPLATE_ERROR, detail)
    return section[: end + len(stop_text)]
