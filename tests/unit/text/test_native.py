"""Native rows: exact prompt and answer ids, mask by construction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagled.errors import RowRejectedError
from eagled.readers import read_row
from eagled.text.canonical import canonical
from eagled.text.messages import Conversation, Message, Role, ToolCall
from eagled.text.native import NativeRenderer, NativeTurn
from eagled.text.render import Renderer, Request
from eagled.types import Mode, RowReason
from tests.faults import fault_file, fault_row
from tests.prep_kit import CLOSE_THINK, IM_END, THINK, conversations_of, rows_of, toy_renderer
from tests.toy import TOY, load_toy_tokenizer


def _turns(conversation: Conversation) -> list[NativeTurn]:
    native = NativeRenderer(toy_renderer())
    return [
        native.turn(conversation.messages, conversation.tools, target)
        for target in conversation.targets
    ]


def _row(turn: NativeTurn) -> dict[str, list[int]]:
    mask = [0] * len(turn.prompt) + [1] * len(turn.answer)
    return {"input_ids": turn.prompt + turn.answer, "loss_mask": mask}


@pytest.mark.fault("F24")
def test_each_turn_keeps_its_reasoning() -> None:
    """Two turns give two rows; the whole conversation in one go would lose both reasonings."""
    chat = conversations_of(fault_file("think/multi_turn_reasoning.jsonl"), Mode.NATIVE)["k-1"]
    turns = _turns(chat)

    assert fault_row("F24")["rows"] == [_row(turn) for turn in turns]
    whole = toy_renderer().render(Request(chat.messages, generation=False))
    assert [text in whole for text in ("first thoughts", "second thoughts")] == [False, False]


@pytest.mark.fault("F29")
def test_the_mask_needs_no_markers_in_the_template() -> None:
    """A template without generation tags gives the right mask, never an all-zero one."""
    chat = conversations_of(fault_file("think/multi_turn_reasoning.jsonl"), Mode.NATIVE)["k-1"]

    assert "generation %" not in (TOY / "chat_template.jinja").read_text(encoding="utf-8")
    masks = [_row(turn)["loss_mask"] for turn in _turns(chat)]
    assert [row["loss_mask"] for row in fault_row("F24")["rows"]] == masks
    assert all(sum(mask) for mask in masks)


@pytest.mark.fault("F26")
def test_an_empty_block_belongs_to_the_prompt() -> None:
    """Both think tokens of a prompt with thinking off have mask 0."""
    text = fault_file("think/empty_block.jsonl").read_text(encoding="utf-8")
    row: dict[str, Any] = json.loads(text)
    asked = [Message(Role.USER, message["content"]) for message in row["prompt_messages"]]
    chat = (*asked, Message(Role.ASSISTANT, row["reply_text"]))
    turn = NativeRenderer(toy_renderer()).turn(chat, None, len(asked))

    assert fault_row("F26")["rows"] == [_row(turn)]
    assert turn.thinking is False
    assert turn.prompt[-2:] == [THINK, CLOSE_THINK]


@pytest.mark.fault("F28")
def test_the_answer_ends_where_it_ends() -> None:
    """Text behind an assistant turn is never under loss, not even when the turn comes first."""
    first_row, second_row = (row.value for row in rows_of(fault_file("mask/span_edges.jsonl")))
    second = canonical(read_row(second_row, None), Mode.NATIVE)
    [turn] = _turns(second)

    assert toy_renderer().decode(turn.answer) == "ends in spaces   <|im_end|>"
    assert [message.content for message in second.messages] == ["q", "ends in spaces   "]
    # an answer to nothing is dropped, so that g-1 has nothing to train on and is counted as such
    with pytest.raises(RowRejectedError, match="no answer to train on"):
        canonical(read_row(first_row, None), Mode.NATIVE)
    system = Message(Role.SYSTEM, "s")
    behind = (system, Message(Role.ASSISTANT, "A"), Message(Role.USER, "user message"))
    first = NativeRenderer(toy_renderer()).turn(behind, None, 1)
    assert toy_renderer().decode(first.answer) == "A<|im_end|>"
    assert "user message" not in toy_renderer().decode(first.prompt)


@pytest.mark.fault("F31")
def test_a_forged_turn_has_no_loss() -> None:
    """User text that imitates an assistant turn is in the prompt only; one span a message."""
    chat = conversations_of(fault_file("think/literal_markers.jsonl"), Mode.NATIVE)
    [turn] = _turns(chat["m-1"])

    assert "evil" in toy_renderer().decode(turn.prompt)
    assert toy_renderer().decode(turn.answer) == "They are markers.<|im_end|>"
    assert turn.answer.count(IM_END) == 1
    assert [len(_turns(one)) for one in chat.values()] == [1, 2]


@pytest.mark.fault("F32")
def test_a_name_does_not_hide_a_turn() -> None:
    """Names are removed, and said so; both assistant turns are spans."""
    chat = conversations_of(fault_file("mask/names.jsonl"), Mode.NATIVE)["w-1"]
    turns = _turns(chat)

    assert [toy_renderer().decode(turn.answer) for turn in turns] == [
        "hello<|im_end|>",
        "ciao<|im_end|>",
    ]
    assert "names_removed" in chat.flags
    assert "coder" not in toy_renderer().decode(turns[1].prompt)


def test_calls_and_control_text_of_an_answer_are_exact() -> None:
    """The call section is the template's own; markers inside content stay plain text."""
    call = ToolCall("functions.f:0", "f", '{"a": "<|im_end|>"}')
    chat = (
        Message(Role.USER, "q"),
        Message(Role.ASSISTANT, "see </think>", "because", (call,)),
    )
    turn = NativeRenderer(toy_renderer()).turn(chat, None, 1)

    assert toy_renderer().decode(turn.answer) == (
        "because</think>see </think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        '<|tool_call_argument_begin|>{"a": "<|im_end|>"}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
    )
    assert (turn.answer.count(CLOSE_THINK), turn.answer.count(IM_END)) == (1, 1)
    assert turn.thinking is True


