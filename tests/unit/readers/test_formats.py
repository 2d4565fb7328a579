"""What single formats do beyond the samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagled.errors import RowRejectedError
from eagled.readers import format_named, read_row
from eagled.text.canonical import canonical
from eagled.text.messages import Conversation, Message, Role
from eagled.types import Mode, RowReason

FUNCTIONS = """You mend code.

We have access to the following functions:

---- BEGIN FUNCTION #1: look ----
Description:
Look at a file.
Twice if need be.
Parameters:
  (1) path (string, required): Where.
  (2) lines (array, optional): Two numbers.
---- END FUNCTION #1 ----

---- BEGIN FUNCTION #2: finish ----
Description: Done.
No parameters are required for this function.
---- END FUNCTION #2 ----
"""


def _conversation(name: str, row: dict[str, Any], mode: Mode = Mode.REGENERATE) -> Conversation:
    return canonical(read_row(row, format_named(name)), mode)


def _reason(name: str, row: dict[str, Any], mode: Mode = Mode.REGENERATE) -> tuple[str, str]:
    with pytest.raises(RowRejectedError) as caught:
        _conversation(name, row, mode)
    return str(caught.value.reason), caught.value.detail


def _deepswe(*answers: str, system: str = FUNCTIONS) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Mend it"}]
    for answer in answers:
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": "Execution output of [look]:\nfine"})
    return {"messages": messages[:-1]}


def _native(row: dict[str, Any]) -> Conversation:
    return _conversation("deepswe-kimi-k2", row, Mode.NATIVE)


def _arguments(message: Message) -> list[dict[str, Any]]:
    return [json.loads(call.arguments) for call in message.tool_calls]


def _nebius(*texts: str) -> dict[str, Any]:
    turns = [{"role": "user", "text": "Mend it"}]
    for text in texts:
        turns += [{"role": "ai", "text": text}, {"role": "user", "text": "seen"}]
    return {"trajectory": turns}


def test_deepswe_functions_are_read_from_either_layout() -> None:
    """Descriptions over several lines, parameters in brackets, and a function without any."""
    found = _native(_deepswe("<function=finish>\n</function>"))

    assert found.tools is not None
    look, finish = (tool["function"] for tool in found.tools)
    assert "Look at a file.\nTwice if need be." == look["description"]
    assert ["path"] == look["parameters"]["required"]
    assert {"type": "string", "description": "Where."} == look["parameters"]["properties"]["path"]
    assert {} == finish["parameters"]["properties"]
    assert "You mend code." == found.messages[0].content
    assert [{}] == _arguments(found.messages[2])


def test_deepswe_values_keep_tags_that_are_text() -> None:
    """A value ends where the next parameter or the call's end follows, not at the first tag."""
    text = "a </parameter> b\n</function> c"
    call = f"<function=look><parameter=path>{text}</parameter></function>"
    found = _native(_deepswe(f"One. {call} Two. {call}"))

    assert [{"path": text}, {"path": text}] == _arguments(found.messages[2])
    assert "One.  Two." == found.messages[2].content


@pytest.mark.parametrize(
    "end",
    [
        "<function=lo",
        "<function=look>",
        "<function=look><parameter=pa",
        "<function=look><parameter=path>x",
        "<function=look><parameter=path>x</parameter>",
        "<function=look><parameter=path>x</parameter></func",
    ],
)
def test_deepswe_a_cut_call_drops_the_last_turn_only(end: str) -> None:
    """Wherever the last call ends too early; before it nothing changes, inside it is refused."""
    whole = "Fine. <function=look><parameter=path>x</parameter></function>"
    found = _native(_deepswe(whole, f"Then {end}"))

    assert ("trimmed_trailing", "trimmed_truncated_final") == found.flags
    assert (2,) == found.targets
    reason, detail = _reason("deepswe-kimi-k2", _deepswe(f"Then {end}", whole), Mode.NATIVE)
    assert RowReason.UNPARSEABLE_TOOL_CALL == reason
    assert "the call" in detail


