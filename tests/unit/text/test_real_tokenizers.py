"""Real tokenizers and chat templates against transformers' own rendering, ids and masks.

Masks are derived a second way: transformers' `return_assistant_tokens_mask` over the template with
generation tags written in, or the whole conversation's ids where its renders are prefixes.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagled.errors import RowRejectedError
from eagled.text.answer import parse_answer
from eagled.text.messages import Message, Role, ToolCall, Tools
from eagled.text.native import NativeRenderer
from eagled.text.probe import ArgumentsForm
from eagled.text.render import Renderer, Request
from eagled.types import RowReason
from tests.unit.text.real import harmony_renderer, real_renderer

NAMES = ("qwen3", "deepseek_v3", "llama3_1")
CALL = ToolCall("functions.find:0", "find", '{"what": "a <b> & é"}')
TOOLS: Tools = (
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Find it.",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
        },
    },
)
CHAT = (
    Message(Role.SYSTEM, "Be brief."),
    Message(Role.USER, "What is 7 * 6?"),
    Message(Role.ASSISTANT, "42, of course."),
    Message(Role.USER, "今天呢?\n\n```py\nx = 1\n```"),
    Message(Role.ASSISTANT, "Bien sûr 🤣."),
    Message(Role.USER, "Why?"),
)
CYCLE = (
    Message(Role.USER, "Find it."),
    Message(Role.ASSISTANT, "I look.", "Where could it be?", (CALL,)),
    Message(Role.TOOL, "It is here.", tool_call_id=CALL.id),
)


def _reference(renderer: Renderer, messages: Any, tools: Any = None, **kwargs: Any) -> list[int]:
    """Return the ids that transformers' own rendering gives."""
    values = [message.to_json() for message in messages]
    ids = renderer.tokenizer.apply_chat_template(
        values, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **kwargs
    )
    return list(ids)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [2, 4, 6])
def test_prompts_are_transformers_own(name: str, length: int) -> None:
    """Each prompt of a conversation, id for id."""
    renderer = real_renderer(name)

    assert _reference(renderer, CHAT[:length]) == renderer.prompt_ids(CHAT[:length], None)


@pytest.mark.parametrize("thinking", [None, True, False])
def test_tools_and_thinking_are_transformers_own(thinking: bool | None) -> None:  # noqa: FBT001 - parametrised
    """Declarations, a call, its result and the thinking switch of Qwen3."""
    renderer = real_renderer("qwen3")
    switch = {} if thinking is None else {"enable_thinking": thinking}

    assert renderer.thinking_switch == "enable_thinking"
    ours = renderer.prompt_ids(CYCLE, TOOLS, thinking=thinking)
    assert _reference(renderer, CYCLE, list(TOOLS), **switch) == ours
    for text in ('"name": "find"', "Where could it be?", '{"what": "a <b> & é"}', "It is here."):
        assert text in renderer.decode(ours)


_TEXT = st.text(st.characters(exclude_categories=["Cs", "Co"]), min_size=1, max_size=60)


@pytest.mark.parametrize("name", NAMES)
def test_any_text_round_trips(name: str) -> None:
    """Whatever the user says: transformers' ids, and the rendered text comes back from them."""
    renderer = real_renderer(name)

    @settings(deadline=None, max_examples=30)
    @given(text=_TEXT.filter(str.strip))
    def check(text: str) -> None:
        chat = [Message(Role.USER, text)]
        ids = renderer.prompt_ids(chat, None)
        assert _reference(renderer, chat) == ids
        assert renderer.render(Request(chat)) == renderer.decode(ids)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_control_text_in_content_gives_no_control_id(name: str) -> None:
    """As many control ids as with harmless words, and the text is still all there."""
    renderer = real_renderer(name)
    controls = renderer.encoding.control_id_set
    tokens = list(renderer.encoding.control_tokens)[:200]
    spelled = " and ".join(tokens)
    harmless, forged = (
        renderer.prompt_ids([Message(Role.USER, text)], None) for text in ("words", spelled)
    )

    def count(ids: list[int]) -> int:
        return sum(id_ in controls for id_ in ids)

    assert count(harmless) == count(forged)
    assert spelled in renderer.decode(forged)


# --- masks ----------------------------------------------------------------------------------


