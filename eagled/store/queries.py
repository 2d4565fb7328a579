"""Reads: each one short statement sequence on a read-only connection, finished before it returns.

They are synchronous and run in the thread of that connection. No reader holds a transaction open
between two calls, so none keeps the write-ahead log from being reset.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from eagled.store.executor import Executor
from eagled.store.ops.control import dataset_row, lane_row
from eagled.store.records import (
    CounterRow,
    DatasetRow,
    EventRow,
    FailureGroup,
    FailureRow,
    LaneRow,
    SampleDetail,
    SampleFilter,
    SampleRow,
    ShardRow,
    StoredMember,
)
from eagled.tokens import PackedIds
from eagled.types import STATE_CODE, STATE_OF_CODE, EventKind, Finish, SampleState, TextJob

log = logging.getLogger(__name__)
MAX_ROWS = 500  # of one read


def lanes(db: Executor) -> list[LaneRow]:
    """Return the configured lanes in order."""
    return [lane_row(row) for row in db.rows("lane_rows")]


def datasets(db: Executor) -> list[DatasetRow]:
    """Return all datasets in the order they came."""
    return [dataset_row(row) for row in db.rows("dataset_rows")]


def counters(db: Executor) -> list[CounterRow]:
    """Return the counters that are not zero."""
    return [CounterRow(d, lane, STATE_OF_CODE[s], n) for d, lane, s, n in db.rows("counters")]


def shards(db: Executor) -> list[ShardRow]:
    """Return all shards, dropped ones included."""
    return [ShardRow(*row) for row in db.rows("shards")]


def shard_members(db: Executor, name: str) -> list[StoredMember]:
    """Return the samples of one shard in file order."""
    return [StoredMember(*row) for row in db.rows("shard_members_of", {"name": name})]


def shard_conversations(db: Executor, name: str) -> list[tuple[bytes, bytes]]:
    """Return uid and conversation of each sample of one shard, in file order."""
    return [(uid, talk) for uid, talk in db.rows("shard_conversations", {"name": name})]


def settings(db: Executor) -> dict[str, str]:
    """Return all live settings."""
    return dict(db.rows("settings"))


def events(db: Executor, after: int, limit: int) -> list[EventRow]:
    """Return events with a number above `after`, oldest first."""
    rows = db.rows("events_after", {"after": after, "n": min(limit, MAX_ROWS)})
    return [
        EventRow(seq, at, EventKind(kind), subject, detail, uid)
        for seq, at, kind, subject, detail, uid in rows
    ]


def state_of(db: Executor, number: int) -> SampleState | None:
    """Return the state of one sample; None if there is none of that number."""
    rows = db.rows("sample_for_change", {"id": number})
    return STATE_OF_CODE[rows[0][1]] if rows else None


def failure_groups(db: Executor, limit: int) -> list[FailureGroup]:
    """Return given-up samples in groups, largest first."""
    return [
        FailureGroup(dataset, STATE_OF_CODE[state], reason, n, uid.hex(), detail)
        for dataset, state, reason, n, uid, detail in db.rows("failure_groups", {"n": limit})
    ]


def conversation(db: Executor, number: int) -> bytes | None:
    """Return a conversation's zstd JSON, None if it has none."""
    rows = db.rows("conversation_body", {"id": number})
    return rows[0][0] if rows else None


_SAMPLES = """
SELECT s.id, s.uid, d.name, l.name, s.turn, s.state, s.attempt, s.failures, s.n_prompt, s.n_output,
    s.finish, s.reason, s.detail, s.updated_ms, s.extended
FROM sample AS s
JOIN dataset AS d ON d.id = s.dataset_id
LEFT JOIN lane AS l ON l.id = s.lane_id
WHERE s.id > {after}{conditions}
ORDER BY s.id LIMIT {limit}
"""


