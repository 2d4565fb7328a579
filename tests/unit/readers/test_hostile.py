"""Rows that nobody would write on purpose: every one has a reason, none stops the file."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest

from eagled.config import DatasetConfig
from eagled.errors import RowRejectedError
from eagled.inspect import open_inspection
from eagled.prepared import dump_line
from eagled.readers import formats, read_row
from eagled.readers.base import Format, source_id_of
from eagled.readers.sources import open_source
from eagled.text.canonical import canonical
from eagled.text.identity import question_key
from eagled.text.messages import to_json
from eagled.types import Mode

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1.5, float("nan"), "", " ", "\0", "\ud800", "text", b"bytes",
    [], [None], [[]], {}, {"a": None}, [{"role": "user"}], [{"from": "human", "value": None}],
    "<function=f>", "<functioncall> {", "```\nx\n```", "<think>", "USER: a", {"name": 5},
)  # fmt: skip
N_MUTANTS = 400
REASONS = {
    "bad_encoding", "bad_schema", "missing_field", "empty_conversation", "unknown_role",
    "no_user_turn", "empty_user_turn", "empty_assistant_turn", "unclosed_think",
    "unparseable_tool_call", "tools_undeclared", "orphan_tool_result",
}  # fmt: skip


def _sample_rows() -> list[dict[str, Any]]:
    rows: list[Any] = []
    for folder in sorted(SAMPLES.iterdir()):
        wanted = (folder / "expected.jsonl").read_text(encoding="utf-8").splitlines()
        for file in dict.fromkeys(json.loads(line)["file"] for line in wanted):
            source = open_source(DatasetConfig(name="d", source=str(folder / file)))
            rows += [row.value for row in source.rows() if isinstance(row.value, dict)]
    return [row for row in rows if len(str(row)) < 5_000]


ROWS = _sample_rows()


def _mutant(value: Any, rng: random.Random) -> Any:
    """Return a value with something in it replaced, removed or renamed."""
    if rng.random() < 0.15:
        return rng.choice(ODD)
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        out = {**value, key: _mutant(value[key], rng)}
        if rng.random() < 0.2:
            out[rng.choice(string.ascii_letters)] = out.pop(key)
        return out
    if isinstance(value, list) and value:
        index = rng.randrange(len(value))
        return [*value[:index], _mutant(value[index], rng), *value[index + 1 :]]
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return rng.choice([value[:at], value[at:], value[:at] + str(rng.choice(ODD)) + value[at:]])
    return rng.choice(ODD)


@pytest.mark.parametrize("known", formats(), ids=lambda known: known.name)
@pytest.mark.parametrize("mode", list(Mode))
def test_no_row_is_a_bug(known: Format, mode: Mode) -> None:
    """Whatever a row holds, a reader gives a conversation that can be stored, or a reason."""
    rng = random.Random(f"{known.name} {mode}")  # noqa: S311 - test data, seeded
    kept, reasons = 0, set()
    for _ in range(N_MUTANTS):
        row = _mutant(_mutant(rng.choice(ROWS), rng), rng)
        if isinstance(row, dict):
            source_id_of(row)
        try:
            conversation = canonical(read_row(row, rng.choice([known, None])), mode)
        except RowRejectedError as exc:
            reasons.add(exc.reason)
            continue
        kept += 1
        question_key(conversation)
        dump_line({"messages": to_json(conversation.messages), "tools": conversation.tools})
        assert conversation.targets
        assert all(isinstance(message.content, str) for message in conversation.messages)

    assert kept > N_MUTANTS / 50
    assert set() == reasons - REASONS


def test_a_file_of_garbage_adds_up(tmp_path: Path) -> None:
    """Random bytes between good rows: every line is one row, and each is kept or has a reason."""
    rng = random.Random(11)  # noqa: S311 - test data, seeded
    lines = []
    for i in range(300):
        good = json.dumps({"id": i, "prompt": f"a question number {i}"}).encode()
        bad = bytes(
            rng.choice([c for c in range(256) if c != 10]) for _ in range(rng.randrange(60))
        )
        lines.append(good if i % 3 else b"x" + bad)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    inspection = open_inspection(str(path))
    views = list(inspection.rows())

    assert list(range(300)) == [view.row for view in views]
    assert (200, 100) == (inspection.kept, inspection.counts.total())
    assert {"bad_json_line", "bad_encoding"} == set(inspection.counts)
