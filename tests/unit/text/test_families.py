"""The table of model families: chosen by tokens, held to the documentation and to SGLang."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from eagled.config import TargetConfig
from eagled.errors import ConfigError
from eagled.text.calls import ParsedCall, ToolCallError
from eagled.text.families import FAMILIES, family_of, syntax_in
from eagled.text.toolcalls import DEEPSEEK, KIMI, LLAMA, TAGGED

ROOT = Path(__file__).parents[3]


def test_each_family_is_found_by_its_own_tokens() -> None:
    """The tokens of one family never lead to another; of none, to none."""
    found = [family_of(family.tokens) for family in FAMILIES]

    assert list(FAMILIES) == found
    assert family_of(["<|im_start|>", "<|im_end|>"]) is None
    assert family_of([], "qwen3") is next(f for f in FAMILIES if f.name == "qwen3")


def test_the_setting_accepts_each_family_and_nothing_else() -> None:
    """`target.family` lists the table."""
    for family in FAMILIES:
        assert family.name == TargetConfig(model="m", family=family.name).family
    with pytest.raises(ConfigError, match="'claude' is not known: auto, kimi"):
        family_of([], "claude")


def test_the_documentation_has_the_table() -> None:
    """A line for each family, with its tokens and parser names."""
    text = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
    lines = {m[1]: m[0] for m in re.finditer(r"^\| `([\w.-]+)` \| .*$", text, re.MULTILINE)}
    for family in FAMILIES:
        line = lines[family.name].replace("\\|", "|")
        cells = line.rstrip("| ").rsplit(" | ", 2)

        assert [family.tool_parser, family.reasoning_parser or "none"] == [
            cell.strip("`") for cell in cells[1:]
        ]
        own = [token for token in family.tokens if "think" not in token]
        assert family.name == "deepseek-v3.1" or all(f"`{token}`" in line for token in own)


def test_sglang_knows_the_parsers() -> None:
    """The names are those of the installed SGLang."""
    venv = Path(os.environ.get("EAGLED_SGLANG_VENV", ROOT / ".sglang-venv"))
    found = sorted(venv.glob("lib/python*/site-packages/sglang/srt"))
    if not found:
        pytest.skip(f"no SGLang in {venv}: make sglang-env")
    calls = (found[0] / "function_call" / "function_call_parser.py").read_text(encoding="utf-8")
    thoughts = (found[0] / "parser" / "reasoning_parser.py").read_text(encoding="utf-8")

    assert [] == [f.tool_parser for f in FAMILIES if f'"{f.tool_parser}":' not in calls]
    wanted = [f.reasoning_parser for f in FAMILIES if f.reasoning_parser]
    assert [] == [name for name in wanted if f'"{name}":' not in thoughts]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
            "",
            [("f", '{"a": 1}')],
        ),
        ('say\n<tool_call>{"name": "f"}</tool_call>', "say", [("f", "{}")]),
        (
            (
                "<tool_call>\n<function=f>\n<parameter=a>\n1 < 2\n3\n</parameter>\n"
                "<parameter=b>\né\n</parameter>\n</function>\n</tool_call>"
            ),
            "",
            [("f", '{"a": "1 < 2\\n3", "b": "é"}')],
        ),
        ("<tool_call><function=f></function></tool_call>", "", [("f", "{}")]),
    ],
)
def test_tagged_calls(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    """JSON between tags, and Qwen3-Coder's tags, whose values stay text."""
    expected = (content, tuple(ParsedCall(*call) for call in calls))

    assert expected == TAGGED.parse(text)


@pytest.mark.parametrize(
    "body",
    [
        "<function=f><parameter=a>1</function>",
        "<function=f>loose</function>",
        "<function=f>",
        '{"name": ""}',
        '{"name": "f", "arguments": [1]}',
        "[]",
        "{",
    ],
)
def test_tagged_calls_that_are_not_whole_are_errors(body: str) -> None:
    """Nothing is repaired by guess."""
    with pytest.raises(ToolCallError):
        TAGGED.parse(f"<tool_call>{body}</tool_call>")


def test_llama_calls() -> None:
    """With the tag whatever follows must be a call; without it only an object that is one."""
    call = ("", (ParsedCall("f", '{"a": 1}'),))

    assert call == LLAMA.parse('{"name": "f", "parameters": {"a": 1}}')
    assert call == LLAMA.parse('<|python_tag|>{"name": "f", "arguments": {"a": 1}}')
    for text in ('<|python_tag|>search.call(query="x")', '<|python_tag|>{"name": 3}'):
        assert LLAMA.begins(text)
        with pytest.raises(ToolCallError):
            LLAMA.parse(text)


def test_an_unknown_model_is_read_by_whatever_marker_stands() -> None:
    """Without a family each marked syntax is tried; bare JSON is then text."""
    kimi = "<|tool_calls_section_begin|><|tool_calls_section_end|>"
    deepseek = DEEPSEEK_BEGIN + "x"

    assert [KIMI, TAGGED, DEEPSEEK, None] == [
        syntax_in(None, text)
        for text in (kimi, "<tool_call>", deepseek, '{"name": "f", "parameters": {}}')
    ]
    with pytest.raises(ToolCallError, match="is empty"):
        KIMI.parse(kimi)


DEEPSEEK_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
