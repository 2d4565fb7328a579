"""Freeze the accepted answers of the store into a corpus version.

Guarantee: a version holds exactly the members of one moment's list; a sample that changed between
the list and the reading of its body is left out and counted, never mixed in. The order is that of
(dataset, conversation uid, turn), and all turns of a conversation are in the same split. The same
members under the same settings give the version that is already there. A version's folder appears
complete or not at all.
Price: the database is read once in chunks; ids go through a temporary file of 4 bytes a token, and
about 200 bytes a member stay in memory for the sort. Loads neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import eagled
from eagled.artifacts import (
    MANIFEST_NAME,
    TMP_SUFFIX,
    disk_error,
    fsync_dir,
    read_json,
    sha256_file,
    sha256_json,
    write_json,
)
from eagled.config import Config
from eagled.errors import ArtifactError, ConfigError
from eagled.holdout import HOLDOUT, TRAIN, split_of
from eagled.paths import StatePaths
from eagled.shards.target import read_target
from eagled.store.records import Body, Frozen
from eagled.tokens import unpack_ids
from eagled.train.corpus import (
    CORPUS_FORMAT,
    SCHEMA,
    TABLE_NAME,
    Corpus,
    corpus_versions,
    read_corpus,
)

__all__ = ["CorpusResult", "corpus_provenance", "merge_corpus", "merge_run", "read_corpus"]

_log = logging.getLogger(__name__)
CHUNK = 500  # bodies of one read transaction
_GROUP_ROWS = 512  # of a row group; a reader holds one
_ID_BYTES = 4


class BodyReader(Protocol):
    """What merging needs of the store (`eagled.store.StoreReader` has it)."""

    def freeze(self) -> list[Frozen]:
        """Return the members of this moment."""

    def bodies(self, ids: Sequence[int]) -> Iterator[Body]:
        """Yield the answers among `ids` that are still accepted."""


@dataclass(frozen=True, slots=True)
class CorpusResult:
    """A corpus version and what merging saw.

    Attributes:
        corpus: the version.
        created: False if it was there already.
        changed: members that changed or went while they were read, and are not in it.
    """

    corpus: Corpus
    created: bool
    changed: int


@dataclass(frozen=True, slots=True, order=True)
class _Member:
    """A row without its ids; the first three fields are the order of the corpus."""

    dataset: str
    conversation: str
    turn: int
    uid: str
    finish: str
    attempt: int
    crc: int
    n_prompt: int
    start: int  # of its ids in the temporary file, in tokens
    n_tokens: int


Progress = Callable[[int, int], None]  # members read, members in all


def merge_run(
    config: Config,
    reader: BodyReader,
    *,
    server: str | None = None,
    progress: Progress | None = None,
) -> CorpusResult:
    """Merge the run of `config`; `server` is the fingerprint that its servers had."""
    return merge_corpus(
        reader,
        StatePaths(config.run.state_dir).corpora,
        holdout=config.merge.holdout,
        seed=config.run.seed,
        provenance=corpus_provenance(config, server),
        progress=progress,
    )


def corpus_provenance(config: Config, server: str | None = None) -> dict[str, Any]:
    """Return what the answers of a run were made with, for the manifest."""
    hashes: dict[str, str | None]
    try:
        target = read_target(Path(config.target.model))
        hashes = {"target_hash": target.target_hash, "tokenizer_hash": target.tokenizer_hash}
    except ConfigError:  # a hub id: its revision names it
        hashes = {"target_hash": None, "tokenizer_hash": None}
    return {
        "target": Path(config.target.model).name,
        "revision": config.target.revision,
        **hashes,
        "prepared": _prepared_inputs(config),
        "sampling": {
            d.name: config.sampling_of(d.name).model_dump(mode="json") for d in config.datasets
        },
        "server": server,
    }


def _prepared_inputs(config: Config) -> dict[str, Any]:
    """Return the key (which covers template and tokenizer) of every prepared dataset."""
    folder = StatePaths(config.run.state_dir).datasets
    keys = {}
    for dataset in config.datasets:
        path = folder / dataset.name / MANIFEST_NAME
        if path.exists():
            keys[dataset.name] = read_json(path).get("prep_key")
    return keys


def merge_corpus(
    reader: BodyReader,
    corpora: Path,
    *,
    holdout: float,
    seed: int,
    provenance: Mapping[str, Any],
    progress: Progress | None = None,
) -> CorpusResult:
    """Freeze the accepted answers into `corpora/vNNN`; blocking.

    Args:
        reader: the store, read in chunks.
        corpora: folder of the versions.
        holdout: share of conversations held out, by their identity and the seed.
        seed: moves which conversations are held out.
        provenance: what the answers were made with; part of what names a version.
        progress: called after each chunk that is read or written; what it raises ends the merge.

    Raises:
        ArtifactError: if there is nothing to merge, nothing is left to train on, or stored ids
            are damaged.
        DiskError: if the version cannot be written; nothing of it is left then.
    """
    frozen = reader.freeze()
    with _work_folder(corpora) as work:
        spool = work / "ids"
        members = sorted(_spool_bodies(reader, frozen, spool, progress))
        settings = {"holdout": holdout, "seed": seed, "made_with": dict(provenance)}
        splits = [split_of(m.conversation, holdout, seed) for m in members]
        _check_content(members, splits, holdout)
        manifest = _manifest(members, splits, settings)
        if holdout and HOLDOUT not in splits:
            _log.warning("nothing is held out holdout=%g rows=%d", holdout, len(splits))
        changed = len(frozen) - len(members)
        if changed:
            _log.warning("members changed while merging left_out=%d", changed)
        known = _same_version(corpora, manifest)
        if known is not None:
            return CorpusResult(known, created=False, changed=changed)
        _write_table(work / TABLE_NAME, members, splits, spool, progress)
        spool.unlink()
        return CorpusResult(_publish(work, corpora, manifest), created=True, changed=changed)


def _spool_bodies(
    reader: BodyReader, frozen: Sequence[Frozen], spool: Path, progress: Progress | None
) -> Iterator[_Member]:
    """Write the ids of unchanged members to `spool`, and yield the rest of each."""
    start = 0
    with spool.open("wb") as file:
        for first in range(0, len(frozen), CHUNK):
            chunk = frozen[first : first + CHUNK]
            want = {f.id: (f.attempt, f.crc) for f in chunk}
            for body in reader.bodies([f.id for f in chunk]):
                if (body.attempt, body.output.crc) == want[body.id]:
                    member = _spool(file, body, start)
                    start += member.n_tokens
                    yield member
            if progress:
                progress(min(first + CHUNK, len(frozen)), len(frozen))


def _spool(file: BinaryIO, body: Body, start: int) -> _Member:
    prompt = unpack_ids(body.prompt.z, body.prompt.crc)
    output = unpack_ids(body.output.z, body.output.crc)
    uid = body.uid.hex()
    if not len(prompt) or not len(output):
        raise ArtifactError(f"sample {uid}: nothing of it would be supervised; `eagled db check`")
    file.write(prompt.tobytes())
    file.write(output.tobytes())
    return _Member(
        body.dataset,
        body.conversation.hex(),
        body.turn,
        uid,
        body.finish.value,
        body.attempt,
        body.output.crc,
        len(prompt),
        start,
        len(prompt) + len(output),
    )


def _check_content(members: Sequence[_Member], splits: Sequence[str], holdout: float) -> None:
    if not members:
        raise ArtifactError("there is nothing to merge: no answer is generated and checked yet")
    if TRAIN not in splits:
        raise ArtifactError(
            f"merge.holdout = {holdout} leaves nothing to train on: all {len(members)} samples "
            "are held out; lower it or generate more"
        )


def _manifest(
    members: Sequence[_Member], splits: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest without what only the written table can tell."""
    made_with = {k: v for k, v in settings["made_with"].items() if k != "server"}
    identity = {**settings, "made_with": made_with}  # servers may be away when merging again
    listed = hashlib.sha256()
    for m in members:
        listed.update(f"{m.uid} {m.attempt} {m.crc}\n".encode())
    held = [m for m, split in zip(members, splits, strict=True) if split == HOLDOUT]
    return {
        "format": CORPUS_FORMAT,
        "eagled": eagled.__version__,
        "members_hash": listed.hexdigest(),
        "settings_hash": sha256_json(identity),
        **settings,
        "rows": len(members),
        "tokens": sum(m.n_tokens for m in members),
        "supervised_tokens": sum(m.n_tokens - m.n_prompt for m in members),
        "datasets": dict(Counter(m.dataset for m in members)),
        "finish": dict(Counter(m.finish for m in members)),
        "conversations": len({m.conversation for m in members}),
        "holdout_rows": len(held),
        "holdout_conversations": len({m.conversation for m in held}),
    }


