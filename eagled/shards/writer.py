"""Write hidden-state shards as samples arrive, under a byte budget.

Guarantee: a shard is visible under its final name only when it is complete and fsynced; a crash,
a kill or a full disk leaves files under other names as they were and nothing but `*.tmp`, which
`scan_shards` removes. The same samples in the same order and the same manifest give the same
bytes, and the name is made from the bytes, so writing a shard again is harmless.
Price: memory for one sample; each byte is written twice (one side file a tensor, then the
shard), so the folder needs room for two open shards; SHA-256 is taken on the way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from eagled.artifacts import TMP_SUFFIX, disk_error, fsync_dir
from eagled.errors import ArtifactError
from eagled.shards.container import LENGTH_BYTES, METADATA_KEY, NUMPY_DTYPE, read_container
from eagled.shards.format import (
    DTYPES,
    SHARD_FORMAT,
    SHARD_SUFFIX,
    SampleEntry,
    ShardManifest,
    StatesSample,
    shapes,
)
from eagled.types import ShardRecord

_COPY_BYTES = 1 << 20
_ALIGN = 8  # header padding: keeps every tensor aligned to its item size
_HEADER_SLACK_BYTES = 4096  # manifest and tensor table, for `data_bytes`
_ENTRY_BYTES = 160  # one sample's line in the header, rounded up
_NAME_HEX = 24  # digits of the hash in a shard's name: 96 bits
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard under its final name, durable, not committed yet."""

    path: Path
    record: ShardRecord
    samples: tuple[SampleEntry, ...]


