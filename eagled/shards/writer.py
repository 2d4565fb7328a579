"""Write hidden-state shards as samples arrive, under a byte budget.

Guarantee: a shard is visible under its final name only when it is complete and fsynced; a crash,
a kill or a full disk leaves files under other names as they were and nothing but `*.tmp`, which
`scan_shards` removes. The same samples in the same order and the same manifest give the same
bytes, and the name is made from the bytes, so writing a shard again is harmless.
Price: memory for one sample, the pieces being encoded, and 9 bytes a token. `aux` goes straight to
its place behind room for the header; `last` waits in a side file, and is written twice. SHA-256 is
taken of the page cache while the file is synced. A file that is small, or whose header outgrew its
room, is copied once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from eagled.artifacts import TMP_SUFFIX, disk_error, fsync_dir, sha256_file
from eagled.errors import ArtifactError
from eagled.shards.codecs import Piece, encode, flat_bytes, pieces
from eagled.shards.container import LENGTH_BYTES, METADATA_KEY, NUMPY_DTYPE, read_container
from eagled.shards.format import (
    PAD,
    SHARD_SUFFIX,
    STATES,
    Bits,
    Codec,
    SampleEntry,
    ShardManifest,
    StatesSample,
    layout,
)
from eagled.shards.losses import Losses
from eagled.types import ShardRecord

_COPY_BYTES = 1 << 20
_ALIGN = 8  # every tensor begins at a multiple of it: no item is larger
_HEADER_SLACK_BYTES = 4096  # manifest and tensor table, for `data_bytes`
_ENTRY_BYTES = 160  # one sample's line in the header, rounded up
_HEADER_ROOM = 1 << 18  # kept free at the beginning; about 1,800 samples
_SMALL_BYTES = 16 * _HEADER_ROOM  # below it the room would be a waste worth a copy
_NAME_HEX = 24  # digits of the hash in a shard's name: 96 bits
_TOKEN_TENSORS = ("input_ids", "last_positions", "loss_mask")
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard under its final name, durable, not committed yet."""

    path: Path
    record: ShardRecord
    samples: tuple[SampleEntry, ...]


