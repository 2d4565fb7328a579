"""Small stores and what goes into them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

from eagled.clock import Clock, FakeClock
from eagled.paths import StatePaths
from eagled.store import DatasetRecord, LaneRow, NewConversation, NewTurn, Store
from eagled.store.tools import check_database
from eagled.tokens import make_uid, pack_ids
from eagled.types import Answer, Claim, Finish, Mode, SampleState

LANES = (LaneRow("short", 0, 10_000, 200), LaneRow("long", 1, 0, 16))
ANSWER = Answer(pack_ids([7, 8, 9]), Finish.STOP, "server-a", 0.5)


def uid(*parts: object) -> bytes:
    """Return a 16-byte identity."""
    return make_uid(*(str(part) for part in parts))


def record(name: str = "a", priority: int = 0, prep_key: str = "key") -> DatasetRecord:
    """Return a dataset as it enters."""
    return DatasetRecord(name, priority, Mode.REGENERATE, prep_key, 10, 10, 0)


def conversation(
    name: str, number: int, *, turns: int = 1, lane: str = "short", dedup: str | None = None
) -> NewConversation:
    """Return a conversation whose first turn is queued and whose others wait."""
    first = NewTurn(uid(name, number, 0), 0, pack_ids([1, 2, 3 + number]), lane=lane)
    later = [NewTurn(uid(name, number, t), t, None) for t in range(1, turns)]
    body = b"body" if turns > 1 else None
    key = dedup or f"{name}/{number}"
    return NewConversation(uid(name, number), uid(key), str(number), body, (first, *later))


def conversations(name: str, n: int, *, turns: int = 1) -> list[NewConversation]:
    """Return `n` conversations."""
    return [conversation(name, i, turns=turns) for i in range(n)]


@asynccontextmanager
async def opened(root: Path, clock: Clock | None = None) -> AsyncIterator[Store]:
    """Open a store, made where there is none, and close it."""
    async with await Store.open(StatePaths(root), clock=clock or FakeClock(), create=True) as store:
        await store.sync_lanes(LANES)
        yield store


async def filled(
    store: Store, n: int, *, name: str = "a", turns: int = 1, priority: int = 0
) -> int:
    """Add a dataset of `n` conversations and return its number."""
    number = await store.add_dataset(record(name, priority))
    await store.add_conversations(number, conversations(name, n, turns=turns))
    return number


async def generate(store: Store, n: int, lane: str = "short") -> list[Claim]:
    """Claim and complete `n` samples."""
    claims = await store.claim(lane, n)
    for claim in claims:
        assert await store.complete(claim.fence, ANSWER)
    return claims


async def state_counts(store: Store) -> dict[SampleState, int]:
    """Return the counters summed over datasets and lanes."""
    totals: dict[SampleState, int] = {}
    for row in await store.counters():
        totals[row.state] = totals.get(row.state, 0) + row.n
    return totals


def problems(root: Path) -> Sequence[str]:
    """Return what a full check of a database finds."""
    return check_database(StatePaths(root)).problems


def rows_of(root: Path, query: str) -> list[tuple[object, ...]]:
    """Return the rows of a query on the database file itself."""
    with closing(sqlite3.connect(StatePaths(root).database)) as conn:
        return conn.execute(query).fetchall()