class ShardWriter:
    """One open shard; samples are appended, then it is finished or discarded."""

    def __init__(self, folder: Path, manifest: ShardManifest, *, owner: str = "writer") -> None:
        """Open the side files in `folder`; `owner` tells the leftovers of several writers apart."""
        self._folder = folder
        self._manifest = manifest
        self._stem = f"open-{owner}.{os.getpid()}-{next(_serial)}"
        self._samples: list[SampleEntry] = []
        self._offsets = [0]
        self._bytes = 0
        self._files: dict[str, BinaryIO] = {}
        with self._disk():
            folder.mkdir(parents=True, exist_ok=True)
            for name in DTYPES:
                if name != "offsets":
                    self._files[name] = self._side(name).open("wb")

    @property
    def n_samples(self) -> int:
        """Samples appended so far."""
        return len(self._samples)

    @property
    def n_tokens(self) -> int:
        """Tokens appended so far."""
        return self._offsets[-1]

    @property
    def data_bytes(self) -> int:
        """About the size of the finished file if it were closed now."""
        return self._bytes + _HEADER_SLACK_BYTES + _ENTRY_BYTES * len(self._samples)

    def append(self, sample: StatesSample) -> int:
        """Add a sample and return its index in the shard.

        Raises:
            ArtifactError: if its shapes do not agree with each other or with the manifest.
            DiskError: if it cannot be written; the whole open shard is discarded then.
        """
        _check_sample(sample, self._manifest)
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(sample, name) for name in self._files}
        with self._disk():
            for name, array in arrays.items():
                data = np.ascontiguousarray(array, NUMPY_DTYPE[DTYPES[name]])
                self._files[name].write(data.data)
                self._bytes += data.nbytes
        self._bytes += _ALIGN  # its entry in offsets
        self._samples.append(sample.entry)
        self._offsets.append(self.n_tokens + len(sample.input_ids))
        return len(self._samples) - 1

    def finish(self) -> FinishedShard:
        """Assemble the shard, make it durable and give it its final name.

        Raises:
            ArtifactError: if there are no samples.
            ArtifactError: also if its temporary files were removed (a daemon that starts does).
            DiskError: if it cannot be written; nothing is left of the open shard then.
        """
        if not self._samples:
            raise ArtifactError("a shard without samples is never written")
        with self._disk():
            for file in self._files.values():
                file.close()
            parts: list[bytes | Path] = [np.asarray(self._offsets, "<i8").tobytes()]
            parts += map(self._side, self._files)
            tmp = self._side("shard")
            digest, size = _assemble(tmp, self._header(), parts)
            final = self._folder / f"shard-{digest[:_NAME_HEX]}{SHARD_SUFFIX}"
            tmp.replace(final)
            fsync_dir(self._folder)
        self.discard()
        record = ShardRecord(
            final.name, digest, size, len(self._samples), self.n_tokens, self._manifest.digest()
        )
        return FinishedShard(final, record, tuple(self._samples))

    def discard(self) -> None:
        """Remove every temporary file of this shard."""
        for file in self._files.values():
            # closing flushes: on a full disk that fails once more, and the file goes anyway
            with contextlib.suppress(OSError):
                file.close()
        for name in (*DTYPES, "shard"):
            self._side(name).unlink(missing_ok=True)

    def _side(self, name: str) -> Path:
        return self._folder / f"{self._stem}.{name}{TMP_SUFFIX}"

    def _header(self) -> bytes:
        n_last = sum(s.n_last for s in self._samples)
        shape = shapes(self._manifest, len(self._samples), self.n_tokens, n_last)
        metadata = {
            "format": SHARD_FORMAT,
            "manifest": _json_text(self._manifest.to_dict()),
            "samples": _json_text([dataclasses.asdict(s) for s in self._samples]),
        }
        return encode_header(metadata, {name: (DTYPES[name], shape[name]) for name in DTYPES})

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Discard the shard on any failure, and turn disk errors into `DiskError`."""
        try:
            yield
        except FileNotFoundError as exc:
            self.discard()
            raise ArtifactError(f"{exc.filename}: removed while the shard was open") from exc
        except OSError as exc:
            self.discard()
            raise disk_error(exc, self._folder) or exc from exc
        except BaseException:
            self.discard()
            raise


def encode_header(
    metadata: dict[str, str], tensors: dict[str, tuple[str, tuple[int, ...]]]
) -> bytes:
    """Return length prefix and padded JSON header of a file that holds `tensors` in this order."""
    header: dict[str, Any] = {METADATA_KEY: metadata}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + int(np.prod(shape, dtype=np.int64)) * np.dtype(NUMPY_DTYPE[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    raw = orjson.dumps(header)
    raw += b" " * (-len(raw) % _ALIGN)
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw


def rewrite_metadata(path: Path, extra: dict[str, str]) -> tuple[str, int]:
    """Replace `path` by a copy with more metadata; values and tensor order stay.

    The copy is a new file that is renamed over the old one, so whoever has the old one mapped
    keeps reading it unharmed.

    Returns:
        SHA-256 and size of the new file.

    Raises:
        ArtifactError: if the file is not whole.
        DiskError: if the copy cannot be written; the old file stands then.
    """
    container = read_container(path)
    order = sorted(container.tensors.values(), key=lambda t: (t.start, t.end))
    header = encode_header(
        {**container.metadata, **extra}, {t.name: (t.dtype, t.shape) for t in order}
    )
    tmp = path.with_name(path.name + TMP_SUFFIX)
    try:
        result = _assemble(tmp, header, [path], skip=container.data_start)
        tmp.replace(path)
        fsync_dir(path.parent)
    except OSError as exc:
        tmp.unlink(missing_ok=True)
        raise disk_error(exc, path) or exc from exc
    return result


def _assemble(
    tmp: Path, header: bytes, parts: list[bytes | Path], skip: int = 0
) -> tuple[str, int]:
    """Write header and parts to `tmp`, fsynced; return SHA-256 and size. Files start at `skip`."""
    digest = hashlib.sha256()
    with tmp.open("wb") as out:
        for chunk in itertools.chain([header], *(_chunks(part, skip) for part in parts)):
            out.write(chunk)
            digest.update(chunk)
        out.flush()
        os.fsync(out.fileno())
        return digest.hexdigest(), out.tell()


def _chunks(part: bytes | Path, skip: int) -> Iterator[bytes]:
    if isinstance(part, bytes):
        yield part
        return
    with part.open("rb") as file:
        file.seek(skip)
        while chunk := file.read(_COPY_BYTES):
            yield chunk


def _json_text(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _check_sample(sample: StatesSample, manifest: ShardManifest) -> None:
    rows = len(sample.input_ids) - 1
    n_last = len(sample.last_positions)
    got = {name: getattr(sample, name).shape for name in ("loss_mask", "aux", "last")}
    want = {
        "loss_mask": (rows + 1,),
        "aux": (rows, manifest.aux_width),
        "last": (n_last, manifest.hidden_size),
    }
    if rows < 1 or got != want:
        raise ArtifactError(f"sample {sample.uid}: shapes {got} do not fit, expected {want}")
