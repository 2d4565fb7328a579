"""Verify a run's shards against its database: what `eagled verify` does.

Guarantee: nothing is changed; findings name file and sample. Price: every shard is read twice.
Numpy only: neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eagled.shards.verify import Member, Progress, VerifyReport, verify_shards
from eagled.store import StoreReader
from eagled.store.records import ShardRow
from eagled.types import ShardRecord


def verify_run(
    reader: StoreReader,
    shards: Path,
    *,
    progress: Progress | None = None,
    share: float = 1.0,
    seed: int = 0,
) -> VerifyReport:
    """Return what does not hold in the shard folder, compared with the database.

    Args:
        reader: of the run's database.
        shards: the shard folder.
        progress: called before each file.
        share: of the samples, whose states are read.
        seed: of the choice of these.
    """
    return verify_shards(
        shards,
        committed(reader.shards()),
        members_of=lambda name: members(reader, name),
        progress=progress,
        share=share,
        seed=seed,
    )


def committed(rows: Iterable[ShardRow]) -> dict[str, ShardRecord]:
    """Return the shards that count, by file name."""
    return {
        row.name: ShardRecord(
            row.name, row.sha256, row.file_bytes, row.n_samples, row.n_tokens, row.manifest_hash
        )
        for row in rows
        if row.dropped is None
    }


def members(reader: StoreReader, name: str) -> list[Member]:
    """Return the database's members of a shard, in file order."""
    return [
        Member(m.uid.hex(), m.index, m.n_prompt, m.n_output, m.output_crc)
        for m in reader.shard_members(name)
    ]
