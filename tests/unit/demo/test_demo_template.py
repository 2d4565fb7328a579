"""The demo's template override, rendered by transformers with the tiny model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from eagled.demo.convert import TEMPLATE

USER = {"role": "user", "content": "Area?"}
CALL = {"type": "function", "function": {"name": "area", "arguments": {"r": 2, "unit": "Å"}}}
TOOL = {"type": "function", "function": {"name": "area", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    """The tiny model's tokenizer with the demo's template."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


def render(tokenizer: Any, *messages: dict[str, Any], **options: Any) -> str:
    """Return the rendered text without the system turn."""
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    return text.split("<|im_end|>\n", 1)[1]


def test_plain_question(tokenizer: Any) -> None:
    """Without anything said about thinking the prompt ends in the assistant header."""
    text = render(tokenizer, USER, add_generation_prompt=True)

    assert "<|im_start|>user\nArea?<|im_end|>\n<|im_start|>assistant\n" == text
    assert text == render(tokenizer, USER, add_generation_prompt=True, thinking=False)
    assert text + "<think>\n" == render(tokenizer, USER, add_generation_prompt=True, thinking=True)


def test_generation_prompt_is_a_prefix_of_the_answered_turn(tokenizer: Any) -> None:
    """What is sent for a turn is exactly what stands before its answer in the next prompt."""
    answer = {"role": "assistant", "content": "12.6"}
    prompt = render(tokenizer, USER, add_generation_prompt=True)

    assert prompt + "12.6<|im_end|>\n" == render(tokenizer, USER, answer)


def test_tool_call_and_results(tokenizer: Any) -> None:
    """A call is JSON between tags; neighbouring results share one user turn."""
    call = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    results = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]
    block = '<tool_call>\n{"name": "area", "arguments": {"r": 2, "unit": "Å"}}\n</tool_call>'

    assert (
        "<|im_start|>user\nArea?<|im_end|>\n"
        f"<|im_start|>assistant\n{block}\n{block}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\na\n</tool_response>"
        "\n<tool_response>\nb\n</tool_response><|im_end|>\n"
    ) == render(tokenizer, USER, call, *results, tools=[TOOL])


def test_arguments_as_text_render_like_arguments_as_object(tokenizer: Any) -> None:
    """OpenAI's JSON text of arguments gives the same rendering as the object."""
    text = {"function": {"name": "area", "arguments": '{"r": 2, "unit": "Å"}'}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [c]} for c in (CALL, text)]

    assert render(tokenizer, USER, turns[0]) == render(tokenizer, USER, turns[1])


def test_tools_are_declared_in_the_system_turn(tokenizer: Any) -> None:
    """The given system text comes first, then one JSON line a tool."""
    system = {"role": "system", "content": "Be brief."}
    text = tokenizer.apply_chat_template([system, USER], tools=[TOOL], tokenize=False)
    head = text.split("<|im_end|>", 1)[0]

    assert head.startswith("<|im_start|>system\nBe brief.\n\n")
    assert '\n{"type": "function", "function": {"name": "area"' in head
    assert 1 == text.count("<|im_start|>system")


def test_reasoning_stays_only_after_the_last_user_turn(tokenizer: Any) -> None:
    """Reasoning of answered turns is left out of later prompts."""
    early = {"role": "assistant", "content": "1", "reasoning_content": "old"}
    late = {"role": "assistant", "content": "2", "reasoning_content": "new"}

    assert render(tokenizer, USER, early, USER, late) == (
        "<|im_start|>user\nArea?<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
        "<|im_start|>user\nArea?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew\n</think>\n\n2<|im_end|>\n"
    )


def test_unknown_role_is_an_error(tokenizer: Any) -> None:
    """A role that the template does not know is never dropped in silence."""
    with pytest.raises(Exception, match="unknown role alien"):
        render(tokenizer, {"role": "alien", "content": "x"})
