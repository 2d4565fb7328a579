"""Compare what was acknowledged with what is there: database, corpus and shards.

An outsider's view, for the demo and the crash harness: it reads the database with plain SQLite,
the corpus with pyarrow and the shards with safetensors, and shares no code with what wrote them.

Guarantee: `Audit.lost` names every acknowledged result that is not there any more, or not with
the ids that were acknowledged; `Audit.doubled` everything that is there, or was acknowledged,
more than once. Price: it reads every answer, and the ids of every shard.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard
from safetensors import safe_open

_GIVEN_UP = (7, 8, 9)  # failed, rejected, cancelled: a reason is stored
_EXTRACTED = 5


@dataclass(frozen=True, slots=True)
class Audit:
    """What the comparison found; each finding is a sentence."""

    acknowledged: int
    stored: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was lost and nothing doubled."""
        return not self.lost and not self.doubled

    def line(self) -> str:
        """Return the one-line verdict."""
        return (
            f"acknowledged={self.acknowledged} stored={self.stored} "
            f"lost={len(self.lost)} doubled={len(self.doubled)}"
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    attempt: int
    state: int
    crc: int | None
    ids_crc: int | None
    tokens: tuple[int, ...]


def audit(
    acks: Iterable[Mapping[str, Any]],
    database: Path,
    *,
    corpus: Path | None = None,
    shards: Path | None = None,
) -> Audit:
    """Compare acknowledgements with the stored truth.

    Args:
        acks: acknowledgements in the order they were given: kind, uid (hex), attempt, crc.
        database: the SQLite file; a daemon may be running.
        corpus: a `corpus.parquet`, or None to leave it out.
        shards: the shard folder, or None to leave it out.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        stored = dict(_stored(db))
        listed = _shard_members(db)
    given = list(acks)
    lost = [*_lost_acks(given, stored), *_broken_answers(stored)]
    doubled = _doubled_acks(given)
    if corpus is not None:
        _compare_corpus(corpus, stored, lost, doubled)
    if shards is not None:
        _compare_shards(shards, listed, stored, lost, doubled)
    n_stored = sum(s.crc is not None for s in stored.values())
    return Audit(len(given), n_stored, tuple(lost), tuple(doubled))


def _ids(z: bytes | None) -> tuple[int, ...]:
    if z is None:
        return ()
    raw = zstandard.ZstdDecompressor().decompress(z)
    return tuple(np.frombuffer(raw, "<u4").tolist())


def _crc(ids: Iterable[int]) -> int:
    return zlib.crc32(np.asarray(list(ids), "<u4").tobytes())


def _stored(db: sqlite3.Connection) -> Iterator[tuple[str, _Stored]]:
    query = (
        "SELECT s.uid, s.attempt, s.state, s.output_crc, p.z, a.z FROM sample s "
        "LEFT JOIN prompt p ON p.id = s.id LEFT JOIN answer a ON a.id = s.id"
    )
    for uid, attempt, state, crc, prompt, answer in db.execute(query):
        output = _ids(answer)
        ids_crc = _crc(output) if answer is not None else None
        yield uid.hex(), _Stored(attempt, state, crc, ids_crc, _ids(prompt) + output)


def _shard_members(db: sqlite3.Connection) -> dict[str, dict[int, str]]:
    members: defaultdict[str, dict[int, str]] = defaultdict(dict)
    query = (
        "SELECT sh.name, s.shard_index, s.uid FROM sample s JOIN shard sh ON sh.id = s.shard_id "
        "WHERE s.state = ?"
    )
    for name, index, uid in db.execute(query, (_EXTRACTED,)):
        members[name][index] = uid.hex()
    return members


def _lost_acks(acks: Iterable[Mapping[str, Any]], stored: Mapping[str, _Stored]) -> Iterator[str]:
    for ack in acks:
        uid, attempt, crc = str(ack["uid"]), int(ack["attempt"]), int(ack["crc"])
        now = stored.get(uid)
        if now is None:
            yield f"{uid}: acknowledged as {ack['kind']}, not in the database"
        elif now.state in _GIVEN_UP:
            continue
        elif now.crc != crc:
            yield f"{uid}: acknowledged with crc {crc}, the database has {now.crc}"
        elif ack["kind"] == "generated" and now.attempt != attempt:
            yield f"{uid}: acknowledged in attempt {attempt}, the database has {now.attempt}"
        elif ack["kind"] == "extracted" and now.state != _EXTRACTED:
            yield f"{uid}: acknowledged as extracted, the database has state {now.state}"


def _broken_answers(stored: Mapping[str, _Stored]) -> Iterator[str]:
    for uid, row in stored.items():
        if row.crc != row.ids_crc:
            yield f"{uid}: the answer's ids have crc {row.ids_crc}, {row.crc} is recorded"


def _doubled_acks(acks: Iterable[Mapping[str, Any]]) -> list[str]:
    times = Counter((str(a["uid"]), str(a["kind"])) for a in acks)
    return [f"{uid}: acknowledged {n} times as {k}" for (uid, k), n in times.items() if n > 1]


def _compare_corpus(
    corpus: Path, stored: Mapping[str, _Stored], lost: list[str], doubled: list[str]
) -> None:
    seen: Counter[str] = Counter()
    for batch in pq.ParquetFile(corpus).iter_batches(500, columns=["uid", "input_ids"]):
        for row in batch.to_pylist():
            seen[row["uid"]] += 1
            now = stored.get(row["uid"])
            if now is None or tuple(row["input_ids"]) != now.tokens:
                lost.append(f"{row['uid']}: the corpus has other ids than the database")
    doubled += [f"{uid}: {n} times in the corpus" for uid, n in seen.items() if n > 1]
    lost += [
        f"{uid}: answered, not in the corpus"
        for uid, row in stored.items()
        if row.crc is not None and row.state not in _GIVEN_UP and uid not in seen
    ]


def _compare_shards(
    folder: Path,
    listed: Mapping[str, Mapping[int, str]],
    stored: Mapping[str, _Stored],
    lost: list[str],
    doubled: list[str],
) -> None:
    times: Counter[str] = Counter()
    for name, members in listed.items():
        path = folder / name
        if not path.is_file():
            lost.append(f"{name}: {len(members)} samples point at a shard that is not there")
            continue
        in_file = _shard_ids(path)
        for index, uid in members.items():
            times[uid] += 1
            if in_file.get(index) != (uid, stored[uid].tokens):
                lost.append(f"{uid}: row {index} of {name} has another sample or other ids")
    doubled += [f"{uid}: in {n} shards" for uid, n in times.items() if n > 1]


def _shard_ids(path: Path) -> dict[int, tuple[str, tuple[int, ...]]]:
    with safe_open(path, framework="numpy") as file:
        samples = json.loads(file.metadata()["samples"])
        offsets = file.get_tensor("offsets")
        ids = file.get_tensor("input_ids")
    return {
        i: (sample["uid"], tuple(ids[offsets[i] : offsets[i + 1]].tolist()))
        for i, sample in enumerate(samples)
    }
