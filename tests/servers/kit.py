"""A store with samples in it, and a generator that works them off against test servers."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.clock import SystemClock
from eagled.config import Config, SamplingConfig
from eagled.lanes import lane_for, ordered_lanes
from eagled.paths import StatePaths
from eagled.sampling import resolve_sampling
from eagled.server.client import SglangClient
from eagled.store import Store
from eagled.store.records import DatasetRecord, LaneRow, NewConversation, NewTurn, SampleFilter
from eagled.tokens import make_uid, pack_ids, unpack_ids
from eagled.types import EventKind, Mode, SampleState
from eagled.workers.generate import Generator

VOCAB = 283  # the toy tokenizer of the fault inputs
DEADLINE_S = 60.0  # a failure limit; the machine may be busy with other things


def make_config(*urls: str, lanes: dict[str, Any] | None = None, **generation: Any) -> Config:
    """Return a configuration for tests: short waits, one lane of eight unless given."""
    fast = {
        "retry_base_s": 0.05,
        "retry_max_s": 0.2,
        "probe_interval_s": 0.2,
        "min_reply": 8,
        "connect_timeout_s": 2,
    }
    return Config.model_validate(
        {
            "target": {"model": "/models/toy"},
            "servers": [{"url": url} for url in urls],
            "sampling": {"max_new_tokens": 100},
            "lanes": lanes or {"short": {"limit": 8, "concurrency": 8}},
            "generation": fast | generation,
        }
    )


@dataclass(slots=True)
class Rig:
    """Everything of one running generator."""

    config: Config
    store: Store
    generator: Generator
    clients: Sequence[SglangClient]

    async def add(
        self, prompts: Sequence[Sequence[int]], *, dataset: str = "d", later_turns: int = 0
    ) -> None:
        """Queue one conversation a prompt."""
        await add_prompts(self.store, self.config, prompts, dataset, later_turns)
        self.generator.wake()

    async def states(self) -> dict[SampleState, int]:
        """Return how many samples are in each state."""
        return await states(self.store)

    async def settled(self, n: int, timeout_s: float = DEADLINE_S) -> dict[SampleState, int]:
        """Wait until `n` samples are generated, failed or rejected; return the states."""
        done = (SampleState.GENERATED, SampleState.FAILED, SampleState.REJECTED)

        async def enough() -> bool:
            now = await self.states()
            return sum(now.get(state, 0) for state in done) >= n

        await until(enough, timeout_s)
        return await self.states()

    async def happened(self, kind: EventKind) -> list[str]:
        """Wait for an event, which is stored after its cause is seen; return all its details."""

        async def details() -> list[str]:
            return [e.detail for e in await self.store.events(0, 100) if e.kind is kind]

        async def stored() -> bool:
            return bool(await details())

        await until(stored)
        return await details()

    def server_state(self, which: int = 0) -> str:
        """Return the state of a server as a person is shown it."""
        return self.generator.metrics().servers[which].state


async def states(store: Store) -> dict[SampleState, int]:
    """Return how many samples are in each state."""
    counts: Counter[SampleState] = Counter()
    for row in await store.counters():
        counts[row.state] += row.n
    return {state: n for state, n in counts.items() if n}


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], timeout_s: float = DEADLINE_S
) -> None:
    """Wait for a condition; fail when its deadline passes."""
    deadline = time.monotonic() + timeout_s
    while True:
        outcome = condition()
        if outcome if isinstance(outcome, bool) else await outcome:
            return
        assert time.monotonic() < deadline, "the condition did not come about in time"
        await asyncio.sleep(0.01)


async def add_prompts(
    store: Store,
    config: Config,
    prompts: Sequence[Sequence[int]],
    dataset: str = "d",
    later_turns: int = 0,
) -> None:
    """Store one conversation a prompt under a dataset of its own."""
    record = DatasetRecord(dataset, 0, Mode.REGENERATE, "key", len(prompts), len(prompts), 0)
    number = await store.add_dataset(record)
    items = []
    for i, prompt in enumerate(prompts):
        lane = lane_for(config, len(prompt), server_context=None)
        assert lane is not None
        uid = make_uid(dataset, str(i))
        first = NewTurn(make_uid(uid, b"0"), 0, pack_ids(list(prompt)), lane=lane)
        rest = [NewTurn(make_uid(uid, b"%d" % t), t, None) for t in range(1, later_turns + 1)]
        items.append(NewConversation(uid, uid, None, None, (first, *rest)))
    await store.add_conversations(number, items)
    await store.finish_dataset(number)


def is_new(paths: StatePaths) -> bool:
    """Make the folder; return whether it has no database yet."""
    paths.root.mkdir(parents=True, exist_ok=True)
    return not paths.database.exists()


def crashed_copy(source: Path, target: Path) -> Path:
    """Copy the files of a running store as a power cut would leave them."""
    shutil.copytree(source, target)
    return target


async def open_store(root: Path, config: Config) -> Store:
    """Open a new store with the lanes of a configuration."""
    paths = StatePaths(root)
    store = await Store.open(paths, clock=SystemClock(), create=is_new(paths))
    rows = [
        LaneRow(name, place, lane.context, lane.limit)
        for place, (name, lane) in enumerate(ordered_lanes(config))
    ]
    await store.sync_lanes(rows)
    return store


@asynccontextmanager
async def running(
    root: Path, config: Config, *, vocab: int = VOCAB, stop_s: float = 5.0
) -> AsyncIterator[Rig]:
    """Run a generator on a store in `root` until the block ends."""
    async with AsyncExitStack() as stack:
        store = await open_store(root, config)
        stack.push_async_callback(store.close)
        clients = [
            await stack.enter_async_context(
                SglangClient(server, config.generation, vocab_size=vocab)
            )
            for server in config.servers
        ]
        generator = make_generator(store, clients, config, vocab)
        await generator.start()
        try:
            yield Rig(config, store, generator, clients)
        finally:
            await generator.stop(stop_s)


def make_generator(
    store: Store, clients: Sequence[SglangClient], config: Config, vocab: int = VOCAB
) -> Generator:
    """Return a generator with a seeded chance."""
    return Generator(
        store,
        clients,
        config,
        SystemClock(),
        sampling=lambda name: resolve_sampling(config, name, SamplingConfig()),
        vocab_size=vocab,
        rng=random.Random(7),  # noqa: S311 - spreads waits, keeps no secret
    )


async def sample_of(store: Store, state: SampleState) -> Any:
    """Return the details of the only sample in a state."""
    rows = await store.samples(SampleFilter(state=state), limit=2)
    assert len(rows) == 1
    detail = await store.sample(rows[0].uid)
    assert detail is not None
    return detail


async def stored_ids(store: Store) -> list[list[int]]:
    """Return the output ids of every generated sample, in order of their ids."""
    found = []
    for row in await store.samples(SampleFilter(state=SampleState.GENERATED), limit=1000):
        detail = await store.sample(row.uid)
        assert detail is not None
        assert detail.output is not None
        ids = unpack_ids(detail.output.z, detail.output.crc).tolist()
        found.append((row.id, ids))
    return [ids for _, ids in sorted(found)]
