"""The spool as the daemon sees it: how full it is, and what in it belongs to nobody any more.

Guarantee: before the spool's disk reaches its reserve, or the spool its limit, nothing new is
generated (requests in flight finish and are captured), and claims go on with hysteresis; so a
server is not blocked and no request loses its states for want of room. A file is removed only when
its sample is settled (in a shard, rejected, failed, cancelled) or unknown, or when it is a probe's.
Price: one listing of the folder every few seconds, one query a sweep. Only with one-pass capture.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from eagled.capture import spool_folder
from eagled.config import Config
from eagled.disk import file_system
from eagled.server.client import PROBE_RID
from eagled.sglang_plugin.spoolfile import FAILED_SUFFIX, FINAL_SUFFIX, TEMP_SUFFIX
from eagled.store.reader import StoreReader
from eagled.types import STATE_CODE, SampleState

_log = logging.getLogger(__name__)
RESUME_SHARE = 0.7  # of the limit; below it claims go on
DEFAULT_SHARE = 0.5  # of what the disk has free above the reserve, for a limit that is not set
MIN_AGE_S = 600.0  # a younger file may be of an answer whose commit is under way
_SETTLED = frozenset(
    STATE_CODE[state]
    for state in (
        SampleState.EXTRACTED,
        SampleState.FAILED,
        SampleState.REJECTED,
        SampleState.CANCELLED,
    )
)
_CHUNK = 500
_RID_PARTS = 4  # lineage, epoch, sample, attempt; see `store.opening.rid`


@dataclass(frozen=True, slots=True)
class SpoolView:
    """The spool's numbers.

    Attributes:
        files: complete files that wait.
        used_bytes: of everything in the folder.
        limit_bytes: most that may wait.
        free_bytes: what its disk has free.
        full: whether generation has to wait.
        reason: why, in words; empty when it does not.
        failed: notes of captures that failed; their samples are passed over again.
    """

    files: int
    used_bytes: int
    limit_bytes: int
    free_bytes: int
    full: bool
    reason: str
    failed: int


class SpoolWatch:
    """Looks at the spool; keeps only whether it was full."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.folder = spool_folder(config)
        self._full = False

    def look(self) -> SpoolView:
        """Return the numbers; blocking, some milliseconds for thousands of files."""
        entries = list(_entries(self.folder))
        used = sum(size for _, size, _ in entries)
        free = file_system(self.folder).free_bytes
        reserve = self._config.disk.reserve_bytes
        room = max(0, free - reserve)
        limit = self._config.extract.spool_bytes or int((used + room) * DEFAULT_SHARE)
        high = limit * (RESUME_SHARE if self._full else 1.0)
        reason = ""
        if free < reserve * (1.1 if self._full else 1.0):
            reason = f"the disk of the spool {self.folder} is down to its reserve"
        elif used > high:
            reason = f"{used:,} bytes of states wait in {self.folder}, {limit:,} may"
        self._full = bool(reason)
        names = [name for name, _, _ in entries]
        return SpoolView(
            files=sum(n.endswith(FINAL_SUFFIX) for n in names),
            used_bytes=used,
            limit_bytes=limit,
            free_bytes=free,
            full=self._full,
            reason=reason,
            failed=sum(n.endswith(FAILED_SUFFIX) for n in names),
        )

    def sweep(self, database: Path, now_s: float | None = None) -> int:
        """Remove what belongs to nobody; return how many files. Blocking."""
        now_s = time.time() if now_s is None else now_s
        old = [n for n, _, at in _entries(self.folder) if now_s - at > MIN_AGE_S]
        named = {n: s for n in old if (s := sample_of(n)) is not None}
        with StoreReader(database) as reader:
            live = _live(reader, set(named.values()))
        gone = [n for n in old if n.startswith(PROBE_RID)]
        gone += [n for n, sample in named.items() if sample not in live]
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)
        if gone:
            _log.info("spool swept files=%d", len(gone))
        return len(gone)


def sample_of(name: str) -> int | None:
    """Return the sample of one of our request ids as a file name; None for other files."""
    rid, _, suffix = name.partition(".")
    parts = rid.split("-")
    if len(parts) != _RID_PARTS or f".{suffix}" not in (FINAL_SUFFIX, FAILED_SUFFIX):
        return None
    try:
        return int(parts[2], 16)
    except ValueError:
        return None


def _live(reader: StoreReader, samples: Iterable[int]) -> set[int]:
    """Return those that still lead to extraction."""
    live: set[int] = set()
    numbers = sorted(samples)
    for start in range(0, len(numbers), _CHUNK):
        ids = orjson.dumps(numbers[start : start + _CHUNK]).decode()
        rows = reader.db.rows("states_of", {"ids": ids})
        live.update(number for number, state in rows if state not in _SETTLED)
    return live


def _entries(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Yield name, bytes on disk and time of change of each file; what vanishes is left out."""
    try:
        listing = list(os.scandir(folder))
    except OSError:
        return
    for entry in listing:
        try:
            stat = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if entry.name.endswith((FINAL_SUFFIX, FAILED_SUFFIX, TEMP_SUFFIX)):
            yield entry.name, stat.st_blocks * 512, stat.st_mtime
