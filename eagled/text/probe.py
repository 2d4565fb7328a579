"""Find out what a chat template does, by rendering sentinel words through it.

Guarantee: nothing is known by a model's name. Each fact is read off rendered text: how a turn
ends, whether the prompt opens a think block, what stands between reasoning and content, whether
calls, results and declarations survive, and whether arguments are wanted as text or as objects.
The facts are stored beside the prepared data and shown by `eagled prep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from eagled.errors import ConfigError, RowRejectedError
from eagled.text.messages import Message, Role, ToolCall

if TYPE_CHECKING:
    from eagled.text.render import Renderer

_USER, _SYSTEM, _RESULT = "qzuserword", "qzsystemword", "qzresultword"
_CONTENT, _REASONING, _EARLIER = "qzcontentword", "qzreasonword", "qzearlierword"
_NAME, _KEY, _VALUE, _ID = "qzname", "qzkey", "qzvalue", "functions.qzname:0"
_ARGUMENTS = f'{{"{_KEY}": "{_VALUE}"}}'
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "qzdescription",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


class ArgumentsForm(StrEnum):
    """How the template wants tool arguments."""

    TEXT = "text"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What the probe found; texts are exactly as rendered.

    Attributes:
        stop_text: from the end of an answer up to and with its stop token.
        stop_id: id of the stop token.
        head_plain: what stands before the content of a last answer without reasoning.
        head_reasoning: what stands before the reasoning of an answer; None if it is never kept.
        think_close: what stands between reasoning and content; None likewise.
        arguments: form of tool arguments.
        keeps_*: whether that thing is in the rendered text.
        reasoning_in: the kind of turn that keeps its reasoning: last, tool, or None.
    """

    stop_text: str
    stop_id: int
    head_plain: str
    head_reasoning: str | None
    think_close: str | None
    reasoning_in: str | None
    arguments: ArgumentsForm
    keeps_later_system: bool
    keeps_tools: bool
    keeps_calls: bool
    keeps_call_ids: bool
    keeps_results: bool
    keeps_history_reasoning: bool

    @property
    def close_tag(self) -> str | None:
        """The marker that ends a think block, such as </think>."""
        return self.think_close.strip() if self.think_close else None

    @property
    def open_tag(self) -> str | None:
        """The marker that begins one, read off the closing one; None if the template has none."""
        opened = self.close_tag.replace("/", "", 1) if self.close_tag else ""
        return opened if opened and opened in (self.head_reasoning or "") else None

    def to_json(self) -> dict[str, Any]:
        """Return the facts for a manifest."""
        return asdict(self)


