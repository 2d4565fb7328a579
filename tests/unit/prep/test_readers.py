"""Formats: which columns they know, and the faults of their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagled.errors import ConfigError, RowRejectedError
from eagled.readers import format_named, formats, read_row
from eagled.text.canonical import arguments_text, canonical
from eagled.text.messages import Role, to_json
from eagled.types import Mode, RowReason
from tests.faults import fault_file
from tests.prep_kit import conversations_of, rows_of

_NAN = float("nan")
NAMES = [
    "nebius-swe-agent-trajectories",
    "deepswe-kimi-k2",
    "glaive-function-calling-v2",
    "glaive-function-calling-v1",
    "opencodeinstruct",
    "magicoder-evol-instruct",
    "mixture-of-thoughts",
    "openthoughts-114k",
    "ultrachat-200k",
    "infinity-instruct",
    "open-perfectblend",
    "bfcl",
    "tooltalk",
    "codeio",
    "sharegpt-vicuna-unfiltered",
    "openai",
    "sharegpt",
    "alpaca",
    "instruction",
    "prompt",
    "kimi-k25-2000x",
]


def _reason(value: object, mode: Mode = Mode.REGENERATE) -> str:
    with pytest.raises(RowRejectedError) as caught:
        canonical(read_row(value, None), mode)
    return str(caught.value.reason)


def _chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def test_formats_are_found_and_asked_in_order() -> None:
    """Every module with a FORMAT is known, one dataset's before the generic ones."""
    assert [known.name for known in formats()] == NAMES

    row = {"prompt": "column", **_chat(("user", "turn"))}

    assert [turn.content for turn in read_row(row, None).turns] == ["turn"]


def test_a_format_can_be_forced_and_a_wrong_word_is_refused() -> None:
    """`format` overrides detection; an unknown one names those that are accepted."""
    row = {"prompt": "column", **_chat(("user", "turn"))}

    assert [turn.content for turn in read_row(row, format_named("instruction")).turns] == ["column"]
    with pytest.raises(ConfigError, match=", ".join(["auto", *NAMES])):
        format_named("parrot")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1, 2], RowReason.BAD_SCHEMA),
        ({"a": 1}, RowReason.MISSING_FIELD),
        ({"messages": None}, RowReason.MISSING_FIELD),
        ({"messages": "text"}, RowReason.BAD_SCHEMA),
        ({"messages": ["text"]}, RowReason.BAD_SCHEMA),
        ({"messages": []}, RowReason.EMPTY_CONVERSATION),
        (_chat(("owl", "hoo")), RowReason.UNKNOWN_ROLE),
        ({"messages": [{"role": "user", "content": 5}]}, RowReason.BAD_SCHEMA),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, RowReason.BAD_SCHEMA),
        (_chat(("assistant", "hi")), RowReason.NO_USER_TURN),
        (_chat(("user", " \n")), RowReason.EMPTY_USER_TURN),
        (_chat(("user", "half \ud83d")), RowReason.BAD_ENCODING),
        ({**_chat(("user", "q")), "tools": "{"}, RowReason.BAD_SCHEMA),
        ({**_chat(("user", "q")), "tools": [{"x": _NAN, "name": "f"}]}, RowReason.BAD_SCHEMA),
    ],
)  # fmt: skip
def test_a_broken_row_has_its_reason(row: object, reason: RowReason) -> None:
    """Each way a row can be wrong has one word."""
    assert reason == _reason(row)


def test_native_rows_need_an_answer_to_train_on() -> None:
    """Blank, missing and unclosed answers cannot be native."""
    blank = _chat(("user", "q"), ("assistant", " "))
    unclosed = _chat(("user", "q"), ("assistant", "<think>hm"))

    assert _reason(blank, Mode.NATIVE) == RowReason.EMPTY_ASSISTANT_TURN
    assert _reason(_chat(("user", "q")), Mode.NATIVE) == RowReason.EMPTY_ASSISTANT_TURN
    assert _reason(unclosed, Mode.NATIVE) == RowReason.UNCLOSED_THINK


