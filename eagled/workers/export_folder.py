"""The folder of an export: whole or not at all. No torch."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import TMP_SUFFIX, disk_error, fsync_dir
from eagled.errors import ArtifactError

EXPORT_FORMAT = "eagled-export/1"
NOTE_NAME = "export.json"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written: folder, samples, tokens, and notes for the user."""

    folder: Path
    samples: int
    tokens: int
    notes: tuple[str, ...]


@contextmanager
def export_folder(out: Path) -> Iterator[Path]:
    """Give a folder that becomes `out` when the block ends without an error.

    Raises:
        ArtifactError: if `out` exists.
        DiskError: if it cannot be written; nothing is left then.
    """
    if out.exists():
        raise ArtifactError(f"{out} exists; remove it, or export to another folder")
    work = out.with_name(out.name + TMP_SUFFIX)
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        yield work
        work.rename(out)
        fsync_dir(out.parent)
    except OSError as exc:
        shutil.rmtree(work, ignore_errors=True)
        raise disk_error(exc, out) or exc from exc
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def result_json(result: ExportResult) -> dict[str, Any]:
    """Return a result as JSON-ready values."""
    return {**dataclasses.asdict(result), "folder": str(result.folder)}