class _Prober:
    """Renders small conversations; a template that refuses one gives None."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.base = self.text([_user()]) or ""
        if _USER not in self.base:
            raise ConfigError("the chat template does not print what the user says")

    def text(
        self,
        messages: list[Message],
        *,
        form: ArgumentsForm = ArgumentsForm.TEXT,
        tools: bool = False,
        thinking: bool | None = None,
    ) -> str | None:
        try:
            out = self.renderer.apply(
                self.renderer.to_template(messages, form),
                [_TOOL] if tools else None,
                tokenize=False,
                add_generation_prompt=False,
                **self.renderer.arguments_with(thinking=thinking),
            )
        except RowRejectedError:
            return None
        return str(out)


def probe(renderer: Renderer) -> TemplateFacts:
    """Return the facts of a renderer's template with its arguments.

    Raises:
        ConfigError: if the template loses user text, or answers, or prints no stop token.
    """
    prober = _Prober(renderer)
    head_plain, stop_text, stop_id = _answer_frame(prober)
    form, called = _call_form(prober)
    reasoning_in, head_reasoning, think_close = _reasoning(prober, form)
    cycle = prober.text([*_called(), _tool_result()], form=form) or ""
    declared = prober.text([_user()], tools=True) or ""
    later = prober.text([_user(), _answer(), Message(Role.SYSTEM, _SYSTEM), _user()]) or ""
    history = prober.text([_user(), _answer(reasoning=_EARLIER), _user()]) or ""
    return TemplateFacts(
        stop_text=stop_text,
        stop_id=stop_id,
        head_plain=head_plain,
        head_reasoning=head_reasoning,
        think_close=think_close,
        reasoning_in=reasoning_in,
        arguments=form,
        keeps_later_system=_SYSTEM in later,
        keeps_tools=_NAME in declared,
        keeps_calls=_NAME in called and _VALUE in called,
        keeps_call_ids=_ID in called,
        keeps_results=_RESULT in cycle,
        keeps_history_reasoning=_EARLIER in history,
    )


def _user() -> Message:
    return Message(Role.USER, _USER)


def _answer(reasoning: str | None = None) -> Message:
    return Message(Role.ASSISTANT, _CONTENT, reasoning)


def _called(reasoning: str | None = None) -> list[Message]:
    call = ToolCall(_ID, _NAME, _ARGUMENTS)
    return [_user(), Message(Role.ASSISTANT, _CONTENT, reasoning, (call,))]


def _tool_result() -> Message:
    return Message(Role.TOOL, _RESULT, tool_call_id=_ID)


def _answer_frame(prober: _Prober) -> tuple[str, str, int]:
    """Return (text before an answer's content, text up to its stop token, id of that token)."""
    text = prober.text([_user(), _answer()]) or ""
    if not text.startswith(prober.base) or _CONTENT not in text:
        raise ConfigError("the chat template does not print an answer behind what was asked")
    head, tail = text[len(prober.base) :].split(_CONTENT, 1)
    stop = prober.renderer.find_control(tail)
    if stop is None:
        raise ConfigError(
            f"the chat template prints no stop token behind an answer (it prints {tail!r}); "
            "without one the draft never learns where an answer ends"
        )
    stop_id = prober.renderer.tokenizer.convert_tokens_to_ids(stop[0])
    return head, tail[: stop.end()], int(stop_id)


def _call_form(prober: _Prober) -> tuple[ArgumentsForm, str]:
    """Return how arguments are wanted, and a call rendered that way ("" if calls are refused)."""
    as_text = prober.text(_called(), form=ArgumentsForm.TEXT) or ""
    if _ARGUMENTS in as_text:
        return ArgumentsForm.TEXT, as_text
    as_object = prober.text(_called(), form=ArgumentsForm.OBJECT) or ""
    if _VALUE in as_object:
        return ArgumentsForm.OBJECT, as_object
    return ArgumentsForm.TEXT, as_text


def _reasoning(prober: _Prober, form: ArgumentsForm) -> tuple[str | None, str | None, str | None]:
    """Return (kind of turn that keeps reasoning, text before it, text behind it)."""
    tries = (
        ("last", [_user(), _answer(_REASONING)]),
        ("tool", _called(_REASONING)),
    )
    for thinking in (None, True):  # templates that think only when asked to
        for kind, messages in tries:
            text = prober.text(messages, form=form, thinking=thinking) or ""
            rest = text.removeprefix(prober.base)
            before, found, after = rest.partition(_REASONING)
            if found and _CONTENT in after:
                return kind, before, after.split(_CONTENT, 1)[0]
    return None, None, None


def suffix_of(renderer: Renderer, *, thinking: bool | None) -> str:
    """Return the text that the generation prompt adds behind a user turn."""
    messages = renderer.to_template([_user()], ArgumentsForm.TEXT)
    arguments = renderer.arguments_with(thinking=thinking)
    asked, prompt = (
        str(renderer.apply(messages, None, tokenize=False, add_generation_prompt=on, **arguments))
        for on in (False, True)
    )
    return prompt.removeprefix(asked)


def switch_of(renderer: Renderer, names: Sequence[str]) -> str | None:
    """Return the first of these arguments that changes what the template prints."""
    asked = renderer.to_template([_user()], ArgumentsForm.TEXT)
    finished = renderer.to_template([_user(), _answer(_REASONING)], ArgumentsForm.TEXT)

    def printed(name: str, *, on: bool) -> list[str]:
        arguments = {**renderer.kwargs, name: on}
        tries = ((asked, True), (finished, False))
        return [
            _printed(renderer, messages, prompt=prompt, arguments=arguments)
            for messages, prompt in tries
        ]

    return next((n for n in names if printed(n, on=True) != printed(n, on=False)), None)


def _printed(
    renderer: Renderer, messages: list[dict[str, Any]], *, prompt: bool, arguments: dict[str, Any]
) -> str:
    """Return the rendered text, or what the template says against it."""
    try:
        out = renderer.apply(
            messages, None, tokenize=False, add_generation_prompt=prompt, **arguments
        )
    except RowRejectedError as exc:
        return str(exc)
    return str(out)