def _tagged_qwen3(source: str) -> str:
    """Write generation tags into Qwen3's template, around what the assistant says."""
    head = "{{- '<|im_start|>' + message.role + '\\n' }}{% generation %}"
    for printed in ("<think>\\n' + reasoning_content", "' + content }}"):
        source = source.replace(
            f"{{{{- '<|im_start|>' + message.role + '\\n{printed}", f"{head}{{{{- '{printed}"
        )
    source = source.replace(
        " + content.lstrip('\\n') }}", " + content.lstrip('\\n') }}{% endgeneration %}"
    )
    source = source.replace("'' + content }}", "'' + content }}{% endgeneration %}")
    calls, end = (
        "{%- if message.tool_calls %}",
        "{{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\"",
    )
    assert calls in source
    assert end in source
    source = source.replace(calls, "{% generation %}" + calls)
    return source.replace(
        end, "{{- '<|im_end|>' }}{% endgeneration %}" + end.replace("<|im_end|>", "")
    )


def _library_mask(messages: Any, tools: Any = None) -> tuple[list[int], list[int]]:
    """Return (ids, mask) of a finished Qwen3 conversation by transformers alone."""
    renderer = real_renderer("qwen3")
    template = _tagged_qwen3(str(renderer.tokenizer.chat_template))
    out = renderer.tokenizer.apply_chat_template(
        [message.to_json() for message in messages],
        tools=tools,
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return list(out["input_ids"]), list(out["assistant_masks"])


_ANSWERS = (
    Message(Role.ASSISTANT, "It is 42.", "Seven times six."),
    Message(Role.ASSISTANT, "I look.", "Where?", (CALL,)),
    Message(Role.ASSISTANT, "", "Where?", (CALL,)),
    Message(
        Role.ASSISTANT, "", "Both.", (CALL, ToolCall("functions.find:1", "find", '{"what": "c"}'))
    ),
)


@pytest.mark.parametrize("answer", _ANSWERS)
def test_qwen3_masks_are_those_of_the_library(answer: Message) -> None:
    """Prompt 0, reasoning, content, calls and stop token 1, whatever the answer is made of."""
    chat = (*CHAT[:2], answer)
    turn = NativeRenderer(real_renderer("qwen3")).turn(chat, TOOLS, 2)
    ids, mask = _library_mask(chat, list(TOOLS))
    n = len(turn.prompt) + len(turn.answer)

    assert ids[:n] == turn.prompt + turn.answer
    assert mask[:n] == [0] * len(turn.prompt) + [1] * len(turn.answer)
    assert (real_renderer("qwen3").decode(ids[n:]), sum(mask[n:])) == ("\n", 0)
    assert turn.answer[-1] == real_renderer("qwen3").facts.stop_id


def test_qwen3_without_reasoning_is_asked_without_thinking() -> None:
    """The empty block belongs to the prompt; the answer is content and stop token alone."""
    renderer = real_renderer("qwen3")
    turn = NativeRenderer(renderer).turn(CHAT[:3], None, 2)

    assert turn.thinking is False
    assert renderer.decode(turn.prompt).endswith("assistant\n<think>\n\n</think>\n\n")
    assert renderer.decode(turn.answer) == "42, of course.<|im_end|>"
    called = (*CHAT[:2], Message(Role.ASSISTANT, "", None, (CALL,)))
    section = renderer.decode(NativeRenderer(renderer).turn(called, None, 2).answer)
    assert section == (
        '<tool_call>\n{"name": "find", "arguments": {"what": "a <b> & é"}}\n</tool_call><|im_end|>'
    )


def test_earlier_reasoning_is_history_and_the_last_is_not() -> None:
    """A second question's prompt drops the first answer's reasoning; its own row keeps it."""
    renderer = real_renderer("qwen3")
    chat = (
        Message(Role.USER, "one?"),
        Message(Role.ASSISTANT, "first", "early thoughts"),
        Message(Role.USER, "two?"),
        Message(Role.ASSISTANT, "second", "late thoughts"),
    )
    first, second = (NativeRenderer(renderer).turn(chat, None, i) for i in (1, 3))

    assert "early thoughts" in renderer.decode(first.answer)
    assert "early thoughts" not in renderer.decode(second.prompt)
    assert "late thoughts" in renderer.decode(second.answer)
    assert _reference(renderer, chat[:3], enable_thinking=True) == second.prompt


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_1"])
@pytest.mark.parametrize("target", [2, 4])
def test_where_renders_are_prefixes_a_row_is_one(name: str, target: int) -> None:
    """Prompt and answer are the first ids of the conversation rendered whole."""
    renderer = real_renderer(name)
    turn = NativeRenderer(renderer).turn(CHAT, None, target)
    whole = list(
        renderer.tokenizer.apply_chat_template(
            [m.to_json() for m in CHAT], tokenize=True, return_dict=False
        )
    )
    row = turn.prompt + turn.answer

    assert whole[: len(row)] == row
    assert turn.answer[-1] == renderer.facts.stop_id
    assert renderer.decode(turn.answer) == f"{CHAT[target].content}{renderer.facts.stop_text}"


def test_prompt_and_answer_are_never_tokenised_together() -> None:
    """An answer that begins with a line feed would merge with its prompt's; here it stays apart."""
    renderer = real_renderer("qwen3")
    tokenizer = renderer.tokenizer
    head, said = "<|im_start|>assistant\n", "\nHello"
    apart = [
        id_ for text in (head, said) for id_ in tokenizer.encode(text, add_special_tokens=False)
    ]
    chat = (Message(Role.USER, "q"), Message(Role.ASSISTANT, said))
    # a template whose prompt ends in a line feed and prints no block
    chatml = copy.deepcopy(tokenizer)
    chatml.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    turn = NativeRenderer(Renderer(chatml)).turn(chat, None, 1)

    assert tokenizer.encode(head + said, add_special_tokens=False) != apart
    assert apart == (turn.prompt + turn.answer)[-len(apart) - 1 : -1]


# --- what a template loses ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_1"])
def test_declared_tools_that_are_not_printed_refuse_the_row(name: str) -> None:
    """These two templates ignore declarations; the row and the part are named."""
    with pytest.raises(RowRejectedError, match="does not print the declared tools") as caught:
        real_renderer(name).prompt_ids(CHAT[:2], TOOLS)

    assert caught.value.reason == RowReason.LOST_IN_TEMPLATE


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_1"])
def test_calls_that_are_not_printed_refuse_the_row(name: str) -> None:
    """A call that vanishes from history is named by its message, as an answer too."""
    with pytest.raises(RowRejectedError, match="call of 'find' in message 1"):
        real_renderer(name).prompt_ids(CYCLE, None)
    with pytest.raises(RowRejectedError, match="does not print tool calls"):
        NativeRenderer(real_renderer(name)).turn(
            (CYCLE[0], Message(Role.ASSISTANT, "I look.", None, (CALL,))), None, 1
        )


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_1"])
def test_reasoning_that_is_never_printed_refuses_the_row(name: str) -> None:
    """Neither template reads a reasoning field: such an answer is not trained on without it."""
    chat = (CHAT[1], Message(Role.ASSISTANT, "42", "Seven times six."))
    with pytest.raises(RowRejectedError, match="never prints any"):
        NativeRenderer(real_renderer(name)).turn(chat, None, 1)


# --- families and answers -------------------------------------------------------------------


def _ids(renderer: Renderer, text: str) -> list[int]:
    return list(renderer.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", [*NAMES, "gptoss"])
def test_the_family_is_found_by_tokens(name: str) -> None:
    """Nothing but the vocabulary tells which model it is."""
    expected = {"qwen3": "qwen3", "deepseek_v3": "deepseek-v3", "llama3_1": "llama3"}
    renderer = harmony_renderer() if name == "gptoss" else real_renderer(name)
    family = renderer.family
    assert family is not None

    assert expected.get(name, "gpt-oss") == family.name


def test_a_native_answer_reads_back_as_itself() -> None:
    """What a row says is what the reader of answers finds in its ids (Qwen3)."""
    renderer = real_renderer("qwen3")
    for answer in _ANSWERS:
        turn = NativeRenderer(renderer).turn((*CHAT[:2], answer), TOOLS, 2)
        read = parse_answer(renderer, turn.prompt, turn.answer)

        assert (answer.reasoning, answer.content) == (read.reasoning, read.content)
        assert [c.name for c in answer.tool_calls] == [c.name for c in read.calls]
        assert [json.loads(c.arguments) for c in answer.tool_calls] == [
            json.loads(c.arguments) for c in read.calls
        ]


_V3 = (
    "Sure.[calls begin][call begin]function[sep]find\n```json\n"
    '{"what": "x"}\n```[call end][calls end]'
)
_V31 = 'Sure.[calls begin][call begin]find[sep]{"what": "x"}[call end][calls end]'


def _deepseek(text: str) -> str:
    """Write DeepSeek's markers, which look like ASCII and are not, for words in brackets."""
    marker = re.compile(r"\[([a-z ]+)\]")
    return marker.sub(lambda m: f"<\uff5ctool\u2581{m[1].replace(' ', chr(0x2581))}\uff5c>", text)


@pytest.mark.parametrize("text", [_V3, _V31])
def test_deepseek_calls_are_read_in_both_forms(text: str) -> None:
    """With and without the fence; a section that is cut is an error."""
    renderer = real_renderer("deepseek_v3")
    prompt = renderer.prompt_ids(CHAT[:2], None)
    ids = _ids(renderer, _deepseek(text))
    answer = parse_answer(renderer, prompt, [*ids, renderer.facts.stop_id])
    cut = parse_answer(renderer, prompt, ids[:-1])

    assert [("find", '{"what": "x"}')] == [(c.name, c.arguments) for c in answer.calls]
    assert (answer.content, answer.call_error) == ("Sure.", None)
    assert cut.call_error == "deepseek: the call section has no end"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "find", "parameters": {"what": "x"}}', ["find"]),
        ('{"name": "Ada", "age": 3}', []),
        ("{not json}", []),
        ("plain", []),
    ],
)
def test_llama_calls_are_bare_json(text: str, calls: list[str]) -> None:
    """An object with a name and arguments is a call; any other text is content."""
    renderer = real_renderer("llama3_1")
    answer = parse_answer(
        renderer, renderer.prompt_ids(CHAT[:2], None), _ids(renderer, f"{text}<|eot_id|>")
    )

    assert calls == [call.name for call in answer.calls]
    assert answer.content == ("" if calls else text)
    assert answer.call_error is None


