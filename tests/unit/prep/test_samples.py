"""The readers and rules, against samples in the shape of real datasets with hand-made outcomes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from eagled.inspect import open_inspection
from eagled.readers import format_named, formats
from eagled.types import Mode

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
FOLDERS = sorted(folder.name for folder in SAMPLES.iterdir())
N_ROWS = 121


def _expected(folder: str) -> list[dict[str, Any]]:
    text = (SAMPLES / folder / "expected.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def _found(folder: str, file: str, format_name: str | None = None) -> dict[int, dict[str, Any]]:
    """Return what the readers make of a sample file, by row."""
    views = open_inspection(str(SAMPLES / folder / file), format_name=format_name).rows()
    return {view.row: view.to_json() for view in views}


def _comparable(found: dict[str, Any], wanted: dict[str, Any], file: str) -> dict[str, Any]:
    """Return an outcome as the samples write it."""
    out = {**found, "file": file}
    out.pop("detail", None)
    if wanted.get("huge"):
        messages = out.pop("messages")
        text = json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        out |= {
            "huge": True,
            "n_messages": len(messages),
            "content_chars": sum(len(message["content"]) for message in messages),
            "messages_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        if "roles" in wanted:
            out["roles"] = [message["role"] for message in messages]
    return out


def test_there_are_121_rows() -> None:
    """No sample is lost on the way into the tests."""
    assert N_ROWS == sum(len(_expected(folder)) for folder in FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_sample_row_has_its_outcome(folder: str) -> None:
    """Each row gives exactly the expected record; the format is found without being named."""
    expected = _expected(folder)
    files = list(dict.fromkeys(row["file"] for row in expected))
    # a duplicate in a second file of the same dataset would be one too: rows are compared by file
    got = {(file, row): found for file in files for row, found in _found(folder, file).items()}

    assert {(row["file"], row["row"]) for row in expected} == set(got)
    for wanted in expected:
        mine = got[wanted["file"], wanted["row"]]
        assert wanted == _comparable(mine, wanted, wanted["file"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_named_format_gives_the_same(folder: str) -> None:
    """The format that belongs to a sample's dataset, forced, reads every row alike."""
    expected = _expected(folder)
    names = {"glaive-function-calling": "glaive-function-calling-v1"}
    name = names.get(folder, folder)

    assert format_named(name) in formats()
    for file in dict.fromkeys(row["file"] for row in expected):
        guessed, named = _found(folder, file), _found(folder, file, name)
        for found in (*guessed.values(), *named.values()):
            found.pop("detail", None)
        assert guessed == named


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_one_dataset(folder: str, tmp_path: Path) -> None:
    """All files of a dataset together give the same outcomes, wherever they lie."""
    expected = [row for row in _expected(folder) if not row["file"].startswith("v1-")]
    for file in dict.fromkeys(row["file"] for row in expected):
        (tmp_path / "x" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / file).write_bytes((SAMPLES / folder / file).read_bytes())
    mode = Mode(next(row["mode"] for row in expected if row["outcome"] == "ok"))
    views = list(open_inspection(str(tmp_path / "x"), mode=mode).rows())

    got = {(view.file, view.row): view.to_json() for view in views}
    for wanted in expected:
        mine = got[wanted["file"], wanted["row"]]
        assert wanted == _comparable(mine, wanted, wanted["file"])
