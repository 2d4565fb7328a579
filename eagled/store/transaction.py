"""One transaction of the writer: many operations, one COMMIT, one sequence number.

Guarantee: an operation that breaks a constraint is undone alone (the transaction is rolled back and
each operation runs again under its own savepoint) and only its caller sees the error. Whatever
else goes wrong rolls everything back. Nothing is written when nothing changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eagled.crashpoints import crash_point
from eagled.errors import EagledError
from eagled.record import record
from eagled.store.executor import Executor, error_name
from eagled.store.ops.base import Op, Tx
from eagled.store.records import Ack

AnyOp = Op[Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands in a batch's results for an operation whose caller gets `error`."""

    error: Exception


@record
class Batch:
    """What a committed transaction gives: one result an operation, in the order given.

    `seq` is None if nothing changed and so nothing was written.
    """

    results: list[Any]
    acks: list[Ack]
    seq: int | None


def is_op_fault(exc: Exception) -> bool:
    """Return whether an operation itself is to blame: its data, not the disk or the database."""
    if isinstance(exc, sqlite3.Error):
        kinds = sqlite3.DataError | sqlite3.InterfaceError | sqlite3.ProgrammingError
        binding = isinstance(exc, kinds)
        return binding or error_name(exc).startswith("SQLITE_CONSTRAINT")
    return isinstance(exc, EagledError | ValueError | TypeError | OverflowError)


def run_batch(db: Executor, ops: Sequence[AnyOp], make_tx: Callable[[], Tx]) -> Batch:
    """Run operations in one transaction and commit it.

    Raises:
        Exception: what the database or the disk said; the transaction is then rolled back.
    """
    try:
        return _commit(db, ops, make_tx, _run_grouped)
    except Exception as exc:
        if not is_op_fault(exc):
            raise
    return _commit(db, ops, make_tx, _run_singly)


def _commit(
    db: Executor,
    ops: Sequence[AnyOp],
    make_tx: Callable[[], Tx],
    run: Callable[[Tx, Sequence[AnyOp]], list[Any]],
) -> Batch:
    db.sql("BEGIN IMMEDIATE")
    try:
        tx = make_tx()
        before = db.total_changes()
        results = run(tx, ops)
        if db.total_changes() == before:
            db.sql("ROLLBACK")
            return Batch(results, [], None)
        seq = int(db.rows("bump_seq")[0][0])
        crash_point("before_commit")
        db.sql("COMMIT")
    except BaseException:
        roll_back(db)
        raise
    crash_point("after_commit")
    return Batch(results, tx.acks, seq)


def roll_back(db: Executor) -> None:
    """End an open transaction; a full disk may have ended it already."""
    try:
        db.sql("ROLLBACK")
    except Exception as exc:
        if "no transaction is active" not in str(exc):
            raise


def _run_grouped(tx: Tx, ops: Sequence[AnyOp]) -> list[Any]:
    results: dict[int, Any] = {}
    places = sorted(range(len(ops)), key=lambda i: ops[i].order)  # stable: the rest as they came
    while places:
        kind = type(ops[places[0]])
        same = [i for i in places if type(ops[i]) is kind] if _merges(kind) else [places[0]]
        found = kind.apply_all(tx, [ops[i] for i in same])
        results.update(zip(same, found, strict=True))
        taken = set(same)
        places = [i for i in places if i not in taken]
    return [results[i] for i in range(len(ops))]


def _merges(kind: type[AnyOp]) -> bool:
    return kind.order != Op.order


def _run_singly(tx: Tx, ops: Sequence[AnyOp]) -> list[Any]:
    results: dict[int, Any] = {}
    for i in sorted(range(len(ops)), key=lambda i: ops[i].order):
        results[i] = _run_saved(tx, ops[i])
    return [results[i] for i in range(len(ops))]


def _run_saved(tx: Tx, op: AnyOp) -> Any:  # noqa: ANN401 - an operation's own result type
    told = len(tx.acks)
    tx.db.sql("SAVEPOINT op")
    try:
        result = op.apply(tx)
    except Exception as exc:
        if not is_op_fault(exc):
            raise
        tx.db.sql("ROLLBACK TO op")
        tx.db.sql("RELEASE op")
        del tx.acks[told:]
        return Failed(exc)
    tx.db.sql("RELEASE op")
    return result