def test_text_parts_are_joined_and_names_are_dropped_with_a_flag() -> None:
    """Content is always one string; a name never reaches the template."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [{"role": "user", "content": parts, "name": "eve"}]}

    conversation = canonical(read_row(row, None), Mode.REGENERATE)

    assert [{"role": "user", "content": "ab"}] == to_json(conversation.messages)
    assert conversation.flags == ("names_removed",)
    assert conversation.targets == (1,)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, '{"a": 1}'),
        ('{"a":1}', '{"a": 1}'),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        (None, "{}"),
        ("", "{}"),
        ({"é": "<b>"}, '{"é": "<b>"}'),
    ],
)
def test_arguments_are_encoded_once(value: object, text: str) -> None:
    """Text, object and doubly encoded text give the same arguments."""
    assert text == arguments_text(value)


@pytest.mark.parametrize("value", ["[1]", "nope", 5, {"a": float("nan")}, '{"a": NaN}', '"x"'])
def test_arguments_that_are_no_object_are_refused(value: object) -> None:
    """Nothing is repaired by guess, and NaN never becomes null."""
    with pytest.raises(RowRejectedError, match="unparseable_tool_call"):
        arguments_text(value)


def test_a_call_of_an_undeclared_function_is_refused_only_beside_declarations() -> None:
    """Without any declaration nothing can be undeclared."""
    call = {"function": {"name": "f", "arguments": {}}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]

    assert _reason({"messages": messages, "tools": [{"name": "g"}]}) == RowReason.TOOLS_UNDECLARED
    canonical(read_row({"messages": messages}, None), Mode.REGENERATE)


@pytest.mark.fault("F01")
def test_roles_are_taken_by_name() -> None:
    """Turns keep the role that they name, in order; bad rows are reported with id and cause."""
    rows: list[Any] = [row.value for row in rows_of(fault_file("prep/sharegpt_roles.jsonl"))]
    values = {row["id"]: row for row in rows}
    raw = read_row(values["sg-1"], format_named("sharegpt"))

    assert [(turn.role, turn.content) for turn in raw.turns] == [
        ("system", "Answer in one line."),
        ("gpt", "Hi, how can I help?"),
        ("human", "Name a river."),
        ("gpt", "The Glomma."),
        ("human", "Another."),
        ("human", "In Norway."),
        ("gpt", "The Numedalslågen."),
    ]
    one = canonical(raw, Mode.REGENERATE)
    assert [(m.role, m.content) for m in one.messages] == [
        (Role.SYSTEM, "Answer in one line."),
        (Role.ASSISTANT, "Hi, how can I help?"),
        (Role.USER, "Name a river."),
        (Role.ASSISTANT, "The Glomma."),
        (Role.USER, "Another.\n\nIn Norway."),
        (Role.ASSISTANT, "The Numedalslågen."),
    ]
    assert one.targets == (3, 5)
    two = canonical(read_row(values["sg-2"], None), Mode.REGENERATE)
    assert [m.role for m in two.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
    three = canonical(read_row(values["sg-3"], None), Mode.REGENERATE)
    assert (three.targets, len(three.messages)) == ((1,), 1)
    assert _reason(values["sg-4"]) == RowReason.EMPTY_CONVERSATION
    assert _reason(values["sg-5"]) == RowReason.UNKNOWN_ROLE


@pytest.mark.fault("F07")
def test_argument_types_may_differ_between_calls() -> None:
    """A value that is text in one call and a number in the next keeps both types."""
    found = conversations_of(fault_file("prep/tool_schemas.jsonl"))["n-3"]
    calls = [call.arguments for message in found.messages for call in message.tool_calls]

    assert ['{"t": "2025-08-01"}', '{"t": 1690876800}'] == calls


@pytest.mark.fault("F06")
def test_no_key_appears_that_a_row_never_had(tmp_path: Path) -> None:
    """JSON Lines keep objects exactly; from Parquet, keys that only other rows have are dropped."""
    path = fault_file("prep/tool_schemas.jsonl")
    found = conversations_of(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    columnar = tmp_path / "two.parquet"
    pq.write_table(pa.Table.from_pylist(lines[:2]), columnar)
    back = conversations_of(columnar)

    for one in (found["n-1"], back["n-1"]):
        assert one.messages[1].tool_calls[0].arguments == '{"city": "Oslo"}'
        assert one.tools is not None
        parameters = one.tools[0]["function"]["parameters"]
        assert parameters["properties"] == {"city": {"type": "string"}}
    assert found["n-2"].tools is not None
    properties = found["n-2"].tools[0]["function"]["parameters"]["properties"]
    assert properties["limit"] == {"type": "integer", "default": None}
    assert back["n-2"].messages[1].tool_calls[0].arguments == '{"path": "x.txt", "limit": 3}'


@pytest.mark.fault("F12")
def test_a_late_column_is_read() -> None:
    """A field that only later rows have is part of their prompt, and leaves no gap elsewhere."""
    found = conversations_of(fault_file("prep/late_column.jsonl"))

    assert "Do one" == found["l-1"].messages[0].content
    assert "Do two\n\nwith this" == found["l-2"].messages[0].content


@pytest.mark.fault("F14")
def test_call_ids_become_canonical_and_results_follow() -> None:
    """Ids count calls over the whole conversation; each result follows its call's new id."""
    values = [row.value for row in rows_of(fault_file("tools/openai_ids.jsonl"))]
    one = canonical(read_row(values[0], None), Mode.REGENERATE)
    ids = [call.id for message in one.messages for call in message.tool_calls]

    assert ["functions.ls:0", "functions.ls:1", "functions.read:2"] == ids
    bound = [(m.tool_call_id, m.content) for m in one.messages if m.role is Role.TOOL]
    assert bound == [
        ("functions.ls:1", "b.py"),
        ("functions.ls:0", "a.py"),
        ("functions.read:2", "x = 1"),
    ]
    two = canonical(read_row(values[1], None), Mode.REGENERATE)
    assert two.messages[1].tool_calls[0].id == two.messages[2].tool_call_id == "functions.ping:0"
    assert _reason(values[2]) == RowReason.ORPHAN_TOOL_RESULT
