"""Folders in the demo's cache: built whole under a temporary name, by one process at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from eagled.artifacts import TMP_SUFFIX, disk_error, fsync_dir


def build_folder(final: Path, is_done: Callable[[], bool], build: Callable[[Path], None]) -> None:
    """Make `final` by `build(temporary folder)`, unless `is_done()` once it is our turn.

    Waits for another process that builds the same folder, for as long as that takes. What a crash
    left under the temporary name is removed. A failed build leaves `final` as it was.

    Raises:
        DiskError: if the disk is full, read-only or failing.
    """
    fresh = final.with_name(final.name + TMP_SUFFIX)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with final.with_name(f"{final.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_done():
                return
            shutil.rmtree(fresh, ignore_errors=True)
            try:
                fresh.mkdir()
                build(fresh)
                shutil.rmtree(final, ignore_errors=True)
                fresh.rename(final)
                fsync_dir(final.parent)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    except OSError as exc:
        raise disk_error(exc, final) or exc from exc
