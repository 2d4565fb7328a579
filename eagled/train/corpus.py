"""A frozen corpus version: a folder with `corpus.parquet` and `manifest.json`, and reading it.

Guarantee: rows come in the order of the file, one row group in memory; a folder whose manifest is
of another format, or whose table has another size than the manifest says, is refused.
Price: a full checksum only when asked for. `workers/merge.py` writes these folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagled.artifacts import MANIFEST_NAME, read_json, sha256_file
from eagled.errors import ArtifactError

CORPUS_FORMAT = "eagled-corpus/1"
TABLE_NAME = "corpus.parquet"
VERSION = re.compile(r"^v(\d{3,})$")
SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string(), nullable=False),
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("conversation", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("finish", pa.string(), nullable=False),
        pa.field("n_prompt", pa.int32(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("crc", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class CorpusRow:
    """One sample: `input_ids` i32 [T], of which the first `n_prompt` are not supervised.

    `uid` and `conversation` are hex; `crc` is that of the answer's ids in the database.
    """

    uid: str
    dataset: str
    conversation: str
    turn: int
    split: str
    finish: str
    n_prompt: int
    input_ids: npt.NDArray[np.int32]
    attempt: int
    crc: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus version on disk."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def version(self) -> str:
        """Its name, such as v001."""
        return self.folder.name

    @property
    def n_rows(self) -> int:
        """Rows of both splits."""
        return int(self.manifest["rows"])

    @property
    def members_hash(self) -> str:
        """What identifies its members: SHA-256 over uid, attempt and CRC of each, in order."""
        return str(self.manifest["members_hash"])

    def rows(self, split: str | None = None) -> Iterator[CorpusRow]:
        """Yield the rows of one split (None: all) in file order."""
        with pq.ParquetFile(self.folder / TABLE_NAME) as file:
            for group in range(file.num_row_groups):
                for row in _rows(file.read_row_group(group)):
                    if split is None or row.split == split:
                        yield row


def read_corpus(folder: Path, *, checksum: bool = False) -> Corpus:
    """Return the corpus in `folder`.

    Args:
        folder: `<state>/corpora/vNNN`.
        checksum: read the whole table and compare its SHA-256.

    Raises:
        ArtifactError: if it is absent, of another format, torn or altered.
    """
    manifest = read_json(folder / MANIFEST_NAME)
    if manifest.get("format") != CORPUS_FORMAT:
        raise ArtifactError(
            f"{folder}: format is {manifest.get('format')!r}, this version reads {CORPUS_FORMAT!r}"
        )
    table = folder / TABLE_NAME
    size = table.stat().st_size if table.exists() else 0
    if size != manifest["table_bytes"]:
        raise ArtifactError(f"{table}: {size} bytes, the manifest says {manifest['table_bytes']}")
    if checksum and sha256_file(table) != manifest["table_sha256"]:
        raise ArtifactError(f"{table} was altered: its checksum is not that of the manifest")
    return Corpus(folder, manifest)


def corpus_versions(corpora: Path) -> list[Path]:
    """Return the folders of all versions, oldest first; a missing folder has none."""
    found = [(int(m[1]), p) for p in corpora.glob("v*") if (m := VERSION.match(p.name))]
    return [path for _, path in sorted(found)]


def latest_corpus(corpora: Path) -> Corpus:
    """Return the newest version.

    Raises:
        ArtifactError: if there is none.
    """
    versions = corpus_versions(corpora)
    if not versions:
        raise ArtifactError(f"{corpora} holds no corpus; run `eagled merge` first")
    return read_corpus(versions[-1])


def _rows(table: pa.Table) -> Iterator[CorpusRow]:
    ids = table.column("input_ids").combine_chunks()
    values = ids.values.to_numpy()
    bounds = ids.offsets.to_numpy()
    rest = table.drop_columns(["input_ids"]).to_pylist()
    for i, row in enumerate(rest):
        yield CorpusRow(input_ids=values[bounds[i] : bounds[i + 1]], **row)
