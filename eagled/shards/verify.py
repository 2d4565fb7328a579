"""Re-read every byte of the shards and say what does not hold.

Guarantee: a shard without findings has the committed bytes (when a record is given), ids inside
the vocabulary, 0/1 masks with something supervised, rows that fit counts and policy, finite
values, and no all-zero row (a hole that a crash left). Price: one full read for the checksum and
one through the mapping, a sample at a time; numpy only. With a share below 1 only so many samples
are read, chosen by seed, and checksums are left out: headers, offsets, counts and ids still hold.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagled.artifacts import sha256_file
from eagled.errors import ArtifactError
from eagled.shards.accept import finite, zero_rows
from eagled.shards.format import (
    SHARD_SUFFIX,
    STATES,
    Bits,
    SampleEntry,
    ShardHeader,
    ShardManifest,
    last_positions,
    read_shard_header,
)
from eagled.shards.stored import MappedShard, map_shard
from eagled.types import ShardRecord

_MAX_FINDINGS = 20  # a file; more do not help anybody
UNKNOWN = "the database does not know this file"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold; `uid` names the sample, or is empty for the file."""

    file: str
    uid: str
    problem: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was read and what was found.

    Attributes:
        files: shard files looked at.
        samples: samples in them whose states were read.
        tokens: tokens of these.
        bytes_read: size of the files, or in a sampled check the states' share of it.
        findings: everything that does not hold, in file order.
    """

    files: int
    samples: int
    tokens: int
    bytes_read: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not self.findings

    @property
    def bad_files(self) -> tuple[str, ...]:
        """Names of the files with findings, sorted."""
        return tuple(sorted({f.file for f in self.findings}))


@dataclass(frozen=True, slots=True)
class Member:
    """A sample in a shard as the database knows it.

    `uid` is hex, `output_crc` the CRC32 of the answer's ids as little-endian u32.
    """

    uid: str
    index: int
    n_prompt: int
    n_output: int
    output_crc: int


Progress = Callable[[str, int, int], None]  # file name, files done, files in all
ExpectedIds = Callable[[str], "tuple[npt.NDArray[Any], int] | None"]
MembersOf = Callable[[str], Sequence[Member]]


@dataclass(frozen=True, slots=True)
class Truth:
    """What the shards are compared with; None leaves a comparison out.

    Attributes:
        expected: committed shards by file name. A committed file that is gone, and a file that is
            not committed, are findings.
        manifest: what the states must be.
        members_of: the members of a shard by its name, from the database.
        ids_of: for a uid (hex) the exact ids and the number of prompt tokens, from a corpus, or
            None for an unknown sample.
        share: of the samples, whose states are read.
        seed: of the choice of these.
    """

    expected: Mapping[str, ShardRecord] | None = None
    manifest: ShardManifest | None = None
    members_of: MembersOf | None = None
    ids_of: ExpectedIds | None = None
    share: float = 1.0
    seed: int = 0

    def picks(self, uid: str) -> bool:
        """Whether the states of a sample are read."""
        return self.share >= 1 or fraction(f"{self.seed}/{uid}") < self.share


def fraction(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text only."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()) / (1 << 56)


def verify_shards(
    folder: Path,
    expected: Mapping[str, ShardRecord] | None = None,
    *,
    manifest: ShardManifest | None = None,
    members_of: MembersOf | None = None,
    ids_of: ExpectedIds | None = None,
    progress: Progress | None = None,
    share: float = 1.0,
    seed: int = 0,
) -> VerifyReport:
    """Check all shards of `folder`; nothing is changed. The arguments are those of `Truth`.

    Args:
        folder: the shard folder.
        expected: committed shards by file name.
        manifest: what the states must be.
        members_of: the database's members of a shard.
        ids_of: a corpus's ids of a sample.
        progress: called before each file.
        share: of the samples, whose states are read; below 1 no checksum is computed.
        seed: of the choice of these.
    """
    truth = Truth(expected, manifest, members_of, ids_of, share, seed)
    there = {p.name for p in folder.glob(f"*{SHARD_SUFFIX}")}
    names = sorted(there | set(expected or ()))
    findings: list[Finding] = []
    seen: dict[str, str] = {}
    totals = np.zeros(3, np.int64)  # samples, tokens, bytes
    for done, name in enumerate(names):
        if progress:
            progress(name, done, len(names))
        found, counts = _verify_file(folder / name, truth, seen)
        findings += found[:_MAX_FINDINGS]
        totals += counts
    samples, tokens, size = (int(x) for x in totals)
    return VerifyReport(len(names), samples, tokens, size, tuple(findings))


def _verify_file(
    path: Path, truth: Truth, seen: dict[str, str]
) -> tuple[list[Finding], tuple[int, int, int]]:
    """Return the findings of one file and its samples, tokens and bytes."""
    name = path.name
    record = truth.expected.get(name) if truth.expected is not None else None
    if truth.expected is not None and record is None:
        return [Finding(name, "", UNKNOWN)], (0, 0, 0)
    if not path.exists():
        return [Finding(name, "", "the file is gone")], (0, 0, 0)
    problems = list(_checksum_problems(path, record, truth)) if record else []
    counts = np.zeros(2, np.int64)  # samples, tokens
    try:
        header = read_shard_header(path)
        problems += _header_problems(header, record, truth.manifest)
        findings = [Finding(name, "", p) for p in problems]
        findings += [Finding(name, uid, p) for uid, p in _content(header, truth, seen, counts)]
    except ArtifactError as exc:
        return [Finding(name, "", p) for p in (*problems, str(exc))], (0, 0, path.stat().st_size)
    samples, tokens = (int(n) for n in counts)
    size = header.container.file_bytes
    if truth.share < 1:
        size = size * tokens // max(1, header.n_tokens)
    return findings, (samples, tokens, size)


def _checksum_problems(path: Path, record: ShardRecord, truth: Truth) -> Iterator[str]:
    size = path.stat().st_size
    if size != record.file_bytes:
        yield f"{size} bytes, {record.file_bytes} were committed"
    elif truth.share >= 1 and (found := sha256_file(path)) != record.sha256:
        yield f"SHA-256 is {found[:16]}…, {record.sha256[:16]}… was committed"


def _header_problems(
    header: ShardHeader, record: ShardRecord | None, manifest: ShardManifest | None
) -> Iterator[str]:
    if record is not None:
        got = (len(header.samples), header.n_tokens, header.manifest.digest())
        want = (record.n_samples, record.n_tokens, record.manifest_hash)
        for what, ours, theirs in zip(
            ("samples", "tokens", "manifest hash"), got, want, strict=True
        ):
            if ours != theirs:
                yield f"{what}: {ours} in the file, {theirs} committed"
    if manifest is not None and header.manifest != manifest:
        ours, theirs = header.manifest.to_dict(), manifest.to_dict()
        for key in ours:
            if ours[key] != theirs[key]:
                yield f"manifest: {key} is {ours[key]!r}, this run has {theirs[key]!r}"


def _content(
    header: ShardHeader, truth: Truth, seen: dict[str, str], counts: npt.NDArray[np.int64]
) -> Iterator[tuple[str, str]]:
    """Yield (uid, problem) of what the data itself says; add up samples and tokens in `counts`."""
    shard = map_shard(header)
    yield from _member_problems(shard, truth)
    for i, entry in enumerate(header.samples):
        # an older attempt is a stale copy, which readers skip
        key = f"{entry.uid}/{entry.attempt}"
        place = f"{header.container.path.name} at index {i}"
        if (other := seen.setdefault(key, place)) != place:
            yield entry.uid, f"is in {other} as well"
        if not truth.picks(entry.uid):
            continue
        piece = _Piece.cut(shard, i)
        counts += (1, len(piece.ids))
        for problem in _sample_problems(piece, header.manifest, truth.ids_of):
            yield entry.uid, problem


def _member_problems(shard: MappedShard, truth: Truth) -> Iterator[tuple[str, str]]:
    """Compare the file with the database's members: place, identity, counts, ids of the answer."""
    if truth.members_of is None:
        return
    samples, arrays = shard.header.samples, shard.arrays
    for member in truth.members_of(shard.header.container.path.name):
        entry = samples[member.index] if member.index < len(samples) else None
        if entry is None or entry.uid != member.uid:
            found = entry.uid if entry else None
            yield member.uid, f"the database has it at index {member.index}, where {found} is"
            continue
        span = shard.tokens(member.index)
        ids, first = arrays["input_ids"][span], member.n_prompt - entry.skip
        supervised = np.flatnonzero(arrays["loss_mask"][span])
        whole = len(ids) + entry.skip + entry.cut == member.n_prompt + member.n_output
        if not whole or not np.array_equal(supervised, np.arange(first, len(ids))):
            want = f"{member.n_prompt} + {member.n_output}"
            yield member.uid, f"prompt and answer are not the {want} tokens of the database"
        elif not entry.cut and zlib.crc32(ids[first:].tobytes()) != member.output_crc:
            yield member.uid, "the ids of its answer are not those of the database"