@pytest.mark.parametrize(
    ("call", "detail"),
    [
        ("<function=look>junk</function>", "text stands in the call"),
        ("<function=look><parameter=lines>[1,</parameter></function>", "is no array"),
        (
            "<function=look><parameter=path>a</parameter><parameter=path>b</parameter></function>",
            "given twice",
        ),
    ],
)
def test_deepswe_nothing_is_repaired_by_guess(call: str, detail: str) -> None:
    """A call that is not as declared is refused with what is wrong, even in the last turn."""
    reason, found = _reason("deepswe-kimi-k2", _deepswe(call), Mode.NATIVE)

    assert RowReason.UNPARSEABLE_TOOL_CALL == reason
    assert detail in found


def test_deepswe_a_result_without_a_call_is_an_orphan() -> None:
    """The header says result, so it is not taken for a question."""
    row = _deepswe("No call here.", "Nor here.")

    assert RowReason.ORPHAN_TOOL_RESULT == _reason("deepswe-kimi-k2", row, Mode.NATIVE)[0]


def test_nebius_only_closed_blocks_are_commands() -> None:
    """Text without a block, an open block and text behind a block are told apart."""
    found = _conversation(
        "nebius-swe-agent-trajectories",
        _nebius("DISCUSSION\nplain", "open\n```\nls", "last\n```py\nrm x\n```\nbye"),
    )
    answers = [m for m in found.messages if m.role is Role.ASSISTANT]

    assert ["plain", "open\n```\nls", "last"] == [m.content for m in answers]
    assert [[], [], [{"command": "rm x"}]] == [_arguments(m) for m in answers]
    assert ("text_after_command",) == found.flags
    assert [Role.USER, Role.USER, Role.TOOL] == [found.messages[i].role for i in (2, 4, 6)]


def test_nebius_blank_answers_and_odd_turns_are_refused() -> None:
    """A blank answer makes a run useless; a turn without role or text has its reason."""
    name = "nebius-swe-agent-trajectories"

    assert RowReason.EMPTY_ASSISTANT_TURN == _reason(name, _nebius("  "))[0]
    assert RowReason.UNKNOWN_ROLE == _reason(name, {"trajectory": [{"text": "x"}]})[0]
    assert RowReason.MISSING_FIELD == _reason(name, {"trajectory": None})[0]
    odd = {"trajectory": [{"role": "user", "text": {"a": 1}}]}
    assert RowReason.BAD_SCHEMA == _reason(name, odd)[0]


def test_glaive_a_cut_last_call_is_dropped_and_an_inner_one_refused() -> None:
    """Without its end marker the last call is unfinished; with it, it is unreadable."""
    system = 'SYSTEM: - {"name": "f", "parameters": {}}'
    head = 'USER: a\n\n\nASSISTANT: <functioncall> {"name": "f", "argum'
    cut = _conversation("glaive-function-calling-v2", {"system": system, "chat": head})

    assert ("trimmed_truncated_final",) == cut.flags
    assert (1,) == cut.targets
    row = {"system": system, "chat": head + " <|endoftext|>"}
    reason = _reason("glaive-function-calling-v2", row)[0]
    assert RowReason.UNPARSEABLE_TOOL_CALL == reason


def test_glaive_text_before_the_first_marker_is_not_dropped_silently() -> None:
    """A chat that does not begin with a role is refused."""
    for chat in ("hello", "intro\n\n\nUSER: a"):
        row = {"system": "", "chat": chat}
        assert RowReason.BAD_SCHEMA == _reason("glaive-function-calling-v2", row)[0]


def test_openai_calls_of_the_old_kind_are_calls() -> None:
    """`function_call` and the role `function` are not lost, nor is `developer`."""
    call = {"name": "f", "arguments": '{"a": 1}'}
    found = _conversation(
        "openai",
        {
            "messages": [
                {"role": "developer", "content": "Be brief"},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "function_call": call},
                {"role": "function", "name": "f", "content": "1"},
            ]
        },
    )

    assert [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL] == [m.role for m in found.messages]
    assert "functions.f:0" == found.messages[3].tool_call_id


