"""Lanes, datasets and conversations enter the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagled.errors import ArtifactError, UsageError
from eagled.store import AddResult, LaneRow, NewConversation, NewTurn, SampleFilter
from eagled.tokens import pack_ids
from eagled.types import SampleState
from tests.faults import fault_file, fault_row
from tests.unit.store.helpers import (
    LANES,
    conversation,
    conversations,
    filled,
    generate,
    opened,
    problems,
    record,
    state_counts,
    uid,
)


def rows_of(relpath: str) -> list[NewConversation]:
    """Return the rows of a fault file as prep names them: by content and source id, not place."""
    items = []
    for line in fault_file(relpath).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = (json.dumps(row.get("id")), json.dumps(row["messages"], sort_keys=True))
        prompt = pack_ids([ord(c) for c in row["messages"][0]["content"]])
        turn = NewTurn(uid("turn", *key), 0, prompt, lane="short")
        items.append(NewConversation(uid(*key), uid("dedup", *key), key[0], None, (turn,)))
    return items


@pytest.mark.fault("F50")
async def test_f50_identity_does_not_depend_on_place(tmp_path: Path) -> None:
    """A second import, reversed or cut short, adds nothing and does nothing finished again."""
    items = rows_of(fault_row("F50")["files"][0])
    async with opened(tmp_path) as store:
        number = await store.add_dataset(record())
        first = await store.add_conversations(number, items)
        done = {claim.uid for claim in await generate(store, 2)}
    async with opened(tmp_path) as store:
        again = [
            await store.add_conversations(await store.add_dataset(record()), part)
            for part in (items, items[::-1], items[:2])
        ]
        rest = {claim.uid for claim in await store.claim("short", 10)}

    assert AddResult(4, 0, 0) == first
    assert [AddResult(0, 4, 0), AddResult(0, 4, 0), AddResult(0, 2, 0)] == again
    assert {turn.uid for item in items for turn in item.turns} == done | rest
    assert not done & rest


@pytest.mark.fault("F52")
async def test_f52_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    """Running the whole stage again leaves no duplicate row and nothing to claim."""
    items = rows_of(fault_row("F52")["files"][0])
    claimed = []
    for _ in range(2):
        async with opened(tmp_path) as store:
            number = await store.add_dataset(record())
            await store.add_conversations(number, items)
            await store.finish_dataset(number)
            claimed.append(len(await generate(store, 10)))
            rows = await store.samples()

    assert [4, 0] == claimed
    assert len({row.uid for row in rows}) == len(rows) == 4


async def test_what_is_missing_is_decided_from_what_is_stored(tmp_path: Path) -> None:
    """Each start adds and claims exactly what the rows that are there now lack."""
    items = conversations("a", 6)
    added = []
    for upto in (3, 6, 6):
        async with opened(tmp_path) as store:
            number = await store.add_dataset(record())
            added.append((await store.add_conversations(number, items[:upto])).added)
            added.append(len(await generate(store, 2)))

    assert [3, 2, 3, 2, 0, 2] == added


async def test_same_conversation_in_two_datasets_counts_once(tmp_path: Path) -> None:
    """A de-duplication key that another dataset holds is a duplicate; within one it is not."""
    items = [conversation("b", i, dedup="same") for i in range(2)]
    async with opened(tmp_path) as store:
        first = await store.add_dataset(record("a"))
        second = await store.add_dataset(record("b"))
        mine = await store.add_conversations(first, [conversation("a", 0, dedup="same")])
        theirs = await store.add_conversations(second, items)
        own = await store.add_conversations(
            second, [conversation("c", i, dedup="other") for i in range(2)]
        )

    assert AddResult(1, 0, 0) == mine
    assert AddResult(0, 0, 2) == theirs
    assert AddResult(2, 0, 0) == own


async def test_turns_start_where_they_belong(tmp_path: Path) -> None:
    """First turns are queued, later ones wait without a lane, native ones are generated."""
    native = NewTurn(uid("n", 0), 0, pack_ids([1]), output=pack_ids([2, 3]))
    item = NewConversation(uid("n"), uid("nd"), None, None, (native,))
    async with opened(tmp_path) as store:
        number = await filled(store, 2, turns=3)
        await store.add_conversations(number, [item])
        counts = {(row.lane, row.state): row.n for row in await store.counters()}
        checked = await store.claim_extract(5, 100, worker="w")

    assert {
        ("short", SampleState.QUEUED): 2,
        (None, SampleState.WAITING): 4,
        (None, SampleState.GENERATED): 1,
    } == counts
    assert [native.uid] == [job.uid for job in checked]


async def test_dataset_name_belongs_to_one_preparation(tmp_path: Path) -> None:
    """The same name with other data is refused with both keys; the same data keeps its number."""
    async with opened(tmp_path) as store:
        number = await store.add_dataset(record(prep_key="old"))
        assert number == await store.add_dataset(record(prep_key="old", priority=3))
        with pytest.raises(ArtifactError, match=r"'old'.*'new'"):
            await store.add_dataset(record(prep_key="new"))
        (row,) = await store.datasets()

    assert row.priority == 3


async def test_unknown_lane_adds_nothing(tmp_path: Path) -> None:
    """A slice that names a lane which is not there is refused whole."""
    async with opened(tmp_path) as store:
        number = await store.add_dataset(record())
        with pytest.raises(UsageError, match="nowhere"):
            await store.add_conversations(
                number, [conversation("a", 0), conversation("a", 1, lane="nowhere")]
            )
        assert {} == await state_counts(store)


async def test_large_import_goes_in_slices(tmp_path: Path) -> None:
    """A long import is many transactions, so that a claim need not wait for all of it."""
    async with opened(tmp_path) as store:
        number = await store.add_dataset(record())
        before = store.commits
        result = await store.add_conversations(number, conversations("a", 450))
        commits = store.commits - before

    assert AddResult(450, 0, 0) == result
    assert commits == 3


async def test_operator_settings_outlive_the_configuration(tmp_path: Path) -> None:
    """Reading the configuration again keeps a lane's live pause and limit, and takes the rest."""
    async with opened(tmp_path) as store:
        await store.set_lane("short", paused=True, limit=7, uid=0)
        await store.sync_lanes([LaneRow("short", 3, 9_000, 99), LaneRow("huge", 1, 0, 2)])
        lanes = await store.lanes()

    assert [LaneRow("huge", 1, 0, 2), LaneRow("short", 3, 9_000, 7, paused=True)] == lanes


async def test_samples_of_a_removed_lane_move(tmp_path: Path) -> None:
    """Queued samples whose lane left the configuration go where they fit, or are rejected."""
    async with opened(tmp_path) as store:
        await filled(store, 300)
        await store.sync_lanes(LANES[1:], lane_of=lambda n: "long" if n == 3 else None)
        moved = await store.samples(SampleFilter(lane="long"), 500)
    async with opened(tmp_path) as store:
        await store.sync_lanes([LANES[0]], lane_of=lambda _: None)
        counts = await state_counts(store)

    assert {SampleState.QUEUED} == {row.state for row in moved}
    assert len(moved) == 300
    assert {SampleState.REJECTED: 300} == counts
    assert [] == list(problems(tmp_path))
