"""Files that the pipeline leaves behind: written whole or not at all, each with a manifest.

Guarantee: a final name holds complete, fsynced bytes; a crash or a full disk leaves the old file
and at most one `*.tmp` beside it. Manifests carry no clock time, so that the same inputs and seed
give the same bytes; the time is that of the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from eagled.errors import ArtifactError, DiskError

TMP_SUFFIX = ".tmp"
MANIFEST_NAME = "manifest.json"
_HASH_CHUNK_BYTES = 1 << 20
_JSON_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


def disk_error(exc: OSError, path: Path) -> DiskError | None:
    """Return a `DiskError` that explains `exc`, or None if it is not about the disk."""
    if exc.errno not in _DISK_ERRNOS and exc.errno != errno.EACCES:
        return None
    advice = {
        errno.ENOSPC: "make room and start again; nothing finished is lost",
        errno.EDQUOT: "raise the quota; nothing finished is lost",
        errno.EROFS: "the file system is read-only; mount it writable or move the state directory",
        errno.EACCES: "give this user write access to the directory",
    }.get(exc.errno or 0, "check the disk")
    return DiskError(f"cannot write {path}: {exc.strerror}; {advice}")


def fsync_dir(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes `path` when the block ends without an error.

    Raises:
        DiskError: if the disk is full, read-only or failing; `path` is then as it was.
    """
    tmp = path.with_name(path.name + TMP_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tmp.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        tmp.replace(path)
        fsync_dir(path.parent)
    except OSError as exc:
        tmp.unlink(missing_ok=True)
        raise disk_error(exc, path) or exc from exc
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically and durably."""
    with atomic_file(path) as file:
        file.write(data)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as indented JSON with sorted keys, atomically and durably."""
    write_bytes(path, orjson.dumps(value, option=_JSON_PRETTY))


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        ArtifactError: if the file is absent, not JSON or not an object.
    """
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise ArtifactError(f"{path} does not exist") from exc
    except (OSError, orjson.JSONDecodeError) as exc:
        raise ArtifactError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(value: object) -> str:
    """Return the SHA-256 of `value` as compact JSON with sorted keys."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def require_same(what: str, ours: object, theirs: object, *, where: str) -> None:
    """Raise if two manifests disagree.

    Raises:
        ArtifactError: naming both values.
    """
    if ours != theirs:
        raise ArtifactError(
            f"{where}: {what} differs: it was made with {theirs!r}, this run has {ours!r}; "
            "make it again with this configuration, or use the configuration it was made with"
        )
