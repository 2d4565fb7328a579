"""How SQLite executes the statements that run often: by index and without sorting."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from eagled.sql import QUERIES, load_migrations, parse_queries
from eagled.store.causes import SLICE

HOT = {
    "claim": "sample_claim",
    "claim_candidates": "lane",
    "live_fences": "INTEGER PRIMARY KEY",
    "live_extracts": "INTEGER PRIMARY KEY",
    "due_retries": "sample_retry",
    "unchecked_ids": "sample_unchecked",
    "extract_ids": "sample_extract",
    "extracting_of": "sample_extracting",
    "in_flight": "sample_generating",
    "recover_generating": "sample_generating",
    "freeze": "sample_merge",
    "bodies": "INTEGER PRIMARY KEY",
    "shard_members": "sample_shard",
    "shard_members_of": "sample_shard",
    "shard_conversations": "sample_shard",
    "next_turn": "sample_turn",
    "earlier_answers": "sample_turn",
    "cancel_later": "sample_turn",
    "conversation_by_uid": "conversation",
    "dedup_elsewhere": "conversation_dedup",
    "sample_known": "sample",
    "last_undoable": "event_undo",
    "events_after": "INTEGER PRIMARY KEY",
    "failures_of": "failure_sample",
    "partial_of": "INTEGER PRIMARY KEY",
    "prune_events": "INTEGER PRIMARY KEY",
}
# members of one file: bounded, sorted at reading
SORTED_BY_INDEX = set(HOT) - {"shard_members_of", "shard_conversations"}


@pytest.fixture(scope="module")
def schema() -> Iterator[sqlite3.Connection]:
    """An empty database with the newest schema."""
    conn = sqlite3.connect(":memory:")
    for script in load_migrations():
        conn.executescript(script)
    yield conn
    conn.close()


def plan(conn: sqlite3.Connection, name: str) -> list[str]:
    """Return the lines of a statement's plan."""
    text = QUERIES[name]
    named = dict.fromkeys(re.findall(r":(\w+)", text), 0)
    values: dict[str, int] | tuple[int, ...] = named or (0,) * text.count("?")
    return [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {text}", values)]


@pytest.mark.parametrize("name", HOT)
def test_hot_statement_uses_its_index(schema: sqlite3.Connection, name: str) -> None:
    """The index is used; no table of samples is scanned; nothing is sorted."""
    lines = plan(schema, name)
    scans = [x for x in lines if re.match(r"SCAN (s|sample|conversation|p|a|n)\b", x)]
    partial = {"sample_unchecked", "sample_extract", "sample_generating", "event_undo"}

    assert any(HOT[name] in line for line in lines), lines
    assert not [x for x in scans if not any(index in x for index in partial)], lines
    if name in SORTED_BY_INDEX:
        assert not [x for x in lines if "TEMP B-TREE" in x], lines


def test_causes_are_read_by_the_index_of_what_was_given_up(schema: sqlite3.Connection) -> None:
    """A queue of a million answered samples costs nothing: no scan, no sort."""
    rows = schema.execute(f"EXPLAIN QUERY PLAN {SLICE}", (1, 7, "", 0, 500))
    lines = [row[3] for row in rows]

    assert any("sample_given_up (dataset_id=? AND state=? AND" in line for line in lines), lines
    assert not [x for x in lines if x.startswith("SCAN") or "TEMP B-TREE" in x], lines


def test_merge_index_needs_its_literal_condition(schema: sqlite3.Connection) -> None:
    """Without the literal states the index cannot apply: the check above can fail."""
    text = QUERIES["freeze"].replace("state IN (3, 4, 5)", "state IN (3, 4, :x)")
    rows = schema.execute(f"EXPLAIN QUERY PLAN {text}", {"dataset_id": 1, "after": 0, "x": 5})

    assert not [row for row in rows if "sample_merge" in row[3]]


def test_every_table_is_strict(schema: sqlite3.Connection) -> None:
    """A text in a number's column is an error, not a surprise."""
    rows = schema.execute(
        "SELECT name, strict FROM pragma_table_list WHERE type = 'table' AND schema = 'main'"
        " AND name NOT LIKE 'sqlite_%'"
    ).fetchall()

    assert {1} == {strict for _, strict in rows}
    assert {"prompt", "answer", "sample"} <= {name for name, _ in rows}


def test_illegal_transition_is_refused(schema: sqlite3.Connection) -> None:
    """No statement can take a sample where the table of transitions has no way."""
    schema.executescript(
        "INSERT INTO dataset VALUES (1, 'd', 0, NULL, 0, 'native', 'k', 0, 0, 0, 0, NULL, NULL);"
        "INSERT INTO conversation VALUES (1, zeroblob(16), x'00', 1, NULL, NULL);"
        "INSERT INTO sample (id, uid, conversation_id, dataset_id, turn, state, updated_ms)"
        " VALUES (1, zeroblob(16), 1, 1, 0, 6, 0);"
    )
    with pytest.raises(sqlite3.IntegrityError, match="illegal sample transition"):
        schema.execute("UPDATE sample SET state = 3")
    schema.execute("UPDATE sample SET attempt = 4")
    with pytest.raises(sqlite3.IntegrityError, match="attempt never falls"):
        schema.execute("UPDATE sample SET attempt = 3")
    schema.rollback()


def test_each_statement_says_what_it_is_for() -> None:
    """A statement without its line of purpose, or named twice, does not load."""
    with pytest.raises(ValueError, match="what it is for"):
        parse_queries("-- name: a\nSELECT 1;\n", "x.sql")
    with pytest.raises(ValueError, match="twice"):
        parse_queries("-- name: a\n-- b\nSELECT 1;\n-- name: a\n-- b\nSELECT 1;\n", "x.sql")

    assert {"a": "SELECT 1"} == parse_queries("-- name: a\n-- purpose\nSELECT 1;\n", "x.sql")
