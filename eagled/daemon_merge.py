"""Merge on request, and extraction of exactly what was merged (`extract.start = "after_merge"`).

Guarantee: neither stops the lanes: both read in a thread with a connection of their own. Only
samples of the newest corpus are handed to extraction in that mode; samples that come back (a dead
worker, a dropped shard) are found again by the next scan.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eagled.config import Config
from eagled.daemon_runtime import Runtime
from eagled.daemon_thread import Readers, Stop
from eagled.errors import UnreachableError
from eagled.paths import StatePaths
from eagled.store import StoreReader
from eagled.types import EventKind

SCAN_EVERY_S = 5.0
_SHOWN = ("rows", "members_hash", "counts", "tokens", "splits", "datasets")


async def merge_now(runtime: Runtime, uid: int) -> dict[str, Any]:
    """Freeze what is accepted into a corpus version; return its path and counts."""
    servers = {s.fingerprint for s in runtime.generator.metrics().servers if s.fingerprint}
    server = ",".join(sorted(servers)) or None
    work = partial(_merge, runtime.config, runtime.paths, server)
    result = await runtime.readers.run(work, "merge")
    if result["created"]:
        detail = f"{result['rows']} samples"
        await runtime.store.add_event(EventKind.MERGED, str(result["version"]), detail, uid)
    runtime.corpus_frozen = True
    return result


def _merge(config: Config, paths: StatePaths, server: str | None, stop: Stop) -> dict[str, Any]:
    from eagled.workers.merge import merge_run

    def go_on(_done: int, _all: int) -> None:
        if stop():
            raise UnreachableError("the daemon is stopping: the merge was given up")

    with StoreReader(paths.database, stop) as reader:
        result = merge_run(config, reader, server=server, progress=go_on)
    shown = {key: result.corpus.manifest[key] for key in _SHOWN if key in result.corpus.manifest}
    return {
        "path": str(result.corpus.folder),
        "version": result.corpus.version,
        "created": result.created,
        "changed": result.changed,
        **shown,
        "rows": result.corpus.n_rows,
    }


class CorpusQueue:
    """Numbers of samples of the newest corpus that wait for extraction."""

    def __init__(self, paths: StatePaths, readers: Readers) -> None:
        self._paths = paths
        self._readers = readers
        self._ids: deque[int] = deque()
        self._members: frozenset[bytes] = frozenset()
        self._folder: Path | None = None
        self._scanned_at = float("-inf")
        self._scanning = asyncio.Lock()

    async def next(self, n: int) -> Sequence[int]:
        """Return up to `n` numbers to try; look for more when none is left."""
        async with self._scanning:
            now = asyncio.get_running_loop().time()
            if not self._ids and now - self._scanned_at >= SCAN_EVERY_S:
                self._scanned_at = now
                self._ids.extend(await self._readers.run(self._scan, "corpus scan"))
        return [self._ids.popleft() for _ in range(min(n, len(self._ids)))]

    def put_back(self, ids: Sequence[int]) -> None:
        """Take back what was not claimed, to the front."""
        self._ids.extendleft(reversed(ids))

    def _scan(self, stop: Stop) -> list[int]:
        from eagled.train.corpus import corpus_versions, read_corpus

        versions = corpus_versions(self._paths.corpora)
        if not versions:
            return []
        if versions[-1] != self._folder:
            corpus = read_corpus(versions[-1])
            self._members = frozenset(bytes.fromhex(row.uid) for row in corpus.rows())
            self._folder = versions[-1]
        with StoreReader(self._paths.database, stop) as reader:
            return [n for n, uid in reader.waiting_extraction() if uid in self._members]
