"""Extraction against the real store: states, shards and verification agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from eagled.clock import FakeClock
from eagled.paths import StatePaths
from eagled.shards.scan import scan_shards
from eagled.store import Store, StoreReader
from eagled.store.records import DatasetRecord, NewConversation, NewTurn
from eagled.tokens import make_uid, pack_ids
from eagled.types import ExtractJob, Fence, Mode, SampleState, ShardMember, ShardRecord
from eagled.workers.extraction import Extraction, ExtractSettings
from eagled.workers.verify import committed, verify_run
from tests.unit.shards.doubles import ToyBackend

DEADLINE_S = 180.0
SAMPLES = 30


class StoreLink:
    """The daemon's side of the work calls, on a store, without a socket."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def hello(self, worker: str, kind: str, pid: int) -> None:
        """Take back what an earlier worker of this name held."""
        assert (kind, pid > 0) == ("extract", True)
        await self._store.release_extract(worker)

    async def claim_extract(
        self, worker: str, max_samples: int, max_tokens: int
    ) -> list[ExtractJob]:
        """Claim from the store."""
        return await self._store.claim_extract(max_samples, max_tokens, worker=worker)

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Commit to the store."""
        result = await self._store.commit_shard(record, members)
        return result.accepted, result.stale

    async def fail_extract(
        self, fence: Fence, reason: str, detail: str = "", *, final: bool
    ) -> bool:
        """Report to the store."""
        return await self._store.fail_extract(fence, reason, detail, final=final)

    async def status(self) -> dict[str, Any]:
        """Return what is left by the store's counters."""
        left = {SampleState.GENERATED.value: 0}
        for row in await self._store.counters():
            if row.state == SampleState.GENERATED:
                left[SampleState.GENERATED.value] += row.n
        return {"datasets": {"alpha": left}}


async def fill(store: Store) -> None:
    """Store native answers, which wait for extraction from the start."""
    n = SAMPLES
    dataset = await store.add_dataset(DatasetRecord("alpha", 0, Mode.NATIVE, "k", n, n, 0))
    rng = np.random.default_rng(7)
    items = []
    for i in range(n):
        prompt = pack_ids(rng.integers(0, 300, 3 + i % 9))
        output = pack_ids(rng.integers(0, 300, 2 + i % 11))
        turn = NewTurn(make_uid("turn", str(i)), 0, prompt, output)
        uid = make_uid("talk", str(i))
        items.append(NewConversation(uid, make_uid("d", str(i)), None, None, (turn,)))
    await store.add_conversations(dataset, items)


async def extract(store: Store, paths: StatePaths, backend: ToyBackend) -> Extraction:
    """Run the worker's loop until nothing is left."""
    settings = ExtractSettings(
        shards=paths.shards, batch_tokens=64, target_bytes=8192, max_wait_s=600.0,
        stop_timeout_s=1.0, once=True, idle_wait_s=0.001,
    )  # fmt: skip
    loop = Extraction(StoreLink(store), backend, settings, FakeClock())
    await asyncio.wait_for(loop.run(), DEADLINE_S)
    return loop


async def states(store: Store) -> dict[str, int]:
    """Return samples by state."""
    return {row.state.value: row.n for row in await store.counters()}


async def test_extraction_and_repair_on_the_real_store(tmp_path: Path) -> None:
    """Every answer is extracted once; a damaged shard is found, dropped and extracted again."""
    paths = StatePaths(tmp_path)
    store = await Store.open(paths, clock=FakeClock(), create=True)
    try:
        await fill(store)
        first = await extract(store, paths, ToyBackend())
        assert (first.samples, await states(store)) == (SAMPLES, {"extracted": SAMPLES})
        with StoreReader(paths.database) as reader:
            assert verify_run(reader, paths.shards).findings == ()
            victim = min(committed(reader.shards()))
            _flip_last_byte(paths.shards / victim)
            assert verify_run(reader, paths.shards).bad_files == (victim,)

        (paths.shards / victim).unlink()
        again = await store.drop_shard(victim, "test")
        second = await extract(store, paths, ToyBackend())

        assert again == second.samples > 0
        assert await states(store) == {"extracted": SAMPLES}
        with StoreReader(paths.database) as reader:
            assert verify_run(reader, paths.shards).findings == ()
            report = scan_shards(paths.shards, committed(reader.shards()))
        assert (report.damaged, report.unknown) == ((), ())
    finally:
        await store.close()


def _flip_last_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


async def test_restart_between_file_and_commit(tmp_path: Path) -> None:
    """A store that was closed and opened again refuses the old commit, and the work is redone."""
    paths = StatePaths(tmp_path)
    store = await Store.open(paths, clock=FakeClock(), create=True)
    await fill(store)
    held = await store.claim_extract(500, 10**9, worker="gone")
    await store.close()
    store = await Store.open(paths, clock=FakeClock())
    try:
        members = [ShardMember(job.fence, i) for i, job in enumerate(held)]
        record = ShardRecord("shard-x.safetensors", "0" * 64, 1, len(held), 1, "m")
        late = await store.commit_shard(record, members)
        loop = await extract(store, paths, ToyBackend())

        assert (late.accepted, late.stale) == (0, SAMPLES)
        assert (loop.samples, await states(store)) == (SAMPLES, {"extracted": SAMPLES})
    finally:
        await store.close()


async def test_refused_states_are_given_up_in_the_store(tmp_path: Path) -> None:
    """A sample whose states are NaN ends as failed, with the reason; the others are extracted."""
    paths = StatePaths(tmp_path)
    store = await Store.open(paths, clock=FakeClock(), create=True)
    try:
        await fill(store)
        backend = ToyBackend()
        ids = np.random.default_rng(7).integers(0, 300, 3)
        backend.broken = {int(ids[0])}
        await extract(store, paths, backend)

        counts = await states(store)
        assert counts["failed"] >= 1
        assert counts["failed"] + counts["extracted"] == SAMPLES
        assert (await store.failures(10))[0].reason == "bad_states"
    finally:
        await store.close()
