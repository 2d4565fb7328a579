"""The demo's datasets, from hand-made package files."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from eagled.demo import data
from eagled.demo.data import DemoDataset, benchmark_prompts, demo_datasets, json_schema
from eagled.demo.fetch import DemoPackage
from eagled.errors import ConfigError


def lines(rows: Iterable[object]) -> bytes:
    """Return rows as JSON Lines."""
    return b"\n".join(orjson.dumps(row) for row in rows)


def chat(*asked: str) -> dict[str, Any]:
    """Return a ShareGPT conversation that asks these questions."""
    turns = [({"from": "human", "value": q}, {"from": "gpt", "value": "ok"}) for q in asked]
    return {"id": asked[0], "conversations": [turn for pair in turns for turn in pair]}


def tool_row(n: int) -> dict[str, Any]:
    """Return a BFCL row."""
    function = {
        "name": f"geo.area{n}",
        "description": "Area.",
        "parameters": {
            "type": "dict",
            "properties": {"r": {"type": "float"}},
            "required": ["r"],
        },
    }
    question = [[{"role": "user", "content": f"How big is circle {n}?"}]]
    return {"id": f"row-{n}", "question": question, "function": [function]}


def problem(n: int) -> dict[str, str]:
    """Return a HumanEval row of some 360 characters."""
    body = "".join(f"    step_{n}_{i} = {i}\n" for i in range(15))
    return {"prompt": f"def f{n}(x):\n    '''Do {n}.'''\n", "canonical_solution": body}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache whose packages are small; no pip, no hashes."""
    cache = tmp_path / "cache"
    cache.mkdir()
    chats = [chat("Only one?")]
    for n in range(20):
        chats += [chat(f"Who {n}?", "Bye"), chat("Up?", f"Who {n}?", "Bye"), chat("Who 0?", "Bye")]
    (cache / "dummy_conversation.json").write_bytes(orjson.dumps(chats))
    questions = [{"question_id": n, "turns": [f"Question {n}", "More"]} for n in range(80)]
    (cache / "question.jsonl").write_bytes(lines(questions))
    (cache / "BFCL_v4_simple_python.json").write_bytes(lines(tool_row(n) for n in range(40)))
    problems = gzip.compress(lines(problem(n) for n in range(164)))
    (cache / "HumanEval.jsonl.gz").write_bytes(problems)

    def fetched(package: DemoPackage, folder: Path) -> dict[str, Path]:
        return {pinned.name: folder / pinned.name for pinned in package.files}

    monkeypatch.setattr(data, "fetch_package", fetched)
    return cache


@pytest.fixture
def made(packages: Path, tmp_path: Path) -> dict[str, DemoDataset]:
    """The datasets by name."""
    return {d.name: d for d in demo_datasets(packages, tmp_path / "out")}


def rows_of(dataset: DemoDataset) -> list[dict[str, Any]]:
    """Return a JSON Lines dataset's rows."""
    return [orjson.loads(line) for line in dataset.path.read_bytes().splitlines()]


def test_counts_are_those_of_the_files(made: dict[str, DemoDataset]) -> None:
    """Row and turn counts: 32 chat turns in 14 conversations, 14 tools, 14 code, 4 long."""
    counts = {name: (d.format, d.n_rows, d.n_turns) for name, d in made.items()}

    assert counts == {
        "chat": ("sharegpt", 14, 32),
        "tools": ("openai", 14, 14),
        "code": ("instruction", 14, 14),
        "long": ("openai", 4, 4),
    }
    assert 14 == len(rows_of(made["chat"]))
    assert 4 == len(rows_of(made["long"]))


def test_chats_are_multi_turn_and_different(made: dict[str, DemoDataset]) -> None:
    """Ten conversations ask twice, four ask three times, and no two ask the same."""
    asked = [
        tuple(t["value"] for t in row["conversations"] if t["from"] == "human")
        for row in rows_of(made["chat"])
    ]

    assert [2] * 10 + [3] * 4 == sorted(map(len, asked))
    assert len(asked) == len(set(asked))


