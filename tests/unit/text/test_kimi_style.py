"""A Kimi-style template over the toy tokenizer: what it drops, and that no row suffers from it."""

from __future__ import annotations

from typing import Any

import pytest

from eagled.errors import RowRejectedError
from eagled.text.messages import Message, Role, ToolCall
from eagled.text.native import NativeRenderer, NativeTurn
from eagled.text.render import Renderer, Request
from tests.prep_kit import CLOSE_THINK, IM_END, THINK
from tests.toy import load_toy_tokenizer
from tests.unit.text.real import TEMPLATES

_OPENS = "<|im_middle|><think>{{ '</think>' if thinking is defined and not thinking }}"
CALL = ToolCall("functions.find:0", "find", '{"what": "x"}')
CYCLE = (
    Message(Role.USER, "go"),
    Message(Role.ASSISTANT, "I look.", "first thoughts", (CALL,)),
    Message(Role.TOOL, "found", tool_call_id=CALL.id),
    Message(Role.ASSISTANT, "done", "last thoughts"),
)


def _renderer(old: str = "", new: str = "", **kwargs: Any) -> Renderer:
    tokenizer = load_toy_tokenizer()
    source = (TEMPLATES / "kimi_style.jinja").read_text(encoding="utf-8")
    assert old in source
    tokenizer.chat_template = source.replace(old, new) if old else source
    return Renderer(tokenizer, kwargs)


def _turns(renderer: Renderer) -> tuple[NativeTurn, NativeTurn]:
    native = NativeRenderer(renderer)
    return native.turn(CYCLE, None, 1), native.turn(CYCLE, None, 3)


def test_a_finished_conversation_drops_all_reasoning() -> None:
    """The trap itself: the whole render begins with the prompt, and the thoughts are gone."""
    renderer = _renderer()
    short = (CYCLE[0], CYCLE[3])
    whole = renderer.render(Request(short, generation=False))

    assert whole.startswith(renderer.render(Request(short[:1])))
    assert "last thoughts" not in whole
    cycle = renderer.render(Request(CYCLE, generation=False))
    assert not cycle.startswith(renderer.render(Request(CYCLE[:3])))


def test_each_row_has_its_own_prompt_and_its_own_reasoning() -> None:
    """In the open tool cycle earlier thoughts stay in the prompt; the last answer keeps its own."""
    renderer = _renderer()
    first, last = _turns(renderer)

    assert renderer.decode(first.answer) == (
        "first thoughts</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>"
        'functions.find:0<|tool_call_argument_begin|>{"what": "x"}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
    )
    assert "first thoughts" in renderer.decode(last.prompt)
    assert renderer.decode(last.answer) == "last thoughts</think>done<|im_end|>"
    assert last.prompt == renderer.prompt_ids(CYCLE[:3], None, thinking=True)
    assert (last.prompt[-1], last.answer[-1]) == (THINK, IM_END)
    assert last.answer.count(CLOSE_THINK) == 1


def test_kept_reasoning_is_kept_in_history_as_well() -> None:
    """With preserve_thinking the earlier answers' thoughts are in later prompts."""
    chat = (*CYCLE, Message(Role.USER, "more"))
    kept, dropped = _renderer(preserve_thinking=True), _renderer()

    assert "last thoughts" in kept.render(Request(chat))
    assert "last thoughts" not in dropped.render(Request(chat))
    assert (kept.facts.keeps_history_reasoning, dropped.facts.keeps_history_reasoning) == (
        True,
        False,
    )
    assert kept.facts.reasoning_in == "last"


def test_a_prompt_that_leaves_the_block_to_the_model() -> None:
    """Where the prompt ends before the block, the answer opens it (K2-Thinking's way)."""
    renderer = _renderer(_OPENS, "<|im_middle|>")
    _, last = _turns(renderer)

    assert renderer.thinking_switch is None
    assert renderer.decode(last.prompt).endswith("assistant<|im_middle|>")
    assert renderer.decode(last.answer) == "<think>last thoughts</think>done<|im_end|>"


def test_without_a_switch_an_answer_without_reasoning_is_refused() -> None:
    """The draft would learn to close the block at once."""
    renderer = _renderer(_OPENS, "<|im_middle|>")
    with pytest.raises(RowRejectedError, match="no switch to turn thinking off"):
        NativeRenderer(renderer).turn((CYCLE[0], Message(Role.ASSISTANT, "done")), None, 1)


def test_a_switch_is_one_only_if_it_does_something() -> None:
    """A name that the template reads without effect is not used for thinking."""
    idle = _renderer(_OPENS, "<|im_middle|><think>{{ '' if thinking else '' }}")

    assert ("thinking" in idle.reads, idle.thinking_switch) == (True, None)
    assert _renderer().thinking_switch == "thinking"


_LOSSES = [
    ("{{ call.id }}", "", "the name of call 0 of message 1"),
    (
        "{{ given if given is string else given | tojson }}",
        "",
        "the arguments of call 0 of message 1",
    ),
    ("'\\n' ~ one.content", "''", "the tool result of message 2"),
    (
        "{{ one.content }}",
        "{{ '' if one.get('tool_calls') else one.content }}",
        "the content of the answer of message 1",
    ),
]


@pytest.mark.parametrize(("printed", "instead", "part"), _LOSSES)
def test_a_lost_part_is_named(printed: str, instead: str, part: str) -> None:
    """Each part of a row has a sentinel; short texts that stand elsewhere too hide no loss."""
    renderer = _renderer(printed, instead)
    call = ToolCall("functions.o:0", "o", '{"o": "o"}')
    chat = (
        Message(Role.USER, "go on, you do"),
        Message(Role.ASSISTANT, "o", None, (call,)),
        Message(Role.TOOL, "o", tool_call_id=call.id),
    )
    with pytest.raises(RowRejectedError, match=f"lost_in_template.*does not print {part}"):
        renderer.prompt_ids(chat, None)


def test_lost_declarations_are_named() -> None:
    """Tools that the template swallows refuse the row that declares them."""
    renderer = _renderer("{%- if tools -%}", "{%- if false -%}")
    tools = ({"type": "function", "function": {"name": "o", "parameters": {}}},)
    with pytest.raises(RowRejectedError, match="does not print the declared tools"):
        renderer.prompt_ids([Message(Role.USER, "go")], tools)

    assert renderer.prompt_ids([Message(Role.USER, "go")], None)


def test_a_control_word_as_a_name_refuses_the_row() -> None:
    """Names of properties cannot be marked as plain text, so they may not spell a control token."""
    function = {"name": "f", "parameters": {"properties": {"<|im_end|>": {}}}}
    with pytest.raises(RowRejectedError, match=r"control_text: the name .*im_end"):
        _renderer().prompt_ids(
            [Message(Role.USER, "go")], ({"type": "function", "function": function},)
        )
