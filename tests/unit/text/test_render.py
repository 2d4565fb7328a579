"""Rendering with the toy tokenizer: exact texts and ids from the fault index."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from eagled.errors import ConfigError, RowRejectedError
from eagled.readers import read_row
from eagled.text.canonical import canonical
from eagled.text.messages import Conversation, Message, Role
from eagled.text.probe import ArgumentsForm
from eagled.text.render import Renderer, Request, lost
from eagled.types import Mode, RowReason
from tests.faults import fault_file, fault_row
from tests.prep_kit import (
    CLOSE_THINK,
    IM_ASSISTANT,
    IM_END,
    IM_MIDDLE,
    THINK,
    conversations_of,
    toy_renderer,
)
from tests.toy import load_toy_tokenizer

BOS = 268
HELLO = (Message(Role.USER, "hello"),)


def _rendered(relpath: str, row_id: str) -> str:
    """Render the prompt of a row's last turn."""
    row = conversations_of(fault_file(relpath))[row_id]
    return toy_renderer().render(Request(row.messages[: row.targets[-1]], row.tools))


def _with_template(template: str) -> Renderer:
    tokenizer = load_toy_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer)


def test_the_probe_reads_the_template_off_its_output() -> None:
    """Every fact of the toy template is found without knowing its name."""
    facts = toy_renderer().facts

    assert (facts.stop_text, facts.stop_id) == ("<|im_end|>", IM_END)
    assert (facts.open_tag, facts.close_tag) == ("<think>", "</think>")
    assert facts.reasoning_in == "tool"
    assert facts.arguments is ArgumentsForm.TEXT
    kept = (facts.keeps_tools, facts.keeps_calls, facts.keeps_call_ids, facts.keeps_results)
    assert kept == (True, True, True, True)
    assert facts.keeps_later_system
    assert not facts.keeps_history_reasoning


def test_the_probe_sees_what_a_poor_template_loses() -> None:
    """A template without calls, tools and reasoning is known as such."""
    facts = toy_renderer("chat_template_newline.jinja").facts

    assert (facts.keeps_tools, facts.keeps_calls, facts.reasoning_in) == (False, False, None)
    assert facts.open_tag is None


def test_arguments_are_given_as_objects_where_text_would_be_encoded_twice() -> None:
    """The probe chooses the form that gives once-encoded JSON."""
    source = load_toy_tokenizer().chat_template
    renderer = _with_template(
        source.replace("(a if a is string else (a | tojson))", "(a | tojson)")
    )
    row = conversations_of(fault_file("tools/arguments_shape.jsonl"))["d-1"]

    assert renderer.facts.arguments is ArgumentsForm.OBJECT
    text = renderer.render(Request(row.messages[:3]))
    assert fault_row("F15")["rendered"]["d-1 and d-2"] == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].content", "not valid Jinja"),
        ("nothing", "does not print what the user says"),
        ("{% for m in messages %}<|im_user|>{{ m.content }}{% endfor %}", "no stop token"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: str, message: str) -> None:
    """Broken Jinja, lost user text and a missing stop token are configuration errors."""
    with pytest.raises(ConfigError, match=message):
        _ = _with_template(template).facts


@pytest.mark.fault("F23")
def test_template_arguments_that_are_not_read_are_refused() -> None:
    """A flag that the template does not read, or that is text, is refused with the right name."""
    cases: list[dict[str, Any]] = json.loads(
        fault_file("think/template_flags.json").read_text(encoding="utf-8")
    )["cases"]
    tails = []
    for case in cases:
        try:
            ids = Renderer(load_toy_tokenizer(), case).prompt_ids(HELLO, None)
        except ConfigError as exc:
            tails.append("refused: it reads: thinking" if "it reads: thinking" in str(exc) else "")
        else:
            tails.append({THINK: "open", CLOSE_THINK: "closed"}[ids[-1]])
            assert ids[-1] == THINK or ids[-2:] == [THINK, CLOSE_THINK]

    refused = "refused: it reads: thinking"
    assert ["closed", refused, refused, "open", "open"] == tails


def test_only_what_a_caller_may_give_counts_as_an_argument() -> None:
    """Variables that a template sets itself are none, defaults that it fills in are."""
    renderer = _with_template(
        "{% if not date is defined %}{% set date = 'May' %}{% endif %}"
        "{% for m in messages %}{% if m.content %}{% set text = m.content %}{% endif %}"
        "{{ text }}{{ date }}{{ style }}{% endfor %}"
    )

    assert renderer.reads == {"date", "style"}


def test_thinking_needs_a_switch_in_the_template() -> None:
    """Asking a template without a switch to think is a configuration error."""
    toy_renderer().require_thinking(thinking=False)
    with pytest.raises(ConfigError, match="reads neither thinking nor enable_thinking"):
        toy_renderer("chat_template_newline.jinja").require_thinking(thinking=True)