def test_tools_are_openai_rows(made: dict[str, DemoDataset]) -> None:
    """A row is one user message and its tools, with OpenAI names and JSON Schema types."""
    row = rows_of(made["tools"])[0]

    assert row == {
        "id": "row-0",
        "messages": [{"role": "user", "content": "How big is circle 0?"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "geo_area0",
                    "description": "Area.",
                    "parameters": {
                        "type": "object",
                        "properties": {"r": {"type": "number"}},
                        "required": ["r"],
                    },
                },
            }
        ],
    }


def test_json_schema_reaches_every_level_and_spares_names() -> None:
    """Nested types are converted; a property that is called type or optional is a property."""
    given = {
        "type": "dict",
        "properties": {
            "type": {"type": "any", "description": "d"},
            "optional": {"type": "tuple", "items": {"type": "float"}, "optional": True},
            "deep": {"type": "dict", "additionalProperties": {"type": "dict"}},
        },
    }

    assert json_schema(given) == {
        "type": "object",
        "properties": {
            "type": {"description": "d"},
            "optional": {"type": "array", "items": {"type": "number"}},
            "deep": {"type": "object", "additionalProperties": {"type": "object"}},
        },
    }


def test_code_is_instruction_and_response(made: dict[str, DemoDataset]) -> None:
    """The Parquet file has the two columns of instruction data, both filled in every row."""
    table = pq.read_table(made["code"].path).to_pylist()

    assert [{"instruction", "response"}] * 14 == [set(row) for row in table]
    assert table[0]["instruction"].startswith("Complete this Python function.\n\n```python\ndef f0")
    assert table[0]["response"].endswith("step_0_14 = 14\n```")


def test_long_prompts_are_long_and_share_nothing(made: dict[str, DemoDataset]) -> None:
    """Each long prompt is over the lower bound, and no function is in two of them or in code."""
    texts = [row["messages"][0]["content"] for row in rows_of(made["long"])]
    texts += [row["instruction"] for row in pq.read_table(made["code"].path).to_pylist()]
    names = [line for text in texts for line in text.splitlines() if line.startswith("def ")]

    assert all(len(text) >= 3 * 2300 for text in texts[:4])
    assert len(names) == len(set(names))


def test_the_callers_way_of_counting_decides(packages: Path, tmp_path: Path) -> None:
    """With a tokenizer that yields a token a character, long prompts are shorter texts."""
    sets = {d.name: d for d in demo_datasets(packages, tmp_path, lambda t: len(t) * 2 // 5)}
    texts = [row["messages"][0]["content"] for row in rows_of(sets["long"])]

    assert all(2300 <= len(text) * 2 // 5 <= 5500 for text in texts)


def test_a_tokenizer_that_needs_too_many_tokens_is_refused(packages: Path, tmp_path: Path) -> None:
    """When the prompts cannot have the promised lengths, the error names dataset and numbers."""
    with pytest.raises(ConfigError, match="'tools' data has 0 prompts of at most 210 tokens"):
        demo_datasets(packages, tmp_path, lambda t: len(t) * 100)


def test_same_input_same_bytes(packages: Path, tmp_path: Path) -> None:
    """Two builds of the datasets are identical."""
    first = demo_datasets(packages, tmp_path / "a")
    second = demo_datasets(packages, tmp_path / "b")

    assert [d.path.read_bytes() for d in first] == [d.path.read_bytes() for d in second]


def test_benchmark_file_is_a_list_of_first_questions(packages: Path, tmp_path: Path) -> None:
    """The exclusion list has the 80 first turns and nothing else."""
    path = benchmark_prompts(packages, tmp_path)

    assert [f"Question {n}" for n in range(80)] == orjson.loads(path.read_bytes())
