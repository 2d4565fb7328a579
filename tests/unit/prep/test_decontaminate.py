"""Benchmark prompts are kept out by the rule that the module states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagled.decontaminate import BenchmarkPrompt, Exclusions
from eagled.errors import ConfigError
from eagled.text.messages import Message, Role
from tests.faults import fault_file, fault_row

LONG = "Write a function that returns the sum of all prime numbers below a given limit n, quickly."
BOILERPLATE = "Please reason step by step and put your final answer within a box at the very end"


def _asks(*texts: str) -> list[Message]:
    out = []
    for text in texts:
        out += [Message(Role.USER, text), Message(Role.ASSISTANT, "fine")]
    return out


def _exclusions(*texts: str, ngram: int = 13) -> Exclusions:
    return Exclusions([BenchmarkPrompt("b.json", i, t) for i, t in enumerate(texts, 1)], ngram)


def test_a_first_question_is_compared_after_folding() -> None:
    """Case, blanks and width of characters do not hide a benchmark prompt."""
    rule = _exclusions("What is  2+2?", ngram=0)

    assert "is prompt 1 of b.json" == rule.match(_asks("what IS 2\uff0b2?  "))
    assert rule.match(_asks("What is 2+3?")) is None


def test_a_later_turn_counts_only_when_it_is_long() -> None:
    """A short one in the middle is a coincidence; sixteen characters are not."""
    rule = _exclusions("Why?", "Explain this code.", ngram=0)

    assert rule.match(_asks("Tell me of rivers.", "Why?")) is None
    assert rule.match(_asks("Tell me of rivers.", "Explain this code.")) == "is prompt 2 of b.json"
    assert rule.match(_asks("Why?")) == "is prompt 1 of b.json"


def test_a_shared_run_of_words_is_found_in_any_wrapping() -> None:
    """Thirteen words in a row, whatever stands around and between them; twelve are not enough."""
    rule = _exclusions(LONG)
    words = LONG.split()
    thirteen, twelve = " ".join(words[2:15]), " ".join(words[2:14])

    assert rule.match(_asks(f"Hello! {thirteen.upper()} -- thanks")) == (
        "shares 13 words with prompt 1 of b.json"
    )
    assert rule.match(_asks(f"Hello! {twelve} -- thanks")) is None
    assert _exclusions(LONG, ngram=0).match(_asks(f"Hello! {thirteen}")) is None


def test_boilerplate_of_the_benchmark_proves_nothing() -> None:
    """A run that stands in more than three prompts is no evidence; in three it is."""
    four = _exclusions(*(f"Problem {i}. {BOILERPLATE}." for i in "abcd"))
    three = _exclusions(*(f"Problem {i}. {BOILERPLATE}." for i in "abc"))
    asked = _asks(f"How far is the moon? {BOILERPLATE}.")

    assert four.match(asked) is None
    assert three.match(asked) == "shares 13 words with prompt 1 of b.json"


@pytest.mark.fault("F13")
def test_the_benchmark_of_the_fault_is_read_and_matched() -> None:
    """The prompt that stands in both files is named; the other rows pass."""
    rule = Exclusions.load([fault_file("prep/bench_prompts.json")], 13)
    rows = [
        json.loads(line)
        for name in ("a", "b")
        for line in fault_file(f"prep/merge_{name}.jsonl").read_text("utf-8").splitlines()
    ]
    left_out = [row["id"] for row in rows if rule.match(_asks(_question(row))) is not None]

    assert (
        "the benchmark prompt is left out and counted: 2 rows remain"
        in (fault_row("F13")["expect"])
    )
    assert ["x-2"] == left_out


def _question(row: dict[str, object]) -> str:
    text = json.dumps(row)
    messages = row.get("messages") or row.get("conversations")
    assert isinstance(messages, list), text
    return str(messages[0].get("content", messages[0].get("value")))


def test_files_of_several_shapes_are_read(tmp_path: Path) -> None:
    """Lists, lines, objects and conversations; a file without a prompt is refused."""
    lines = tmp_path / "l.jsonl"
    lines.write_text('{"prompt": "first one"}\n{"turns": ["second one"]}\n', encoding="utf-8")
    empty = tmp_path / "e.json"
    empty.write_text('{"x": 1}', encoding="utf-8")
    rule = Exclusions.load([lines], 0)

    assert "is prompt 2 of l.jsonl" == rule.match(_asks("Second  one"))
    with pytest.raises(ConfigError, match="holds no prompt"):
        Exclusions.load([empty])
    with pytest.raises(ConfigError, match="cannot be read"):
        Exclusions.load([tmp_path / "absent.json"])
