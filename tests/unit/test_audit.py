"""The outsider's audit finds what it must; each damage is made by hand."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from safetensors.numpy import save_file

from eagled.audit import Audit, audit

UID = "aa" * 16
OTHER = "bb" * 16


def _z(*ids: int) -> bytes:
    return zstandard.compress(struct.pack(f"<{len(ids)}I", *ids))


def _crc(*ids: int) -> int:
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A database, a corpus and a shard with one extracted sample: prompt 1 2, answer 3 4."""
    with closing(sqlite3.connect(tmp_path / "q.db")) as db, db:
        db.execute("CREATE TABLE shard (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("CREATE TABLE prompt (id INTEGER PRIMARY KEY, z BLOB)")
        db.execute("CREATE TABLE answer (id INTEGER PRIMARY KEY, z BLOB)")
        db.execute(
            "CREATE TABLE sample (id INTEGER PRIMARY KEY, uid BLOB, attempt INTEGER, "
            "state INTEGER, output_crc INTEGER, shard_id INTEGER, shard_index INTEGER)"
        )
        db.execute("INSERT INTO shard VALUES (1, 's.safetensors')")
        db.execute("INSERT INTO prompt VALUES (1, ?)", (_z(1, 2),))
        db.execute("INSERT INTO answer VALUES (1, ?)", (_z(3, 4),))
        row = (1, bytes.fromhex(UID), 2, 5, _crc(3, 4), 1, 0)
        db.execute("INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    _corpus(tmp_path, [(UID, [1, 2, 3, 4])])
    _shard(tmp_path, [(UID, [1, 2, 3, 4])])
    return tmp_path


def _corpus(folder: Path, rows: list[tuple[str, list[int]]]) -> None:
    columns = {"uid": [uid for uid, _ in rows], "input_ids": [ids for _, ids in rows]}
    pq.write_table(pa.table(columns), folder / "corpus.parquet")


def _shard(folder: Path, rows: list[tuple[str, list[int]]]) -> None:
    ids = np.array([i for _, sample in rows for i in sample], np.int32)
    offsets = np.cumsum([0, *(len(sample) for _, sample in rows)]).astype(np.int64)
    samples = json.dumps([{"uid": uid} for uid, _ in rows])
    tensors = {"input_ids": ids, "offsets": offsets}
    save_file(tensors, folder / "s.safetensors", metadata={"samples": samples})


def _ack(uid: str = UID, kind: str = "generated", attempt: int = 2) -> dict[str, Any]:
    return {"uid": uid, "kind": kind, "attempt": attempt, "crc": _crc(3, 4)}


def _audit(world: Path, *acks: dict[str, Any]) -> Audit:
    corpus = world / "corpus.parquet"
    return audit(acks, world / "q.db", corpus=corpus, shards=world)


def _change(world: Path, statement: str) -> None:
    with closing(sqlite3.connect(world / "q.db")) as db, db:
        db.execute(statement)


def test_a_whole_world_is_ok(world: Path) -> None:
    """Nothing is reported where nothing is wrong."""
    found = _audit(world, _ack(), _ack(kind="extracted"))

    assert "acknowledged=2 stored=1 lost=0 doubled=0" == found.line()
    assert found.ok


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM sample",
        "UPDATE sample SET attempt = 3",
        "UPDATE sample SET output_crc = 7",
        "UPDATE sample SET output_crc = NULL, state = 0",
        "DELETE FROM answer",
    ],
)
def test_a_lost_or_changed_answer_is_found(world: Path, statement: str) -> None:
    """An acknowledged answer that is gone, redone or altered counts as lost."""
    _change(world, statement)

    assert _audit(world, _ack()).lost


def test_a_lost_extraction_is_found(world: Path) -> None:
    """States that were acknowledged and are not there count as lost."""
    _change(world, "UPDATE sample SET state = 3, shard_id = NULL")

    assert _audit(world, _ack(kind="extracted")).lost


def test_a_second_acknowledgement_is_doubled(world: Path) -> None:
    """One sample answered twice was paid for twice."""
    assert (f"{UID}: acknowledged 2 times as generated",) == _audit(world, _ack(), _ack()).doubled


def test_corpus_faults_are_found(world: Path) -> None:
    """A row twice, a row missing, a row with other ids."""
    _corpus(world, [(UID, [1, 2, 3, 4]), (UID, [1, 2, 3, 4])])
    assert _audit(world, _ack()).doubled

    _corpus(world, [(UID, [1, 2, 3, 5])])
    assert _audit(world, _ack()).lost

    _corpus(world, [(OTHER, [9])])
    assert 2 == len(_audit(world, _ack()).lost)


def test_shard_faults_are_found(world: Path) -> None:
    """A shard that is gone, or whose row is another sample."""
    _shard(world, [(OTHER, [1, 2, 3, 4])])
    assert _audit(world, _ack()).lost

    (world / "s.safetensors").unlink()
    assert _audit(world, _ack()).lost
