"""What the first rows of a source show, and how many of them are held."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagled.config import Config
from eagled.discover.sample import Probe, Sample
from eagled.readers.sources import SourceRow
from eagled.types import Mode


def _probe(**changes: Any) -> Probe:
    return Probe(Config.model_validate({"target": {"model": "m"}}), **changes)


def _rows(*values: object) -> list[SourceRow]:
    return [SourceRow("f", number, value) for number, value in enumerate(values)]


def _look(*values: object, mode: Mode = Mode.REGENERATE) -> Sample:
    probe = _probe()
    return probe.look("some/set", probe.take(_rows(*values), lambda: None), mode, lambda: None)


def test_rows_are_taken_until_enough_rows_or_characters_are_held() -> None:
    """A source without end is left after `rows` rows; huge rows end the sample earlier."""
    drawn: list[int] = []

    def endless(text: str) -> Iterator[SourceRow]:
        for number in itertools.count():
            drawn.append(number)
            yield SourceRow("f", number, {"prompt": text})

    many = _probe(rows=20).take(endless("hi"), lambda: None)
    few = _probe(rows=20, chars=10_000).take(endless("x" * 4000), lambda: None)

    assert (20, 3) == (len(many.rows), len(few.rows))
    assert 20 + 3 == len(drawn)


def test_every_row_is_kept_or_left_out_with_a_reason() -> None:
    """Rows that prep would refuse count under its reasons; a repeated question is a duplicate."""
    good = {"instruction": "What is a narrow gauge railway?", "response": "A small one."}
    sample = _look(good, good, {"instruction": ""}, "text", {"x": 1})

    assert (5, 1) == (sample.sampled, sample.kept)
    assert {"duplicate": 1, "empty_user_turn": 1, "bad_schema": 1, "missing_field": 1} == dict(
        sample.rejected
    )
    assert 0.2 == sample.kept_share


def test_sizes_are_those_of_every_turn() -> None:
    """Two answers are two samples; the second prompt holds the first question and answer."""
    turns = [("user", "q" * 10), ("assistant", "a" * 4), ("user", "q" * 20), ("assistant", "a" * 6)]
    sample = _look({"messages": [{"role": r, "content": c} for r, c in turns]})

    assert (2, 2, 10 + 34, 4 + 6) == (
        sample.turns, sample.prompts, sample.prompt_chars, sample.answer_chars
    )  # fmt: skip
    assert 1 == sample.multi_turn


def test_tools_reasoning_and_languages_are_counted() -> None:
    """Declared tools, a think block, and the language of the question."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = {
        "role": "user",
        "content": "Was ist das und wie wird es mit dem Haus, das nicht alt ist?",
    }
    said = {"role": "assistant", "content": "<think>\nso\n</think>\nNichts."}
    sample = _look({"messages": [asked, said], "tools": [tool]})

    assert (1, 1, {"de": 1}) == (sample.tools, sample.reasoning, dict(sample.languages))


def test_a_mode_is_prepared_as_prep_would() -> None:
    """A think block that never ends is refused in native answers and flagged in others."""
    row = {"prompt": "What is it?", "response": "<think>\nit never ends"}

    assert 1 == _look(row).kept
    assert {"unclosed_think": 1} == dict(_look(row, mode=Mode.NATIVE).rejected)


def test_models_are_read_from_the_rows() -> None:
    """The column that names a model is counted by its values, made printable."""
    taken = _probe().take(
        _rows({"model": "a\x1b"}, {"model": "b"}, {"generator": "b"}, 7), _nothing
    )

    assert {"a␛": 1, "b": 2} == dict(taken.models())


def _nothing() -> None:
    """Let time pass."""


def test_settings_name_what_decides_an_answer(tmp_path: Path) -> None:
    """Other rows, lanes or exclusions are another question to the cache."""
    other = Config.model_validate(
        {
            "target": {"model": "m"},
            "lanes": {"only": {"context": 5000}},
            "run": {"state_dir": tmp_path},
        }
    )

    assert _probe().settings() == _probe().settings()
    assert _probe().settings() != _probe(rows=7).settings()
    assert _probe().settings() != Probe(other).settings()
