"""Prompt ids by the target's own chat template, exactly as its server would make them.

Guarantee: text goes through the tokenizer's `apply_chat_template` and nothing else; control-token
text inside content is encoded as plain text or the row is refused; a part that the template
swallowed is noticed and named (`lost_in_template`). Price: a shape of conversation that
was not seen before is rendered once more (`shape.py`), a row with control-token text as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagled.config import TargetConfig
from eagled.errors import ConfigError, RowRejectedError
from eagled.text.encoding import Encoding
from eagled.text.families import Family, family_of
from eagled.text.messages import Message, Tools
from eagled.text.probe import ArgumentsForm, TemplateFacts, probe, switch_of
from eagled.text.rendered import RenderedText
from eagled.text.shape import Shapes
from eagled.text.tokenizer import generation_eos, load_tokenizer, template_hash, tokenizer_hash
from eagled.types import RowReason

THINKING_SWITCHES = ("thinking", "enable_thinking")
_BOOLEAN_SWITCHES = (*THINKING_SWITCHES, "preserve_thinking", "clear_thinking")
_NOT_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_TRUTHY_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "0", "1", "none", "null", ""})
_DEFECTS = (TypeError, ValueError, KeyError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True)
class Request:
    """What one rendering is made of; `thinking` None leaves it to template and arguments."""

    messages: Sequence[Message]
    tools: Tools | None = None
    thinking: bool | None = None
    generation: bool = True


class Renderer:
    """A tokenizer, its chat template and the configured template arguments."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - transformers has no types
        kwargs: Mapping[str, Any] | None = None,
        *,
        literal_control_text: str = "encode",
        extra_eos: frozenset[int] = frozenset(),
        family: str = "auto",
    ) -> None:
        self.tokenizer = tokenizer
        self.encoding = Encoding(tokenizer)
        self.family: Family | None = family_of(self.encoding.control_ids, family)
        self.kwargs = dict(kwargs or {})
        self._encode_control_text = literal_control_text == "encode"
        self._extra_eos = extra_eos
        self.tokenizer_hash = tokenizer_hash(tokenizer)
        self.template_hash = template_hash(tokenizer)
        self.vocab_size = len(tokenizer)
        self.reads = template_variables(tokenizer)
        self._shapes = Shapes(self)
        self._check_kwargs()
        if self._sanitizes_itself:
            tokenizer.chat_control_tokens = list(self.encoding.control_tokens)

    @classmethod
    def load(cls, target: TargetConfig, *, literal_control_text: str = "encode") -> Renderer:
        """Return the renderer of a target.

        Raises:
            ConfigError: if tokenizer, template or arguments are wrong.
        """
        return cls(
            load_tokenizer(target),
            target.template_kwargs,
            literal_control_text=literal_control_text,
            extra_eos=generation_eos(target),
            family=target.family,
        )

    @cached_property
    def facts(self) -> TemplateFacts:
        """What the template does with reasoning, calls and turn ends, found by trying it."""
        return probe(self)

    @cached_property
    def thinking_switch(self) -> str | None:
        """Name of the argument that turns reasoning on and off, if the template has one."""
        return switch_of(self, [name for name in THINKING_SWITCHES if name in self.reads])

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        known = {self.facts.stop_id, self.tokenizer.eos_token_id, *self._extra_eos}
        return frozenset(i for i in known if i is not None)

    @cached_property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts of `eos_ids`, the one behind a plain answer first."""
        own = str(self.tokenizer.convert_ids_to_tokens(self.facts.stop_id))
        known = (self.tokenizer.convert_ids_to_tokens(id_) for id_ in sorted(self.eos_ids))
        return tuple(dict.fromkeys([own, *(str(token) for token in known if token)]))

    def require_thinking(self, *, thinking: bool | None) -> None:
        """Check that the configured thinking can be asked for.

        Raises:
            ConfigError: if the template reads no switch for it.
        """
        if thinking is not None and self.thinking_switch is None:
            raise ConfigError(
                f"sampling.thinking = {str(thinking).lower()}, but the chat template reads neither "
                f"{' nor '.join(THINKING_SWITCHES)}; {self._readable()}"
            )

    def prompt_ids(
        self, messages: Sequence[Message], tools: Tools | None, *, thinking: bool | None = None
    ) -> list[int]:
        """Return the ids of a conversation, ending where the assistant starts to speak.

        Raises:
            RowRejectedError: `template_error`, `lost_in_template` or `control_text`.
        """
        request = Request(messages, tools, thinking)
        text = self.render(request)
        found = lost(text, messages) or self._shapes.lost(request)
        if found is not None:
            raise RowRejectedError(RowReason.LOST_IN_TEMPLATE, found)
        return self._ids(request, text)

    def render(self, request: Request) -> str:
        """Return the rendered text.

        Raises:
            RowRejectedError: `template_error`.
        """
        return str(self._apply(request, tokenize=False))

    def encode_pieces(self, text: str) -> list[int]:
        """Return the ids of `text`, in which `mark`ed control-token text stays plain text."""
        return self.encoding.encode(text)

    def mark(self, value: Any) -> Any:  # noqa: ANN401 - text, or a tree of it
        """Mark control-token text in content so that `encode_pieces` keeps it plain.

        Raises:
            RowRejectedError: `control_text`, if there is any and it cannot be kept plain.
        """
        if not self.encoding.has_control_text(value):
            return value
        self._require_plain()
        return self.encoding.mark(value)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, markers included."""
        return self.encoding.decode(ids)

    def to_template(self, messages: Sequence[Message], form: ArgumentsForm) -> list[dict[str, Any]]:
        """Return messages as the template wants them: arguments as text or as objects."""
        out = [message.to_json() for message in messages]
        if form is ArgumentsForm.OBJECT:
            for call in (call for message in out for call in message.get("tool_calls", ())):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return out

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        **kwargs: Any,  # noqa: ANN401 - what the template reads
    ) -> Any:  # noqa: ANN401 - text or ids
        """Call the tokenizer's `apply_chat_template`, everything explicit.

        Raises:
            RowRejectedError: `template_error`, with what the template said.
        """
        import jinja2

        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tools=tools, return_dict=False, **kwargs
            )
        except (jinja2.TemplateError, *_DEFECTS) as exc:
            detail = f"{type(exc).__name__}: {exc}"
            raise RowRejectedError(RowReason.TEMPLATE_ERROR, detail) from exc

    def arguments_with(self, *, thinking: bool | None) -> dict[str, Any]:
        """Return the template arguments for one rendering."""
        if thinking is None or self.thinking_switch is None:
            return self.kwargs
        return {**self.kwargs, self.thinking_switch: thinking}

    def _ids(self, request: Request, text: str) -> list[int]:
        """Return the ids of a request whose rendered text is known."""
        content = self.to_template(request.messages, self.facts.arguments)
        spells = self.encoding.has_control_text([content, request.tools])
        if spells:
            self._require_plain()
            self._refuse_keys([content, request.tools])
        if not self._sanitizes_itself:
            return self.encode_pieces(self._marked(request) if spells else text)
        if not spells:
            return self._rendered.ids(text)
        out = self._apply(request, tokenize=True, sanitize_control_tokens=True)
        ids = out["input_ids"] if isinstance(out, Mapping) else out
        return [int(i) for i in ids]

    @cached_property
    def _rendered(self) -> RenderedText:
        return RenderedText(self.tokenizer)

    def _marked(self, request: Request) -> str:
        """Render with control-token text marked, for a tokenizer that cannot do so itself."""
        tools = None if request.tools is None else [dict(tool) for tool in request.tools]
        messages = self.to_template(request.messages, self.facts.arguments)
        return str(
            self.apply(
                self.encoding.mark(messages),
                self.encoding.mark(tools),
                tokenize=False,
                add_generation_prompt=request.generation,
                **self.arguments_with(thinking=request.thinking),
            )
        )

    def _apply(self, request: Request, **kwargs: Any) -> Any:  # noqa: ANN401 - text or ids
        tools = None if request.tools is None else [dict(tool) for tool in request.tools]
        return self.apply(
            self.to_template(request.messages, self.facts.arguments),
            tools,
            add_generation_prompt=request.generation,
            **kwargs,
            **self.arguments_with(thinking=request.thinking),
        )

    def _require_plain(self) -> None:
        able = self._sanitizes_itself or self.encoding.can_keep_plain
        if not self._encode_control_text or not able:
            why = (
                "prep.literal_control_text = reject"
                if able
                else "this tokenizer cannot encode it as plain text"
            )
            raise RowRejectedError(RowReason.CONTROL_TEXT, f"content spells a control token; {why}")

    def _refuse_keys(self, value: object) -> None:
        key = self.encoding.spelled_key(value)
        if key is not None:
            detail = f"the name {key!r} in a tool or its arguments spells a control token"
            raise RowRejectedError(RowReason.CONTROL_TEXT, detail)

    @cached_property
    def _sanitizes_itself(self) -> bool:
        """Only the library's fast tokenizers do; one that brings its own rendering does not."""
        own = type(self.tokenizer).apply_chat_template
        return self.encoding.fast and own.__module__.startswith("transformers.")

    def find_control(self, text: str) -> re.Match[str] | None:
        """Return the first added token that `text` spells."""
        return self.encoding.pattern.search(text)

    def _check_kwargs(self) -> None:
        problems = [p for name, value in self.kwargs.items() if (p := self._problem(name, value))]
        if problems:
            raise ConfigError("target.template_kwargs cannot be used", tuple(problems))

    def _problem(self, name: str, value: object) -> str | None:
        shown = json.dumps(value)
        if name not in self.reads:
            return f"{name} = {shown}: the chat template does not read it; {self._readable()}"
        boolean = name in _BOOLEAN_SWITCHES and not isinstance(value, bool)
        if boolean or (isinstance(value, str) and value.strip().lower() in _TRUTHY_TEXT):
            return f"{name} = {shown}: must be true or false without quotes; {self._readable()}"
        return None

    def _readable(self) -> str:
        return f"it reads: {', '.join(sorted(self.reads)) or 'no arguments'}"