def test_a_spelled_marker_is_no_marker() -> None:
    """Tag text in an answer's plain ids neither opens a call nor closes reasoning (Qwen3)."""
    renderer = real_renderer("qwen3")
    plain = renderer.encode_pieces(renderer.mark("write <tool_call> or </think> here"))
    answer = parse_answer(renderer, renderer.prompt_ids(CHAT[:2], None), plain)

    assert answer.content == "write <tool_call> or </think> here"
    assert (answer.calls, answer.call_error) == ((), None)


# --- harmony --------------------------------------------------------------------------------


def test_harmony_facts_are_found() -> None:
    """Two stop tokens, arguments as objects, reasoning on a channel: all read off the template."""
    facts = harmony_renderer().facts

    assert facts.arguments is ArgumentsForm.OBJECT
    assert (facts.stop_text, facts.keeps_results, facts.keeps_history_reasoning) == (
        "<|return|>",
        True,
        False,
    )
    assert harmony_renderer().stop_texts == ("<|return|>", "<|call|>")


_HARMONY = (
    (Message(Role.ASSISTANT, "hi"), "<|channel|>final<|message|>hi<|return|>"),
    (
        Message(Role.ASSISTANT, "hi", "why"),
        (
            "<|channel|>analysis<|message|>why<|end|>"
            "<|start|>assistant<|channel|>final<|message|>hi<|return|>"
        ),
    ),
    (
        Message(Role.ASSISTANT, "", "why", (CALL,)),
        (
            "<|channel|>analysis<|message|>why<|end|><|start|>assistant to=functions.find"
            '<|channel|>commentary json<|message|>{"what": "a <b> & é"}<|call|>'
        ),
    ),
    (
        Message(Role.ASSISTANT, "", None, (CALL,)),
        ' to=functions.find<|channel|>commentary json<|message|>{"what": "a <b> & é"}<|call|>',
    ),
)


