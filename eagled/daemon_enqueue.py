"""Bring prepared datasets into the queue without stopping anything else.

Guarantee: idempotent; a folder that is in already costs one look at its manifest. Reading and
decompressing happen in a thread, writing in the store's small transactions, so lanes keep running.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eagled.config import Config
from eagled.prepared import PreparedManifest, read_manifest, read_prepared
from eagled.store import Store
from eagled.store.records import AddResult, DatasetRecord, NewConversation
from eagled.types import EventKind

logger = logging.getLogger(__name__)
CHUNK = 200  # conversations read ahead of the writer
LaneOf = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What one folder brought; `too_long` conversations fit no lane and were left out."""

    dataset: str
    added: int
    known: int
    duplicates: int
    too_long: int

    def __str__(self) -> str:
        text = f"{self.dataset}: {self.added} conversations added, {self.known} known"
        if self.duplicates:
            text += f", {self.duplicates} in another dataset already"
        return text + (f", {self.too_long} longer than any lane" if self.too_long else "")


async def enqueue_folder(
    store: Store, config: Config, folder: Path, lane_of: LaneOf, *, uid: int = -1
) -> Enqueued:
    """Put every conversation of a prepared folder into the queue.

    Raises:
        ArtifactError: if the folder is not what prep left, or its dataset is in the queue from
            another preparation.
    """
    manifest = await asyncio.to_thread(read_manifest, folder)
    dataset = await store.add_dataset(_record(manifest, config))
    rows = {row.id: row for row in await store.datasets()}
    if rows[dataset].complete:
        return Enqueued(manifest.dataset, 0, manifest.n_kept, 0, 0)
    source = read_prepared(folder, lane_of=lane_of)
    total, seen = AddResult(0, 0, 0), 0
    while chunk := await asyncio.to_thread(_take, source):
        total = _sum(total, await store.add_conversations(dataset, chunk))
        seen += len(chunk)
    too_long = manifest.n_kept - seen  # `read_prepared` leaves out what no lane takes
    if not too_long:  # else it is read again at each start: there may be room by then
        await store.finish_dataset(dataset)
    done = Enqueued(manifest.dataset, total.added, total.known, total.duplicates, too_long)
    if total.added:
        await store.add_event(EventKind.ENQUEUED, manifest.dataset, str(done), uid)
    logger.info("enqueued %s", done)
    return done


def _record(manifest: PreparedManifest, config: Config) -> DatasetRecord:
    configured = next((d for d in config.datasets if d.name == manifest.dataset), None)
    return DatasetRecord(
        name=manifest.dataset,
        priority=configured.priority if configured is not None else 0,
        mode=manifest.mode,
        prep_key=manifest.prep_key,
        n_rows=manifest.n_rows,
        n_kept=manifest.n_kept,
        n_rejected=sum(manifest.rejected.values()),
    )


def _take(source: Iterator[NewConversation]) -> list[NewConversation]:
    return list(itertools.islice(source, CHUNK))


def _sum(one: AddResult, other: AddResult) -> AddResult:
    return AddResult(
        one.added + other.added, one.known + other.known, one.duplicates + other.duplicates
    )
