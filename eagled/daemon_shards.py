"""Compare the shard folder with the database at start, and put right what differs.

Guarantee: only files that are known, whole and of the committed size count. What is torn, of
another size or unknown is moved to quarantine, never deleted, and its samples wait for extraction
again. Price: the headers are read, not the data (`eagled verify` reads everything).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from eagled.artifacts import fsync_dir
from eagled.paths import StatePaths
from eagled.shards.scan import ScanReport, scan_shards
from eagled.status import ShardTotals
from eagled.store import Store
from eagled.store.records import ShardRow
from eagled.types import EventKind

logger = logging.getLogger(__name__)


async def reconcile_shards(store: Store, paths: StatePaths) -> list[str]:
    """Set aside what does not count; return one line for each file."""
    rows = await store.shards()
    known = {row.name: row for row in rows if row.dropped is None}
    consumed = [row.name for row in rows if row.consumed]
    await asyncio.to_thread(_remove_consumed, paths.shards, consumed)
    report = await asyncio.to_thread(scan_shards, paths.shards, known)
    lines = [await _damaged(store, paths, bad.name, bad.cause, known=bad.known)
             for bad in report.damaged]  # fmt: skip
    for name in report.unknown:
        cause = "complete, but never committed"
        lines.append(await _damaged(store, paths, name, cause, known=False))
    _log(report, lines)
    return lines


def _remove_consumed(folder: Path, names: Iterable[str]) -> None:
    """Remove what a crash left of shards that every consumer of the ring had read."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


async def _damaged(store: Store, paths: StatePaths, name: str, cause: str, *, known: bool) -> str:
    await asyncio.to_thread(move_aside, paths, name)
    line = f"shard {name} set aside: {cause}"
    if known:
        again = await store.drop_shard(name, cause)
        return f"{line}; {again} samples are extracted again"
    await store.add_event(EventKind.SHARD_SET_ASIDE, name, cause)
    return line


def move_aside(paths: StatePaths, name: str) -> None:
    """Move a shard into quarantine under a name that is free there."""
    source = paths.shards / name
    if not source.exists():
        return
    paths.quarantine.mkdir(parents=True, exist_ok=True)
    target, n = paths.quarantine / name, 0
    while target.exists():
        n += 1
        target = paths.quarantine / f"{name}.{n}"
    source.rename(target)
    fsync_dir(paths.shards)
    fsync_dir(paths.quarantine)


def _log(report: ScanReport, lines: Iterable[str]) -> None:
    for line in lines:
        logger.warning("%s", line)
    if report.removed_tmp:
        logger.info("removed unfinished shard files n=%s", len(report.removed_tmp))


def shard_totals(rows: Iterable[ShardRow]) -> ShardTotals:
    """Return the sums over the shards that count, those that the ring gave up included.

    What was consumed stays extracted, so sums never fall in stream mode; what lies on the disk is
    the governor's `used_bytes`.
    """
    live = [row for row in rows if row.dropped is None or row.consumed]
    return ShardTotals(
        shards=len(live),
        samples=sum(row.n_samples for row in live),
        tokens=sum(row.n_tokens for row in live),
        n_bytes=sum(row.file_bytes for row in live),
    )


def prepared_folders(paths: StatePaths) -> dict[str, Path]:
    """Return the prepared datasets by their folder's name."""
    if not paths.datasets.is_dir():
        return {}
    return {p.name: p for p in sorted(paths.datasets.iterdir()) if (p / "manifest.json").is_file()}