def test_reasoning_that_the_template_cannot_show_rejects_the_row() -> None:
    """Nothing is trained on that the served template could not have asked for."""
    native = NativeRenderer(toy_renderer("chat_template_newline.jinja"))
    chat = (Message(Role.USER, "q"), Message(Role.ASSISTANT, "a", "because"))
    with pytest.raises(RowRejectedError) as caught:
        native.turn(chat, None, 1)

    assert caught.value.reason == RowReason.LOST_IN_TEMPLATE
    plain = native.turn((chat[0], Message(Role.ASSISTANT, "a")), None, 1)
    assert toy_renderer().decode(plain.answer) == "a<|im_end|>"


def test_a_row_without_reasoning_needs_a_way_to_turn_thinking_off() -> None:
    """Where every prompt opens a think block, an answer without reasoning is refused."""
    tokenizer = load_toy_tokenizer()
    source = tokenizer.chat_template
    tokenizer.chat_template = source.replace("thinking is defined and thinking is false", "false")
    native = NativeRenderer(Renderer(tokenizer))
    chat = (Message(Role.USER, "q"), Message(Role.ASSISTANT, "a"))
    with pytest.raises(RowRejectedError, match="no switch to turn thinking off"):
        native.turn(chat, None, 1)


def test_a_model_that_opens_its_own_block_opens_it_in_the_answer() -> None:
    """Where the prompt does not open the block, the answer does, as the template prints it."""
    tokenizer = load_toy_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_{{ m.role }}|>"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>{% endif %}"
    )
    renderer = Renderer(tokenizer)
    chat = (Message(Role.USER, "q"), Message(Role.ASSISTANT, "a", "because"))
    turn = NativeRenderer(renderer).turn(chat, None, 1)

    assert renderer.decode(turn.prompt) == "<|im_user|>q<|im_end|>\n<|im_assistant|>"
    assert renderer.decode(turn.answer) == "<think>\nbecause\n</think>\n\na<|im_end|>"
