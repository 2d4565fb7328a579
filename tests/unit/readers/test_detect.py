"""Which format a source has, from its name and its first rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagled.config import DatasetConfig
from eagled.errors import ConfigError, RowRejectedError
from eagled.readers import detect_row, format_named, formats, read_row
from eagled.readers.detect import found_format, guess, with_format
from tests.prep_kit import write_jsonl

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}]}
SHARED: dict[str, Any] = {"conversations": [{"from": "human", "value": "q"}]}
BY_COLUMNS: list[tuple[str, dict[str, Any]]] = [
    ("nebius-swe-agent-trajectories", {"trajectory": []}),
    ("glaive-function-calling-v2", {"system": "", "chat": ""}),
    ("glaive-function-calling-v1", {"sample": "USER: a\nASSISTANT: b"}),
    ("opencodeinstruct", {"input": "q", "output": "a", "average_test_score": "1"}),
    ("magicoder-evol-instruct", {"instruction": "q", "response": "a"}),
    ("mixture-of-thoughts", {**CHAT, "num_tokens": 3, "source": "x"}),
    ("openthoughts-114k", {"problem": "q", "deepseek_solution": "a"}),
    ("openthoughts-114k", {**SHARED, "system": "use <|begin_of_thought|>"}),
    ("ultrachat-200k", {**CHAT, "prompt": "p", "prompt_id": "1"}),
    ("infinity-instruct", {**SHARED, "id": 1, "langdetect": "en"}),
    ("open-perfectblend", {**SHARED, "source": "x"}),
    ("sharegpt-vicuna-unfiltered", {**SHARED, "id": "x"}),
    ("openai", CHAT),
    ("sharegpt", SHARED),
    ("alpaca", {"instruction": "q", "input": "", "output": "a"}),
    ("instruction", {"prompt": "q", "response": "a"}),
    ("prompt", {"prompt": "q"}),
    ("bfcl", {"question": [[{"role": "user", "content": "q"}]], "function": []}),
]


@pytest.mark.parametrize(("name", "row"), BY_COLUMNS)
def test_a_row_shows_its_format(name: str, row: dict[str, Any]) -> None:
    """Columns decide, those of one dataset before the generic ones."""
    assert name == detect_row(row).name


def test_every_hub_id_names_its_format() -> None:
    """The format is found by hub id, repository name and own name, however they are written."""
    for known in formats():
        for name in (known.name, known.name.upper(), *known.hub_ids):
            assert known is format_named(name)
    assert "glaive-function-calling-v1" == getattr(format_named("glaive-function-calling"), "name")  # noqa: B009 - it may be None


def test_an_unknown_shape_says_what_was_seen_and_what_exists() -> None:
    """The detail names the columns and every format."""
    with pytest.raises(RowRejectedError, match="missing_field") as caught:
        detect_row({"foo": 1, "bar": 2})

    assert "bar, foo" in caught.value.detail
    assert all(known.name in caught.value.detail for known in formats())


def test_the_name_of_a_source_decides_between_equal_columns() -> None:
    """A hub id, a folder named after the dataset and the hub's cache folder are recognised."""
    for source in (
        "crownelius/KimiK2.5-2000x",
        "/data/kimi-k25-2000x/part.jsonl",
        "/cache/datasets--crownelius--KimiK2.5-2000x/snapshots/abc/data.jsonl",
        "/data/KimiK2.5_2000x.jsonl",
    ):
        found = guess(source, [CHAT])
        assert found is not None
        assert "kimi-k25-2000x" == found.name
    assert guess("/data/ultrachat-200k/x.jsonl", [{"foo": 1}]) is None
    assert guess("/data/other.jsonl", [CHAT]) is None


def test_most_of_the_first_rows_decide() -> None:
    """One odd row among the first does not change the format, nor do rows that are no objects."""
    deepswe = {"messages": [{"role": "system", "content": "BEGIN FUNCTION #1: f"}]}
    found = guess("x", [CHAT, deepswe, deepswe, None, 5])

    assert found is not None
    assert "deepswe-kimi-k2" == found.name
    assert guess("x", [CHAT, CHAT, deepswe]) is None


def test_a_found_format_still_reads_rows_of_other_shapes(tmp_path: Path) -> None:
    """A file of several shapes loses nothing: what does not fit is looked at by itself."""
    own = {"instruction": "q", "response": "a"}
    path = write_jsonl(tmp_path / "rows.jsonl", own, own, CHAT)
    settled = with_format(DatasetConfig(name="d", source=str(path)))
    found = format_named(settled.format)

    assert "auto:magicoder-evol-instruct" == settled.format
    assert found is not None
    assert ["q", "a"] == [turn.content for turn in read_row(own, found).turns]
    assert ["q"] == [turn.content for turn in read_row(CHAT, found).turns]
    with pytest.raises(RowRejectedError):
        read_row(CHAT, format_named("magicoder-evol-instruct"))


def test_a_configured_format_is_taken_unseen(tmp_path: Path) -> None:
    """Nothing is read to settle what the user said; a wrong word is refused."""
    absent = DatasetConfig(name="d", source=str(tmp_path / "none.jsonl"), format="openai")

    assert absent == with_format(absent)
    assert found_format(absent) is format_named("openai")
    with pytest.raises(ConfigError, match="parrot"):
        with_format(absent.model_copy(update={"format": "parrot"}))
