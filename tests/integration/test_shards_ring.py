"""Stream mode on the real store: ten times the cap goes through a ring, over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from eagled.clock import FakeClock
from eagled.config import Config
from eagled.control.desks import ExtractDesk
from eagled.control.doorbell import Doorbell
from eagled.daemon_ring import RingDesk
from eagled.daemon_shards import reconcile_shards, shard_totals
from eagled.errors import UsageError
from eagled.paths import StatePaths
from eagled.shards import ShardDataset
from eagled.store import Store, StoreReader
from eagled.store.records import DatasetRecord, NewConversation, NewTurn
from eagled.tokens import make_uid, pack_ids
from eagled.train.corpus import Corpus
from eagled.types import ExtractJob, Fence, Mode, ShardMember, ShardRecord
from eagled.workers.extraction import Extraction, ExtractSettings
from eagled.workers.merge import merge_run
from tests.integration.test_extract_store import StoreLink, states
from tests.unit.shards.doubles import ToyBackend

SAMPLES = 400
CAP = 100_000
TARGET = 12_000
DEADLINE_S = 300.0  # a limit of failure only: the machine may be busy


def config(folder: Path, **disk: object) -> Config:
    """Return a configuration in stream mode with a small ring."""
    values = {"mode": "stream", "ring_bytes": CAP, **disk}
    return Config.model_validate({
        "run": {"state_dir": folder}, "target": {"model": "toy"}, "disk": values,
        "extract": {"batch_tokens": 64},
    })  # fmt: skip


async def fill(store: Store) -> None:
    """Store answers, 90 tokens each with its prompt."""
    record = DatasetRecord("alpha", 0, Mode.NATIVE, "k", SAMPLES, SAMPLES, 0)
    dataset = await store.add_dataset(record)
    rng = np.random.default_rng(7)
    items = []
    for i in range(SAMPLES):
        prompt, output = pack_ids(rng.integers(0, 300, 30)), pack_ids(rng.integers(0, 300, 30))
        turn = NewTurn(make_uid("turn", str(i)), 0, prompt, output)
        uid = make_uid("talk", str(i))
        items.append(NewConversation(uid, make_uid("d", str(i)), None, None, (turn,)))
    await store.add_conversations(dataset, items)


class RingLink(StoreLink):
    """The daemon's side with its desk and ring; remembers the most bytes that shards took."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store)
        self.paths = StatePaths(folder)
        self.peak = self.total = self.waits = 0
        self.open(store)

    def open(self, store: Store) -> None:
        """Take a store, as a daemon that starts does."""
        self._store, bell = store, Doorbell()
        self.ring = RingDesk(config(self.paths.root), self.paths, store, FakeClock(), bell)
        self.desk = ExtractDesk(store, bell, lambda: not self.ring.wait_reason(self.desk))

    async def claim_extract(
        self, worker: str, max_samples: int, max_tokens: int
    ) -> list[ExtractJob]:
        """Claim through the desk, without its long wait."""
        await self.ring.sweep(self.desk)
        jobs = await self.desk._take(worker, max_samples, max_tokens)
        self.waits += bool(self.ring.wait_reason(self.desk))
        return jobs

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Commit through the desk, and look at the folder."""
        result = await self.desk.commit(record, members)
        held = sum(_size(path) for path in self.paths.shards.glob("*.safetensors"))
        self.peak, self.total = max(self.peak, held), self.total + record.file_bytes
        return result.accepted, result.stale

    async def fail_extract(
        self, fence: Fence, reason: str, detail: str = "", *, final: bool
    ) -> bool:
        """Report through the desk."""
        return await self.desk.fail(fence, reason, detail, final=final)


def _size(shard: Path) -> int:
    """Return what a shard holds of the disk; the ring may remove it meanwhile."""
    try:
        return shard.stat().st_size
    except FileNotFoundError:
        return 0


def worker(link: RingLink) -> Extraction:
    """Return the worker's loop."""
    settings = ExtractSettings(
        shards=link.paths.shards, batch_tokens=64, target_bytes=TARGET, max_wait_s=600.0,
        stop_timeout_s=5.0, once=True, idle_wait_s=0.001,
    )  # fmt: skip
    return Extraction(link, ToyBackend(), settings, FakeClock())


async def consume(link: RingLink, seen: list[str], name: str, until: int) -> None:
    """A trainer: lease a shard, read every sample of it, release."""
    while len(seen) < until:
        for shard in await link.ring.lease(name, 1, 0.0):
            dataset = await asyncio.to_thread(ShardDataset, [Path(shard["path"])])
            seen += [dataset[i]["uid"] for i in range(len(dataset))]
            await link.ring.release(name, [shard["name"]])
        await asyncio.sleep(0)


