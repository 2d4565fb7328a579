"""Stream mode in the daemon: a ring of shards with a cap, consumers over the control API.

Guarantee: a shard that goes is first recorded as consumed, then removed, so after a crash the file
is either still leased or known to be done; its samples stay extracted. What was leased and released
survives a restart. Extraction is handed samples only while live shards, claimed samples and one
more claim fit the cap (a claim is always given when nothing is live or claimed, or a small cap
would stop for ever). Price: one small fsynced file at each lease and release.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from eagled.artifacts import fsync_dir, read_json, write_json
from eagled.clock import Clock
from eagled.config import Config
from eagled.control.desks import ExtractDesk
from eagled.control.doorbell import Doorbell
from eagled.errors import ArtifactError, UsageError
from eagled.holdout import HOLDOUT, TRAIN, split_of
from eagled.paths import StatePaths
from eagled.shards.ring import Ring
from eagled.store import Store
from eagled.store.records import ShardRow
from eagled.types import EventKind

logger = logging.getLogger(__name__)
CLAIM_BATCHES = 4  # batches' worth of tokens in one claim, as `workers/extraction.py` has it
LEASE_LOOK_S = 0.5  # how often a waiting lease looks for a new shard


class RingDesk:
    """The ring of one daemon; idle unless `disk.mode` is `stream`."""

    def __init__(
        self, config: Config, paths: StatePaths, store: Store, clock: Clock, doorbell: Doorbell
    ) -> None:
        self._config = config
        self._paths = paths
        self._store = store
        self._clock = clock
        self._doorbell = doorbell
        self._ring = Ring(round(config.disk.lease_s * 1000))
        self._sizes: dict[str, int] = {}
        self._seen_bytes = 0  # of the desk's commits, when the sizes were read
        self._measured: float | None = None  # bytes a token of every shard so far
        self._busy = asyncio.Lock()
        self._saving = asyncio.Lock()

    @property
    def active(self) -> bool:
        """Whether this run streams."""
        return self._config.disk.mode == "stream"

    @property
    def live_bytes(self) -> int:
        """Bytes of the shards that are there, as of the last look."""
        return sum(self._sizes.values())

    async def start(self) -> None:
        """Take over what an earlier daemon left, and end what it had begun to remove."""
        if not self.active:
            return
        if self._paths.ring.exists():
            try:
                state = await asyncio.to_thread(read_json, self._paths.ring)
                self._ring.load(state, self._clock.now_ms())
            except (ArtifactError, KeyError, TypeError, AttributeError) as exc:
                logger.warning("the ring's record is unreadable; consumers begin anew: %s", exc)
        await self._look(None)

    def wait_reason(self, desk: ExtractDesk) -> str:
        """Return why the ring has no room for another claim; empty if it has."""
        cap = self._config.disk.ring_bytes
        if not self.active or not cap:
            return ""
        live = self.live_bytes + desk.committed_bytes - self._seen_bytes
        if not live and not desk.pending_tokens:
            return ""
        claims = max(1, desk.workers) * CLAIM_BATCHES * self._config.extract.batch_tokens
        ahead = (desk.pending_tokens + claims) * (self._measured or 0.0)
        if live + ahead <= cap and (self._measured or not desk.pending_tokens):
            return ""
        return (
            f"the ring of shards is full: {live / 2**20:,.0f} of {cap / 2**20:,.0f} MiB; "
            "it waits for consumers to release (`eagled shards`)"
        )

    async def sweep(self, desk: ExtractDesk) -> None:
        """Drop consumers that are gone, and shards that everybody has read."""
        if not self.active:
            return
        await self._look(desk)
        gone = self._ring.expire(self._clock.now_ms())
        for name in gone:
            detail = "not heard of for disk.lease_s; no longer waited for"
            await self._store.add_event(EventKind.CONSUMER_GONE, name, detail)
        if gone:
            await self._save()
        await self._free()

    async def register(self, name: str) -> None:
        """A consumer begins."""
        self._require()
        self._ring.register(name, self._clock.now_ms())
        await self._save()

    async def lease(self, name: str, n: int, wait_s: float) -> list[dict[str, Any]]:
        """Hand out up to `n` shards; waits for the first one at most `wait_s`."""
        self._require()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            await self._look(None)
            names = self._ring.lease(name, n, self._clock.now_ms())
            left = deadline - loop.time()
            if names or left <= 0:
                await self._save()
                return [{**self._told(n), **await self._members(n)} for n in names]
            await asyncio.sleep(min(left, LEASE_LOOK_S))

    async def release(self, name: str, shards: list[str]) -> int:
        """A consumer is done with shards; what nobody needs any more goes at once."""
        self._require()
        n = self._ring.release(name, shards, self._clock.now_ms())
        await self._save()
        await self._free()
        return n

    async def leave(self, name: str) -> None:
        """A consumer ends."""
        self._require()
        self._ring.leave(name)
        await self._save()
        await self._free()

    def view(self) -> dict[str, Any]:
        """Return ring and consumers as JSON-ready values."""
        return {
            "mode": self._config.disk.mode,
            "cap_bytes": self._config.disk.ring_bytes,
            "live_bytes": self.live_bytes,
            "lease_s": self._config.disk.lease_s,
            "shards": [self._told(name) for name in self._ring.shards],
            "consumers": [
                {"name": c.name, "seen_ms": c.seen_ms, "held": list(c.held), "waiting": c.waiting}
                for c in self._ring.consumers()
            ],
        }

    def _require(self) -> None:
        if not self.active:
            raise UsageError('this run keeps its shards: disk.mode = "stream" makes the ring')

    def _told(self, name: str) -> dict[str, Any]:
        path = str((self._paths.shards / name).resolve())
        return {"name": name, "path": path, "bytes": self._sizes.get(name, 0)}

    async def _members(self, name: str) -> dict[str, list[str]]:
        """Return the uids that count in a shard, by the split that a merge would give them."""
        holdout, seed = self._config.merge.holdout, self._config.run.seed
        found: dict[str, list[str]] = {TRAIN: [], HOLDOUT: []}
        for uid, conversation in await self._store.shard_conversations(name):
            found[split_of(conversation.hex(), holdout, seed)].append(uid.hex())
        return found

    async def _look(self, desk: ExtractDesk | None) -> None:
        """Read which shards there are."""
        async with self._busy:  # what is being freed must not come back from an older read
            seen = desk.committed_bytes if desk is not None else self._seen_bytes
            rows = await self._store.shards()
            live = [row for row in rows if row.dropped is None]
            self._sizes = {row.name: row.file_bytes for row in live}
            self._seen_bytes = seen
            self._measured = _bytes_per_token(rows)
            self._ring.put(self._sizes)

    async def _free(self) -> None:
        """Record, then remove, the shards that may go."""
        async with self._busy:
            names = self._ring.free()
            for name in names:
                await self._store.consume_shard(name)
                await asyncio.to_thread(_remove, self._paths.shards / name)
                self._sizes.pop(name, None)
                self._ring.put(self._sizes)
            if names:
                logger.info("shards consumed n=%d", len(names))
                await self._save()
                self._doorbell.ring()

    async def _save(self) -> None:
        async with self._saving:  # one temporary name; the last one writes what holds
            await asyncio.to_thread(write_json, self._paths.ring, self._ring.to_dict())


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    fsync_dir(path.parent)


def _bytes_per_token(rows: list[ShardRow]) -> float | None:
    tokens = sum(row.n_tokens for row in rows)
    return sum(row.file_bytes for row in rows) / tokens if tokens else None
