"""Does a template keep every part of a conversation of this shape? Found with sentinel words.

Guarantee: a part is a question, an answer's content, a call's name, a call's arguments, a result or
the declared tools; each is replaced by a word that stands nowhere else, the conversation is
rendered once, and a word that is missing names its message and part. So a short content that
happens to stand elsewhere in the text hides nothing. Reasoning is not looked for: templates drop it
from history on purpose. Price: one more rendering for each shape that was not seen before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eagled.errors import RowRejectedError
from eagled.text.messages import Message, Role, ToolCall

if TYPE_CHECKING:
    from eagled.text.render import Renderer, Request

_REMEMBERED = 4096  # shapes; a few hundred bytes each
_PARTS = {
    Role.SYSTEM: "the system text",
    Role.USER: "the question",
    Role.ASSISTANT: "the content of the answer",
    Role.TOOL: "the tool result",
}
Shape = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Sentinel:
    """A word and what it stands for."""

    word: str
    part: str


class Shapes:
    """Remembers which shapes of conversations a renderer's template keeps whole."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: OrderedDict[Shape, str | None] = OrderedDict()

    def lost(self, request: Request) -> str | None:
        """Say which part of such a conversation the template loses; None if it is whole."""
        shape = _shape_of(request)
        if shape not in self._known:
            self._known[shape] = self._missing(request)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[shape]

    def _missing(self, request: Request) -> str | None:
        words = _Words()
        messages = [words.message(i, m) for i, m in enumerate(request.messages)]
        worded = replace(
            request, messages=messages, tools=(words.tool(),) if request.tools else None
        )
        found = self._absent(worded, words.sentinels)
        if not found and words.names:
            # a result can show the name of its call in the id, where the call itself is lost
            found = self._absent(replace(worded, messages=_unbound(messages)), words.sentinels)
            found = found if all(one in words.names for one in found) else []
        return f"the chat template does not print {found[0].part}" if found else None

    def _absent(self, request: Request, sentinels: list[_Sentinel]) -> list[_Sentinel]:
        """Return the words that a rendering lacks; none if the template refuses these words."""
        try:
            text = self._renderer.render(request)
        except RowRejectedError:  # it looks into the texts; then the row's own check has to do
            return []
        return [sentinel for sentinel in sentinels if sentinel.word not in text]


def _unbound(messages: list[Message]) -> list[Message]:
    """Return messages whose results name no call."""
    return [
        m if m.tool_call_id is None else replace(m, tool_call_id="functions.qzunboundx:0")
        for m in messages
    ]


def _shape_of(request: Request) -> Shape:
    messages = tuple(
        (m.role, bool(m.content.strip()), m.reasoning is not None, len(m.tool_calls))
        for m in request.messages
    )
    return (messages, bool(request.tools), request.thinking, request.generation)


@dataclass(slots=True)
class _Words:
    """Makes messages of the same shape out of sentinel words."""

    sentinels: list[_Sentinel] = field(default_factory=list)
    names: list[_Sentinel] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)  # the row's call id -> the sentinel call's

    def message(self, index: int, message: Message) -> Message:
        where = f"of message {index} ({message.role})"
        content = message.content
        if content.strip():
            content = self._word(f"t{index}", f"{_PARTS[message.role]} {where}")
        calls = tuple(
            self._call(call, f"{index}c{n}", f"of call {n} {where}")
            for n, call in enumerate(message.tool_calls)
        )
        answered = message.tool_call_id
        return Message(
            message.role,
            content,
            None if message.reasoning is None else "qzreason",
            calls,
            None if answered is None else self.ids.get(answered, answered),
        )

    def tool(self) -> dict[str, object]:
        name = self._word("declared", "the declared tools")
        parameters = {"type": "object", "properties": {"key": {"type": "string"}}}
        function = {"name": name, "description": name, "parameters": parameters}
        return {"type": "function", "function": function}

    def _call(self, call: ToolCall, place: str, where: str) -> ToolCall:
        name = self._word(f"n{place}", f"the name {where}")
        self.names.append(self.sentinels[-1])
        value = self._word(f"a{place}", f"the arguments {where}")
        call_id = f"functions.{name}:{len(self.ids)}"
        self.ids[call.id] = call_id
        return ToolCall(call_id, name, f'{{"key": "{value}"}}')

    def _word(self, kind: str, part: str) -> str:
        word = f"qz{kind}x"  # closed by a letter, so that none is the beginning of another
        self.sentinels.append(_Sentinel(word, part))
        return word
