"""The canonical rules, against samples in the shape of real datasets with hand-made outcomes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from eagled.config import DatasetConfig
from eagled.errors import RowRejectedError
from eagled.readers import read_row
from eagled.readers.base import source_id_of
from eagled.readers.sources import open_source
from eagled.text.canonical import canonical
from eagled.text.identity import dedup_key
from eagled.text.messages import to_json
from eagled.types import Mode, RowReason

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
FOLDERS = sorted(folder.name for folder in SAMPLES.iterdir())


def _expected(folder: str) -> list[dict[str, Any]]:
    text = (SAMPLES / folder / "expected.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def _outcome(value: dict[str, Any], mode: Mode, seen: set[bytes]) -> dict[str, Any]:
    try:
        raw = read_row(value, None)
        conversation = canonical(raw, mode)
    except RowRejectedError as exc:
        return {"outcome": "reject", "reason": str(exc.reason), "source_id": source_id_of(value)}
    key = dedup_key(conversation.messages)
    if key in seen:
        reason = RowReason.DUPLICATE.value
        return {"outcome": "reject", "reason": reason, "source_id": conversation.source_id}
    seen.add(key)
    return {
        "outcome": "ok",
        "mode": mode.value,
        "messages": to_json(conversation.messages),
        "targets": list(conversation.targets),
        "flags": list(conversation.flags),
        "source_id": conversation.source_id,
    }


def _shorten(outcome: dict[str, Any]) -> dict[str, Any]:
    """Replace the messages of a huge row as the samples do."""
    messages = outcome.pop("messages")
    text = json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {
        **outcome,
        "huge": True,
        "n_messages": len(messages),
        "roles": [message["role"] for message in messages],
        "content_chars": sum(len(message["content"]) for message in messages),
        "messages_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_sample_row_has_its_outcome(folder: str) -> None:
    """Each row gives the expected messages, targets, flags and id, or the expected reason."""
    expected = _expected(folder)
    mode = Mode.NATIVE if folder.startswith("kimi") else Mode.REGENERATE
    seen: set[bytes] = set()
    got = {}
    for file in dict.fromkeys(row["file"] for row in expected):
        source = open_source(DatasetConfig(name="d", source=str(SAMPLES / folder / file)))
        for row in source.rows():
            assert isinstance(row.value, dict)
            got[file, row.number] = _outcome(row.value, mode, seen)

    assert {(row["file"], row["row"]) for row in expected} == set(got)
    for wanted in expected:
        mine = got[wanted.pop("file"), wanted.pop("row")]
        mine = _shorten(mine) if wanted.get("huge") else mine
        assert wanted == {key: mine.get(key) for key in wanted}