async def test_ten_times_the_cap_goes_through_the_ring(tmp_path: Path) -> None:
    """Each sample is read exactly once by each of two consumers, over a restart; the cap holds."""
    store = await Store.open(StatePaths(tmp_path), clock=FakeClock(), create=True)
    link = RingLink(store, tmp_path)
    first: list[str] = []
    second: list[str] = []
    try:
        await fill(store)
        await link.ring.start()
        for name in ("one", "two"):
            await link.ring.register(name)
        loop = worker(link)
        work = asyncio.create_task(loop.run())
        async with asyncio.timeout(DEADLINE_S):
            async with asyncio.TaskGroup() as group:
                group.create_task(consume(link, first, "one", SAMPLES // 2))
                group.create_task(consume(link, second, "two", SAMPLES // 2))
            loop.stop()
            await work
            await store.close()
            store = await Store.open(StatePaths(tmp_path), clock=FakeClock())
            await reconcile_shards(store, link.paths)
            link.open(store)
            await link.ring.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(worker(link).run())
                group.create_task(consume(link, first, "one", SAMPLES))
                group.create_task(consume(link, second, "two", SAMPLES))

        assert sorted(first) == sorted(second) == sorted(set(first))
        assert len(first) == SAMPLES
        assert link.total > 10 * CAP
        assert link.peak <= CAP
        assert link.waits > 0  # extraction did wait for the consumers
        assert await states(store) == {"extracted": SAMPLES}
        assert list(link.paths.shards.glob("*.safetensors")) == []
        assert shard_totals(await store.shards()).samples == SAMPLES
    finally:
        await store.close()


async def test_a_dead_consumer_holds_the_ring_for_its_lease_only(tmp_path: Path) -> None:
    """After the lease the shard goes, with an event; a removal cut short is ended at start."""
    clock = FakeClock()
    store = await Store.open(StatePaths(tmp_path), clock=clock, create=True)
    link = RingLink(store, tmp_path)
    try:
        await fill(store)
        link.ring = ring = RingDesk(
            config(tmp_path, ring_bytes=0, lease_s=60), link.paths, store, clock, Doorbell()
        )
        await asyncio.wait_for(worker(link).run(), DEADLINE_S)
        names = [s["name"] for s in await ring.lease("dead", 3, 0.0)]
        kept = (link.paths.shards / names[0]).read_bytes()
        await ring.lease("alive", 3, 0.0)
        await ring.release("alive", names)
        assert all((link.paths.shards / name).exists() for name in names)
        clock.advance(61)
        await ring.lease("alive", 0, 0.0)
        await ring.sweep(link.desk)

        assert not any((link.paths.shards / name).exists() for name in names)
        events = [e.subject for e in await store.events(0, 500) if e.kind == "consumer_gone"]
        assert events == ["dead"]
        (link.paths.shards / names[0]).write_bytes(kept)  # the crash came before the removal
        assert await reconcile_shards(store, link.paths) == []
        assert not (link.paths.shards / names[0]).exists()
    finally:
        await store.close()


def merged(config: Config, paths: StatePaths) -> Corpus:
    """Freeze what is there into a corpus."""
    with StoreReader(paths.database) as reader:
        return merge_run(config, reader).corpus


async def test_a_lease_says_what_a_merge_would_hold_out(tmp_path: Path) -> None:
    """Each sample of a shard is named once, in the split that a corpus of the run has it in."""
    store = await Store.open(StatePaths(tmp_path), clock=FakeClock(), create=True)
    link = RingLink(store, tmp_path)
    try:
        await fill(store)
        found = config(tmp_path, ring_bytes=0)
        found = found.model_copy(update={"merge": found.merge.model_copy(update={"holdout": 0.3})})
        link.ring = ring = RingDesk(found, link.paths, store, FakeClock(), Doorbell())
        await asyncio.wait_for(worker(link).run(), DEADLINE_S)
        corpus = await asyncio.to_thread(merged, found, link.paths)
        shards = await ring.lease("one", 1000, 0.0)

        for split in ("train", "holdout"):
            told = [uid for shard in shards for uid in shard[split]]
            assert sorted(row.uid for row in corpus.rows(split)) == sorted(told)
            assert len(told) > SAMPLES // 10
    finally:
        await store.close()


async def test_a_run_that_keeps_its_shards_has_no_ring(tmp_path: Path) -> None:
    """Leasing from it is a mistake that names the setting."""
    store = await Store.open(StatePaths(tmp_path), clock=FakeClock(), create=True)
    try:
        keep = config(tmp_path, mode="keep")
        ring = RingDesk(keep, StatePaths(tmp_path), store, FakeClock(), Doorbell())
        await ring.start()
        with pytest.raises(UsageError, match=r"disk\.mode"):
            await ring.lease("x", 1, 0.0)
    finally:
        await store.close()
