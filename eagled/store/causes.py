"""Given-up samples grouped by what caused it, and what trying them again would cost.

A cause is the reason together with its message, numbers, names in quotes, addresses and ids taken
out: the same fault on a thousand samples is one line. Guarantee: the id of a cause depends on
nothing else, so it is the same tomorrow and on another machine. Price: one pass over what was
given up, whatever else there is; 500 rows a statement.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagled.store.executor import Executor
from eagled.types import STATE_CODE, STATE_OF_CODE, SampleState

GIVEN_UP = (SampleState.FAILED, SampleState.REJECTED)
_ID_BYTES = 4
_ROWS = 500
_PATTERN_CHARS = 160
_VARIABLE = (
    (re.compile(r"https?://\S+"), "URL"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "…"),
    (re.compile(r"\b[0-9a-f]{8,}\b"), "ID"),
    (re.compile(r"\d[\d.,_]*"), "N"),
    (re.compile(r"\s+"), " "),
)
# by the index of what was given up, whose condition has to stand here word for word
SLICE = """
SELECT s.id, s.uid, d.name, s.state, s.reason, s.detail, s.n_prompt
FROM sample AS s JOIN dataset AS d ON d.id = s.dataset_id
WHERE s.dataset_id = ? AND s.state = ? AND s.state IN (7, 8, 9) AND (s.reason, s.id) > (?, ?)
ORDER BY s.reason, s.id LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What an answer of a dataset is like: tokens, and seconds at a server."""

    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """Given-up samples of one dataset, state and cause.

    Attributes:
        cause: eight hex digits, for `eagled retry --cause`.
        pattern: the message with what varies taken out.
        example: uid of the newest one; `detail` is its message.
        tokens_in: prompt tokens that a retry of all would send.
        tokens_out: answer tokens that it may come to; None while no answer of it is known.
        busy_s: seconds of a request that it may come to, over all of them.
    """

    cause: str
    dataset: str
    state: SampleState
    reason: str
    pattern: str
    n: int
    example: str
    detail: str
    tokens_in: int
    tokens_out: int | None
    busy_s: float | None


def pattern_of(detail: str) -> str:
    """Return a message with numbers, names and ids taken out."""
    for pattern, word in _VARIABLE:
        detail = pattern.sub(word, detail)
    return detail.strip()[:_PATTERN_CHARS]


def cause_id(reason: str, pattern: str) -> str:
    """Return the short name of a cause."""
    return hashlib.blake2b(f"{reason}\0{pattern}".encode(), digest_size=_ID_BYTES).hexdigest()


def expectations(db: Executor) -> Mapping[str, Expectation]:
    """Return what answers were like lately, by dataset."""
    rows = db.rows("lately_generated")
    return {name: Expectation(n or 0.0, (ms or 0.0) / 1000) for name, n, ms, _ in rows}


@dataclass(slots=True)
class _Tally:
    n: int = 0
    tokens_in: int = 0
    newest: int = 0
    uid: bytes = b""
    detail: str = ""


@dataclass(slots=True)
class _Tallies:
    by: dict[tuple[str, int, str, str], _Tally] = field(default_factory=dict)

    def add(self, row: tuple[Any, ...]) -> None:
        number, uid, dataset, state, reason, detail, n_prompt = row
        key = (dataset, state, reason, pattern_of(detail or ""))
        tally = self.by.setdefault(key, _Tally())
        tally.n += 1
        tally.tokens_in += n_prompt or 0
        if number > tally.newest:
            tally.newest, tally.uid, tally.detail = number, uid, detail or ""


def groups(execute: Any, known: Mapping[str, Expectation], limit: int) -> list[CauseGroup]:  # noqa: ANN401 - sqlite3.Connection.execute
    """Return the groups, largest first, at most `limit`."""
    tallies = _Tallies()
    for row in _rows(execute):
        tallies.add(row)
    found = [_group(key, tally, known.get(key[0])) for key, tally in tallies.by.items()]
    return sorted(found, key=lambda g: (-g.n, g.cause, g.dataset))[:limit]


def _group(key: tuple[str, int, str, str], tally: _Tally, known: Expectation | None) -> CauseGroup:
    dataset, state, reason, pattern = key
    return CauseGroup(
        cause=cause_id(reason, pattern),
        dataset=dataset,
        state=STATE_OF_CODE[state],
        reason=reason,
        pattern=pattern,
        n=tally.n,
        example=tally.uid.hex(),
        detail=tally.detail,
        tokens_in=tally.tokens_in,
        tokens_out=round(known.tokens * tally.n) if known else None,
        busy_s=round(known.seconds * tally.n, 1) if known else None,
    )


def members(execute: Any, cause: str) -> list[int]:  # noqa: ANN401 - sqlite3.Connection.execute
    """Return the numbers of the samples of one cause."""
    return [row[0] for row in _rows(execute) if cause_id(row[4], pattern_of(row[5] or "")) == cause]


def _rows(execute: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - sqlite3.Connection.execute
    datasets = [row[0] for row in execute("SELECT id FROM dataset ORDER BY id").fetchall()]
    for dataset, state in itertools.product(datasets, GIVEN_UP):
        last = ("", 0)
        while rows := execute(SLICE, (dataset, STATE_CODE[state], *last, _ROWS)).fetchall():
            yield from rows
            last = (rows[-1][4], rows[-1][0])