def template_variables(tokenizer: Any) -> frozenset[str]:  # noqa: ANN401 - transformers has no types
    """Return the names of the arguments that the chat template reads.

    Raises:
        ConfigError: if the template is not valid Jinja.
    """
    import jinja2
    import jinja2.meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = tokenizer.chat_template
    texts = template.values() if isinstance(template, Mapping) else [template]
    names: set[str] = set()
    for text in texts:
        try:
            environment = _compile_jinja_template(text).environment
            tree = environment.parse(text)
            names |= jinja2.meta.find_undeclared_variables(tree) - _own_variables(tree)
        except jinja2.TemplateError as exc:
            raise ConfigError(f"the chat template is not valid Jinja: {exc}") from exc
        names -= set(environment.globals)
    return frozenset(names - _NOT_ARGUMENTS - set(tokenizer.special_tokens_map))


def _own_variables(tree: Any) -> set[str]:  # noqa: ANN401 - a Jinja syntax tree
    """Return names that the template sets itself and never asks whether they were given."""
    import jinja2.nodes

    names = tree.find_all(jinja2.nodes.Name)
    stored = {node.name for node in names if node.ctx == "store"}
    tests = (node for node in tree.find_all(jinja2.nodes.Test) if node.name == "defined")
    asked = {test.node.name for test in tests if isinstance(test.node, jinja2.nodes.Name)}
    return stored - asked


def lost(text: str, messages: Sequence[Message]) -> str | None:
    """Say what of a conversation is missing in its rendered text; None if nothing is.

    Reasoning of earlier turns is not looked for: templates drop it on purpose.
    """
    for index, message in enumerate(messages):
        if message.content.strip() not in text:
            return f"the content of message {index} ({message.role}) is not in the rendered text"
        for call in message.tool_calls:
            if call.name not in text:
                return f"the call of {call.name!r} in message {index} is not in the rendered text"
    return None