@pytest.mark.fault("F11")
def test_null_fields_never_show() -> None:
    """None and null are nowhere in a rendered text; a null question is an empty user turn."""
    path = fault_file("prep/null_fields.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    texts = [
        toy_renderer().render(Request(c.messages[: c.targets[-1]])) for c in _canonical(lines[:2])
    ]
    whole = [
        toy_renderer().render(Request(c.messages, generation=False)) for c in _canonical(lines[:2])
    ]

    assert fault_row("F11")["rendered"]["z-2"] == texts[1]
    assert not [text for text in texts + whole if "None" in text or "null" in text]
    with pytest.raises(RowRejectedError) as caught:
        _canonical(lines[2:])
    assert caught.value.reason == RowReason.EMPTY_USER_TURN


def _canonical(values: list[dict[str, Any]]) -> list[Conversation]:
    return [canonical(read_row(value, None), Mode.REGENERATE) for value in values]


@pytest.mark.fault("F14")
def test_call_ids_reach_the_template() -> None:
    """The canonical ids stand where the template prints them, results under their call."""
    lines = fault_file("tools/openai_ids.jsonl").read_text(encoding="utf-8").split("\n")
    one = _canonical([json.loads(lines[0])])[0]

    assert fault_row("F14")["rendered"]["t-1"] == toy_renderer().render(
        Request(one.messages[: one.targets[-1]])
    )


@pytest.mark.fault("F15")
def test_arguments_are_encoded_once_in_the_text() -> None:
    """Arguments given as text and as an object render to the same text."""
    expected = fault_row("F15")["rendered"]["d-1 and d-2"]

    assert expected == _rendered("tools/arguments_shape.jsonl", "d-1")
    assert expected == _rendered("tools/arguments_shape.jsonl", "d-2")


@pytest.mark.fault("F19")
def test_characters_in_arguments_stand_for_themselves() -> None:
    """No HTML or JSON escape is added on the way through the template."""
    text = _rendered("tools/arguments_shape.jsonl", "d-1")

    assert fault_row("F15")["rendered"]["d-1 and d-2"] == text
    assert not [escape for escape in ("\\u003c", "&#34;", "\\u00e9", "&lt;") if escape in text]


@pytest.mark.fault("F25")
def test_markers_in_content_are_plain_text() -> None:
    """Control tokens in user and tool text give no control ids: the turns counted are the turns."""
    for row in conversations_of(fault_file("think/literal_markers.jsonl")).values():
        for target in row.targets:
            asked = row.messages[:target]
            ids = toy_renderer().prompt_ids(asked, None)

            headers = len(asked) + 2  # the template's own system turn and the open answer
            assert headers == ids.count(IM_MIDDLE)
            assert headers - 1 == ids.count(IM_END)
            answered = sum(message.role is Role.ASSISTANT for message in asked)
            assert answered + 1 == ids.count(IM_ASSISTANT) == ids.count(THINK)
            assert answered == ids.count(CLOSE_THINK)
            assert asked[-1].content in toy_renderer().decode(ids)


def test_markers_are_refused_if_so_configured() -> None:
    """With literal_control_text = reject the row is set aside."""
    renderer = Renderer(load_toy_tokenizer(), literal_control_text="reject")
    with pytest.raises(RowRejectedError) as caught:
        renderer.prompt_ids([Message(Role.USER, "what is <think>?")], None)

    assert caught.value.reason == RowReason.CONTROL_TEXT


@pytest.mark.fault("F33")
def test_the_begin_token_is_there_once() -> None:
    """A tokenizer that adds [BOS] to a template that writes it does not double it."""
    text = json.loads(fault_file("mask/bos.json").read_text(encoding="utf-8"))["prompt_text"]
    tokenizer = load_toy_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", BOS)]
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>{% endif %}"
    )
    renderer = Renderer(tokenizer)

    assert tokenizer(text)["input_ids"].count(BOS) == 2  # what a naive caller gets
    ids = renderer.prompt_ids([Message(Role.USER, text.removeprefix("[BOS]"))], None)
    assert ids.count(BOS) == 1
    assert ids[0] == BOS
    assert renderer.prompt_ids([Message(Role.USER, text)], None).count(BOS) == 1


def test_lost_content_is_noticed() -> None:
    """Content or a call that is not in the text is named by its place."""
    renderer = _with_template(
        "{% for m in messages if m.role != 'system' %}"
        "<|im_user|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    chat = [Message(Role.USER, "ask"), Message(Role.SYSTEM, "be kind"), Message(Role.USER, "go")]
    with pytest.raises(RowRejectedError, match=r"lost_in_template: .*message 1 \(system\)"):
        renderer.prompt_ids(chat, None)

    assert lost("ask", chat[:1]) is None


def test_a_template_that_raises_costs_the_row() -> None:
    """What the template says is the detail of template_error."""
    renderer = _with_template(
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no such role') }}"
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(RowRejectedError, match="template_error: TemplateError: no such role"):
        renderer.prompt_ids([Message(Role.USER, "bad")], None)


def test_hashes_change_with_template_and_tokenizer() -> None:
    """Anything that changes ids changes a hash; loading again does not."""
    tokenizer = load_toy_tokenizer()
    one = Renderer(tokenizer)
    tokenizer.add_tokens(["<|more|>"])
    two = Renderer(tokenizer)

    assert one.tokenizer_hash == toy_renderer().tokenizer_hash != two.tokenizer_hash
    newline = toy_renderer("chat_template_newline.jinja")
    assert one.template_hash == two.template_hash != newline.template_hash
