"""Which samples a frozen corpus has, without their ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.parquet as pq

from eagled.train.corpus import TABLE_NAME, Corpus

_COLUMNS = ["uid", "split", "n_prompt", "crc"]


@dataclass(frozen=True, slots=True)
class CorpusMember:
    """A sample of a corpus: uid in hex, tokens of its prompt, CRC32 of its answer's ids."""

    uid: str
    n_prompt: int
    crc: int


def read_members(corpus: Corpus, split: str | None = None) -> Iterator[CorpusMember]:
    """Yield the members of one split (None: all) in the corpus's order."""
    with pq.ParquetFile(corpus.folder / TABLE_NAME) as file:
        for batch in file.iter_batches(columns=_COLUMNS):
            for row in batch.to_pylist():
                if split is None or row["split"] == split:
                    yield CorpusMember(row["uid"], row["n_prompt"], row["crc"])