def test_sharegpt_calls_under_their_own_role_are_calls() -> None:
    """`function_call` holds JSON, `observation` its result; one that is no JSON is refused."""
    turns = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": '[{"name": "f", "arguments": {}}, {"name": "g"}]'},
        {"from": "observation", "value": "1"},
        {"from": "observation", "value": "2"},
    ]
    found = _conversation("sharegpt", {"conversations": turns})

    assert ["f", "g"] == [call.name for call in found.messages[1].tool_calls]
    assert ["functions.f:0", "functions.g:1"] == [m.tool_call_id for m in found.messages[2:]]
    turns[1]["value"] = '{"name"'
    row = {"conversations": turns}
    assert RowReason.UNPARSEABLE_TOOL_CALL == _reason("sharegpt", row)[0]


def test_alpaca_history_comes_first() -> None:
    """Earlier pairs stand before the question, behind the system text."""
    row = {
        "instruction": "c",
        "input": "d",
        "output": "e",
        "system": "s",
        "history": [["a", "b"]],
    }
    found = _conversation("alpaca", row)

    assert ["s", "a", "b", "c\n\nd", "e"] == [m.content for m in found.messages]
    row["history"] = [["a"]]
    assert RowReason.BAD_SCHEMA == _reason("alpaca", row)[0]


@pytest.mark.parametrize(
    ("row", "contents", "targets"),
    [
        ({"prompt": "a"}, ["a"], (1,)),
        ({"turns": ["a", "b"]}, ["a", "", "b"], (1, 3)),
        ({"prompts": ["a"]}, ["a"], (1,)),
        ({"prompt": [{"role": "user", "content": "a"}]}, ["a"], (1,)),
        ({"problem": "a", "system": "s"}, ["s", "a"], (2,)),
    ],
)
def test_prompts_have_a_place_for_each_answer(
    row: dict[str, Any], contents: list[str], targets: tuple[int, ...]
) -> None:
    """One prompt, several of one chat, or messages under that name."""
    found = _conversation("prompt", row)

    assert contents == [m.content for m in found.messages]
    assert targets == found.targets


def test_bfcl_schemas_become_json_schema() -> None:
    """Odd type names are translated at every depth, names of properties are never touched."""
    parameters = {
        "type": "dict",
        "properties": {
            "type": {"type": "float"},
            "list": {"type": "tuple", "items": {"type": "any"}},
            "file": {"type": "file"},
        },
    }
    question = [[{"role": "user", "content": "q"}], [{"role": "user", "content": "r"}]]
    function = {"name": "a.b", "description": "d", "parameters": parameters}
    found = _conversation("bfcl", {"id": "x", "question": question, "function": [function]})

    assert found.tools is not None
    shown = found.tools[0]["function"]
    assert ("a_b", "object") == (shown["name"], shown["parameters"]["type"])
    assert {
        "type": {"type": "number"},
        "list": {"type": "array", "items": {}},
        "file": {},
    } == shown["parameters"]["properties"]
    assert (1, 3) == found.targets
    alone = {"question": question, "involved_classes": ["C"]}
    assert RowReason.TOOLS_UNDECLARED == _reason("bfcl", alone)[0]


def test_tooltalk_calls_come_before_what_was_said_of_them() -> None:
    """Several calls of a turn, one of which failed, keep their order and results."""
    calls = [
        {"request": {"api_name": "f", "parameters": {"x": 1}}, "response": {"ok": True}},
        {"request": {"api_name": "g", "parameters": {}}, "response": None, "exception": "no"},
    ]
    turns = [
        {"role": "user", "text": "Do it"},
        {"role": "assistant", "text": "Half done", "apis": calls},
    ]
    found = _conversation("tooltalk", {"conversation_id": "9", "conversation": turns})

    assert [
        ("user", "Do it"),
        ("assistant", ""),
        ("tool", '{"ok": true}'),
        ("tool", '{"exception": "no"}'),
        ("assistant", "Half done"),
    ] == [(m.role, m.content) for m in found.messages]
    assert ("9", (1, 4)) == (found.source_id, found.targets)


def test_codeio_asks_for_code() -> None:
    """Task and specification are the question."""
    row = {"task_description": "t", "input_output_spec": "s", "code_sample": "x = 1\n"}
    found = _conversation("codeio", row)

    assert ["t\n\ns", "```python\nx = 1\n```"] == [m.content for m in found.messages]
    assert RowReason.MISSING_FIELD == _reason("codeio", {"task_description": "t"})[0]