def samples(
    execute: Any,  # noqa: ANN401 - sqlite3.Connection.execute: the text varies with the filter
    wanted: SampleFilter,
    after: int,
    limit: int,
) -> list[SampleRow]:
    """Return samples of ascending id above `after`.

    The state is written into the statement as a number so that its partial index applies; every
    value from outside is a parameter.
    """
    conditions, values = "", []
    if wanted.state is not None:
        conditions += f" AND s.state = {STATE_CODE[wanted.state]}"
    for column, value in (
        ("d.name", wanted.dataset),
        ("l.name", wanted.lane),
        ("s.reason", wanted.reason),
    ):
        if value is not None:
            conditions += f" AND {column} = ?"
            values.append(value)
    text = _SAMPLES.format(after=int(after), conditions=conditions, limit=min(limit, MAX_ROWS))
    return [_sample_row(row) for row in execute(text, values).fetchall()]


def _sample_row(row: tuple[Any, ...]) -> SampleRow:
    (
        number, uid, dataset, lane, turn, state, attempt, failed, n_p, n_o, finish, why, detail,
        at, extended,
    ) = row  # fmt: skip
    end = Finish(finish) if finish else None
    place = STATE_OF_CODE[state]
    return SampleRow(
        number,
        uid.hex(),
        dataset,
        lane,
        turn,
        place,
        attempt,
        failed,
        n_p,
        n_o,
        end,
        why,
        detail,
        at,
        extended,
    )


def sample(db: Executor, uid: bytes) -> SampleDetail | None:
    """Return everything known of one sample."""
    rows = db.rows("sample_by_uid", {"uid": uid})
    if not rows:
        return None
    (
        number, key, dataset, lane, talk, source, turn, state, rank, attempt, failed, crashes, n_p,
        n_o, finish, server, elapsed_ms, checked, extract_attempt, shard, index, why, detail, at,
        extended,
    ) = rows[0]  # fmt: skip
    columns = (number, key, dataset, lane, turn, state, attempt, failed, n_p, n_o, finish)
    prompt_crc, n_prompt, output_crc, n_output, p, a = db.rows("payload", {"id": number})[0]
    return SampleDetail(
        row=_sample_row((*columns, why, detail, at, extended)),
        conversation=talk.hex(),
        source_id=source,
        rank=rank,
        crashes=crashes,
        server=server,
        elapsed_s=None if elapsed_ms is None else elapsed_ms / 1000,
        checked=bool(checked),
        extract_attempt=extract_attempt,
        shard=shard,
        shard_index=index,
        failures_log=tuple(FailureRow(*row) for row in db.rows("failures_of", {"id": number})),
        prompt=PackedIds(p, prompt_crc, n_prompt) if p is not None else None,
        output=PackedIds(a, output_crc, n_output) if a is not None else None,
    )


def text_jobs(db: Executor, n: int, exclude: Collection[int]) -> list[TextJob]:
    """Return up to `n` answers that wait for their check, less those already handed out."""
    ids = [row[0] for row in db.rows("unchecked_ids", {"n": n + len(exclude)})]
    jobs = []
    for number in ids:
        if number in exclude:
            continue
        job = _text_job(db, number)
        if job is not None:
            jobs.append(job)
        if len(jobs) == n:
            break
    return jobs


def _text_job(db: Executor, number: int) -> TextJob | None:
    rows = db.rows("text_job", {"id": number})
    if not rows:
        return None
    (
        sample_id, attempt, dataset, turn, finish, p, p_crc, n_p, a, a_crc, n_a, body, talk,
        has_next,
    ) = rows[0]  # fmt: skip
    if p is None or a is None:
        log.error("stored ids are missing: sample=%d; run `eagled db check`", sample_id)
        return None
    earlier = db.rows("earlier_answers", {"conversation_id": talk, "turn": turn})
    return TextJob(
        sample_id=sample_id,
        attempt=attempt,
        dataset=dataset,
        turn=turn,
        finish=Finish(finish),
        prompt=PackedIds(p, p_crc, n_p),
        output=PackedIds(a, a_crc, n_a),
        conversation=body,
        answers=tuple(PackedIds(*row) for row in earlier),
        has_next=bool(has_next),
    )