def _same_version(corpora: Path, manifest: Mapping[str, Any]) -> Corpus | None:
    """Return the newest version with these members and settings."""
    for folder in reversed(corpus_versions(corpora)):
        known = read_json(folder / MANIFEST_NAME)
        if all(known.get(k) == manifest[k] for k in ("format", "members_hash", "settings_hash")):
            return read_corpus(folder)
    return None


def _write_table(
    path: Path,
    members: Sequence[_Member],
    splits: Sequence[str],
    spool: Path,
    progress: Progress | None,
) -> None:
    ids = np.memmap(spool, dtype="<u4", mode="r")
    with path.open("wb") as file:
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for start in range(0, len(members), _GROUP_ROWS):
                part = slice(start, start + _GROUP_ROWS)
                writer.write_table(_group(members[part], splits[part], ids))
                if progress:
                    progress(len(members), len(members))
        file.flush()
        os.fsync(file.fileno())


def _group(
    members: Sequence[_Member], splits: Sequence[str], ids: npt.NDArray[np.uint32]
) -> pa.Table:
    pieces = [ids[m.start : m.start + m.n_tokens] for m in members]
    bounds = np.concatenate([[0], np.cumsum([m.n_tokens for m in members])]).astype(np.int32)
    flat = pa.array(np.concatenate(pieces).astype(np.int32))
    columns = {
        "uid": [m.uid for m in members],
        "dataset": [m.dataset for m in members],
        "conversation": [m.conversation for m in members],
        "turn": [m.turn for m in members],
        "split": list(splits),
        "finish": [m.finish for m in members],
        "n_prompt": [m.n_prompt for m in members],
        "input_ids": pa.ListArray.from_arrays(pa.array(bounds), flat),
        "attempt": [m.attempt for m in members],
        "crc": [m.crc for m in members],
    }
    return pa.table(columns, schema=SCHEMA)


def _publish(work: Path, corpora: Path, manifest: dict[str, Any]) -> Corpus:
    """Complete the manifest and give the folder its version name."""
    table = work / TABLE_NAME
    manifest |= {"table_bytes": table.stat().st_size, "table_sha256": sha256_file(table)}
    write_json(work / MANIFEST_NAME, manifest)
    versions = corpus_versions(corpora)
    number = int(versions[-1].name[1:]) + 1 if versions else 1
    final = corpora / f"v{number:03d}"
    work.rename(final)
    fsync_dir(corpora)
    return read_corpus(final)


@contextmanager
def _work_folder(corpora: Path) -> Iterator[Path]:
    """Give a folder that is gone afterwards unless it was renamed."""
    work = corpora / f"merge{TMP_SUFFIX}"
    try:
        shutil.rmtree(work, ignore_errors=True)  # of a merge that was killed
        work.mkdir(parents=True)
        yield work
    except OSError as exc:
        raise disk_error(exc, corpora) or exc from exc
    finally:
        shutil.rmtree(work, ignore_errors=True)