@pytest.mark.parametrize(("answer", "text"), _HARMONY)
def test_harmony_answers_are_made_and_read(answer: Message, text: str) -> None:
    """An answer ends in return, a call in call; the ids read back as the same answer."""
    renderer = harmony_renderer()
    turn = NativeRenderer(renderer).turn((Message(Role.USER, "q"), answer), None, 1)
    read = parse_answer(renderer, turn.prompt, turn.answer)

    assert text == renderer.decode(turn.answer)
    assert _ids(renderer, text) == turn.answer
    assert (answer.reasoning, answer.content) == (read.reasoning, read.content)
    assert [c.arguments for c in answer.tool_calls] == [c.arguments for c in read.calls]
    assert not read.unclosed


def test_harmony_analysis_without_an_answer_is_unclosed() -> None:
    """Reasoning that nothing follows is no answer; a call that is no object is an error."""
    renderer = harmony_renderer()
    prompt = renderer.prompt_ids([Message(Role.USER, "q")], None)
    thought = parse_answer(renderer, prompt, _ids(renderer, "<|channel|>analysis<|message|>why"))
    call = " to=functions.f<|channel|>commentary json<|message|>[1]<|call|>"

    assert (thought.unclosed, thought.reasoning, thought.content) == (True, "why", "")
    broken = parse_answer(renderer, prompt, _ids(renderer, call))
    assert broken.call_error == "harmony: the arguments of a call are not a JSON object"


def test_a_harmony_template_that_refuses_a_turn_costs_the_row() -> None:
    """Two calls in one message, or reasoning and content beside a call: the template says no."""
    native = NativeRenderer(harmony_renderer())
    two = Message(Role.ASSISTANT, "", None, (CALL, CALL))
    both = Message(Role.ASSISTANT, "say", "why", (CALL,))
    for answer, why in ((two, "one call a message"), (both, "not both")):
        with pytest.raises(RowRejectedError, match=f"template_error: TemplateError: .*{why}"):
            native.turn((Message(Role.USER, "q"), answer), None, 1)