@dataclass(frozen=True, slots=True)
class _Piece:
    """One sample's views into the mapped file."""

    entry: SampleEntry
    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int32]
    states: Mapping[str, Bits]

    @classmethod
    def cut(cls, shard: MappedShard, i: int) -> _Piece:
        span = shard.tokens(i)
        return cls(
            shard.header.samples[i],
            shard.arrays["input_ids"][span],
            shard.arrays["loss_mask"][span],
            shard.arrays["last_positions"][shard.rows("last", i)],
            {name: shard.states(name, i) for name in STATES},
        )


def _sample_problems(
    piece: _Piece, manifest: ShardManifest, ids_of: ExpectedIds | None
) -> Iterator[str]:
    bad = (piece.ids < 0) | (piece.ids >= manifest.vocab_size)
    if bad.any():
        yield f"{int(bad.sum())} ids are outside 0..{manifest.vocab_size - 1}"
    if (piece.mask > 1).any():
        yield "the loss mask holds values other than 0 and 1"
    elif not piece.mask[1:].any():
        yield "nothing in it is supervised"
    if not np.array_equal(piece.positions, last_positions(piece.mask, manifest.last)):
        yield f"last_positions do not follow the policy {manifest.last!r}"
    for name, rows in piece.states.items():
        yield from _row_problems(name, rows)
    if ids_of is not None:
        yield from _source_problems(piece, ids_of(piece.entry.uid))


def _row_problems(name: str, rows: npt.NDArray[np.uint16]) -> Iterator[str]:
    broken = np.flatnonzero(~finite(rows).all(axis=1))
    if broken.size:
        yield f"{name}: row {int(broken[0])} is not finite ({broken.size} such rows)"
    holes = zero_rows(rows)
    if holes.size:
        yield f"{name}: row {int(holes[0])} is all zero ({holes.size} such rows): a hole"


def _source_problems(piece: _Piece, source: tuple[npt.NDArray[Any], int] | None) -> Iterator[str]:
    if source is None:
        yield "the source does not know this sample"
        return
    ids, n_prompt = source
    skip, end = piece.entry.skip, len(ids) - piece.entry.cut
    if not np.array_equal(ids[skip:end], piece.ids):
        yield f"its {len(piece.ids)} ids differ from the {len(ids)} of the source"
    elif not np.array_equal(np.flatnonzero(piece.mask), np.arange(n_prompt - skip, end - skip)):
        yield f"the loss mask is not 1 exactly from token {n_prompt} on"