class _States:
    """One of `aux` and `last`: where its bytes go, and what lies beside them."""

    def __init__(self, file: BinaryIO, codec: Codec) -> None:
        self.file = file
        self.codec = codec
        self.losses = Losses()
        self.bytes = 0
        self._rows = 0
        self._blocks = [0]
        self._scales: list[npt.NDArray[np.float32]] = []

    def write(self, piece: Piece, rows: int) -> None:
        """Append encoded rows."""
        for chunk in piece.chunks:
            _write_all(self.file, chunk)
            self.bytes += len(chunk)
        self._rows += rows
        ends = itertools.accumulate(piece.sizes, initial=self._blocks[-1])
        self._blocks += list(ends)[1:]
        if piece.scale is not None:
            self._scales.append(piece.scale)
        self.losses.add(piece.errors)

    def shape(self, width: int) -> tuple[int, ...]:
        """Return the shape of the stored tensor."""
        return (self.bytes,) if self.codec == "lossless" else (self._rows, width)

    def beside(self, layers: int) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors that belong to it, by suffix."""
        if self.codec == "lossless":
            return {"_blocks": np.asarray(self._blocks, "<i8")}
        if self.codec == "fp8":
            none = np.empty((0, layers), np.float32)
            return {"_scale": np.concatenate([none, *self._scales])}
        return {}


class ShardWriter:
    """One open shard; samples are appended, then it is finished or discarded."""

    def __init__(
        self, folder: Path, manifest: ShardManifest, *, owner: str = "writer", threads: int = 1
    ) -> None:
        """Open the files in `folder`.

        Args:
            folder: where the shard will lie.
            manifest: what its states are, and how they are stored.
            owner: tells the leftovers of several writers apart.
            threads: most that encode at once.
        """
        self._folder = folder
        self._manifest = manifest
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._stem = f"open-{owner}.{os.getpid()}-{next(_serial)}"
        self._samples: list[SampleEntry] = []
        self._offsets = [0]
        self._tokens: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _TOKEN_TENSORS}
        self._states: dict[str, _States] = {}
        with self._disk():
            folder.mkdir(parents=True, exist_ok=True)
            for name in STATES:
                file = self._side(name).open("w+b", buffering=0)
                self._states[name] = _States(file, manifest.codec_of(name))
            self._states["aux"].file.seek(_HEADER_ROOM)

    @property
    def manifest(self) -> ShardManifest:
        """What the states in it are."""
        return self._manifest

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
        states = sum(s.bytes for s in self._states.values())
        tokens = sum(a.nbytes for arrays in self._tokens.values() for a in arrays)
        header = _HEADER_SLACK_BYTES + (_ENTRY_BYTES + _ALIGN) * len(self._samples)
        return states + tokens + header

    def append(self, sample: StatesSample) -> int:
        """Add a sample and return its index in the shard.

        Raises:
            ArtifactError: if its shapes do not agree with each other or with the manifest.
            DiskError: if it cannot be written; the whole open shard is discarded then.
        """
        _check_sample(sample, self._manifest)
        with self._disk():
            for name in STATES:
                self._append_states(self._states[name], getattr(sample, name))
        dtypes = layout(self._manifest)
        for name, arrays in self._tokens.items():
            arrays.append(np.array(getattr(sample, name), NUMPY_DTYPE[dtypes[name]]))
        self._samples.append(sample.entry)
        self._offsets.append(self.n_tokens + len(sample.input_ids))
        return len(self._samples) - 1

    def _append_states(self, states: _States, bits: Bits) -> None:
        """Encode and write rows [rows, L*D], a bounded number of pieces at a time."""
        hidden = self._manifest.hidden_size
        if self._threads == 1 or states.codec == "raw":
            for part in pieces(bits, hidden):
                states.write(encode(states.codec, part, hidden), len(part))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "encode")
        waiting: deque[tuple[Future[Piece], int]] = deque()
        for part in pieces(bits, hidden):
            if len(waiting) > self._threads:
                future, rows = waiting.popleft()
                states.write(future.result(), rows)
            waiting.append((self._pool.submit(encode, states.codec, part, hidden), len(part)))
        for future, rows in waiting:
            states.write(future.result(), rows)

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
            tmp, header = self._assemble()
            digest, size = self._seal(tmp, header)
            final = self._folder / f"shard-{digest[:_NAME_HEX]}{SHARD_SUFFIX}"
            tmp.replace(final)
            fsync_dir(self._folder)
        self.discard()
        record = ShardRecord(
            final.name, digest, size, len(self._samples), self.n_tokens, self._manifest.digest()
        )
        return FinishedShard(final, record, tuple(self._samples))

    def _assemble(self) -> tuple[Path, bytes]:
        """Append every other tensor behind `aux`; return the file and the header it needs."""
        aux, last = self._states["aux"], self._states["last"]
        arrays = self._arrays()
        shape: dict[str, tuple[int, ...]] = {k: v.shape for k, v in arrays.items()}
        for name in STATES:
            layers = self._manifest.layers_of(name)
            shape[name] = self._states[name].shape(layers * self._manifest.hidden_size)
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, dtype in layout(self._manifest).items():
            tensors[name] = (dtype, shape[name])
            if name in arrays:
                _write_all(aux.file, flat_bytes(arrays[name]))
            elif name == "last":
                last.file.seek(0)
                while chunk := last.file.read(_COPY_BYTES):
                    _write_all(aux.file, memoryview(chunk))
            elif name == "aux" and (short := -aux.bytes % _ALIGN):
                tensors[PAD] = ("U8", (short,))
                _write_all(aux.file, memoryview(bytes(short)))
        return self._side("aux"), encode_header(self._metadata(), tensors)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return every tensor that is in memory, by name."""
        arrays = {name: np.concatenate(parts) for name, parts in self._tokens.items()}
        arrays["offsets"] = np.asarray(self._offsets, "<i8")
        for name, states in self._states.items():
            layers = self._manifest.layers_of(name)
            arrays |= {name + k: v for k, v in states.beside(layers).items()}
        return arrays

    def _seal(self, tmp: Path, header: bytes) -> tuple[str, int]:
        """Give the file its header and make it durable; return SHA-256 and size.

        The room kept for the header is filled with blanks, which JSON allows, if that is cheaper
        than a copy.
        """
        file = self._states["aux"].file
        if len(header) > _HEADER_ROOM or self.data_bytes < _SMALL_BYTES:
            copy = self._side("shard")
            result = _assemble(copy, header, [tmp], skip=_HEADER_ROOM)
            copy.replace(tmp)
            return result
        body = header[LENGTH_BYTES:].ljust(_HEADER_ROOM - LENGTH_BYTES, b" ")
        os.pwrite(file.fileno(), len(body).to_bytes(LENGTH_BYTES, "little") + body, 0)
        with ThreadPoolExecutor(1, "sync") as pool:
            synced = pool.submit(os.fsync, file.fileno())
            digest = sha256_file(tmp)  # by its name, which an open file can outlive
            synced.result()
        return digest, os.fstat(file.fileno()).st_size

    def discard(self) -> None:
        """Remove every temporary file of this shard."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        for states in self._states.values():
            # closing can report what a full disk did not take; the file goes anyway
            with contextlib.suppress(OSError):
                states.file.close()
        for name in (*STATES, "shard"):
            self._side(name).unlink(missing_ok=True)

    def _side(self, name: str) -> Path:
        return self._folder / f"{self._stem}.{name}{TMP_SUFFIX}"

    def _metadata(self) -> dict[str, str]:
        metadata = {
            "format": self._manifest.format,
            "manifest": _json_text(self._manifest.to_dict()),
            "samples": _json_text([s.to_dict() for s in self._samples]),
        }
        tables = {
            "aux": self._states["aux"].losses.table(self._manifest.layers),
            "last": self._states["last"].losses.table(["last"]),
        }
        errors = {name: table for name, table in tables.items() if table}
        return {**metadata, "codec_errors": _json_text(errors)} if errors else metadata

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


def _write_all(file: BinaryIO, view: memoryview) -> None:
    """Write everything: an unbuffered write may take a part, on a disk that fills up for one."""
    while view:
        view = view[file.write(view) :]


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
