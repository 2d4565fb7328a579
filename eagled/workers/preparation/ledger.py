"""Which questions were there before: judges chunks in the order of the source.

Guarantee: the verdict depends on the rows before, never on how many processes work. A row counts
as "before" once it passed its own rules, even if the template refuses it later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagled.config import PrepConfig
from eagled.dedup import SIGNATURE_BYTES, KeySet, NearIndex, key_of
from eagled.errors import ArtifactError
from eagled.prepared import KEYS_NAME, NEAR_NAME
from eagled.tokens import make_uid
from eagled.types import RowReason
from eagled.workers.preparation.messages import Chunk, Passed, Refused, Screened, Verdict

NEAR_FLAG = "near_duplicate"
_NEAR_SCRATCH = "near.scratch"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Noted:
    """A question that entered the ledger; `signature` only if it entered the near index too.

    `run` is the key under which a limited task's run entered; `near`: it nearly equals an earlier
    question.
    """

    key: int
    signature: bytes | None
    run: int | None = None
    near: bool = False


class Ledger:
    """The questions of this dataset and of those before it.

    `near` False leaves near duplicates to a later pass; `runs` is how many recorded runs of one
    task are taken, 0 all.
    """

    def __init__(
        self,
        prep: PrepConfig,
        earlier: Sequence[Path],
        building: Path,
        *,
        near: bool = True,
        runs: int = 0,
    ) -> None:
        self._runs = runs
        self._run_keys = KeySet()
        self._within = prep.duplicates != "off"
        self._drops = prep.near == "drop"
        self._seen = KeySet()
        self._foreign = KeySet()
        self._noted: dict[int, dict[int, Noted]] = {}
        self._near: NearIndex | None = None
        if near and prep.near != "off":
            self._near = NearIndex(prep.near_threshold, building / _NEAR_SCRATCH)
        for folder in earlier if prep.duplicates == "all" else ():
            self._read(folder)

    @property
    def near_disk_bytes(self) -> int:
        """Scratch space that the search for near duplicates takes."""
        return 0 if self._near is None else self._near.disk_bytes

    def close(self) -> None:
        """Remove what lies on disk."""
        if self._near is not None:
            self._near.close()

    def remember(self, noted: Noted) -> None:
        """Take in a question, for example of an earlier run of this prep."""
        if self._within:
            self._seen.add(noted.key)
        if noted.signature is not None and self._near is not None:
            self._near.add(noted.signature)
        if noted.run is not None:
            self._run_keys.add(noted.run)

    def judge(self, chunk: Chunk, screened: Screened) -> Verdict:
        """Return which of a chunk's rows repeat earlier ones, and take in the others."""
        refused: dict[int, Refused] = {}
        flags: dict[int, str] = {}
        noted = self._noted[chunk.number] = {}
        for place, row in enumerate(screened.rows):
            if isinstance(row, Refused):
                continue
            taken = self._take_in(row)
            if isinstance(taken, Refused):
                refused[place] = taken
                continue
            noted[place] = taken
            if taken.near:
                flags[place] = NEAR_FLAG
        return Verdict(refused, flags)

    def _take_in(self, row: Passed) -> Noted | Refused:
        key = key_of(row.identity)
        repeated = self._exact(key, row.source_id)
        if repeated is not None:
            return repeated
        found = self._nearly(row)
        if found is not None and self._drops:
            return self._near_refusal(found, row.source_id)
        run = None if row.task is None else self._next_run(row.task)
        if row.task is not None and run is None:
            detail = f"{self._runs} runs of the same task are taken already"
            return Refused(RowReason.ENOUGH_RUNS.value, detail, row.source_id)
        signature = row.signature if found is None and self._near is not None else None
        taken = Noted(key, signature, run, near=found is not None)
        self.remember(taken)
        return taken

    def _next_run(self, task: bytes) -> int | None:
        """Return the key of the next run of a task; None if enough are taken."""
        keys = (key_of(make_uid("run", task, str(n))) for n in range(self._runs))
        return next((key for key in keys if key not in self._run_keys), None)

    def noted(self, chunk: Chunk) -> Mapping[int, Noted]:
        """Return, once, what `judge` took in of a chunk, by the row's place."""
        return self._noted.pop(chunk.number)

    def _exact(self, key: int, source_id: str | None) -> Refused | None:
        detail = ""
        if self._within and key in self._seen:
            detail = "same question as an earlier row"
        elif key in self._foreign:
            detail = "same question as a row of an earlier dataset"
        return Refused(RowReason.DUPLICATE.value, detail, source_id) if detail else None

    def _nearly(self, row: Passed) -> float | None:
        if self._near is None or row.signature is None:
            return None
        return self._near.find(row.signature)

    @staticmethod
    def _near_refusal(found: float, source_id: str | None) -> Refused:
        detail = f"{found:.0%} of its word triples stand in an earlier question"
        return Refused(RowReason.NEAR_DUPLICATE.value, detail, source_id)

    def _read(self, folder: Path) -> None:
        """Take in the questions of an earlier dataset.

        Raises:
            ArtifactError: if it was prepared before questions were kept beside it.
        """
        for key in read_keys(folder):
            self._foreign.add(key)
        path = folder / NEAR_NAME
        if self._near is None or not path.is_file():
            return
        with path.open("rb") as file:
            while len(signature := file.read(SIGNATURE_BYTES)) == SIGNATURE_BYTES:
                self._near.add(signature)


def read_keys(folder: Path) -> Iterator[int]:
    """Yield the 64-bit keys of a prepared dataset's questions.

    Raises:
        ArtifactError: if there are none beside it.
    """
    try:
        with (folder / KEYS_NAME).open("rb") as file:
            while data := file.read(_READ_BYTES):
                yield from unpack_keys(data)
    except OSError as exc:
        raise ArtifactError(
            f"{folder} has no {KEYS_NAME}: it was prepared by an older eagled; prepare it again "
            f'(`eagled prep {folder.name} --force`), or set prep.duplicates = "dataset"'
        ) from exc


def pack_keys(keys: Sequence[int]) -> bytes:
    """Return keys as little-endian u64."""
    return array("Q", keys).tobytes()


def unpack_keys(data: bytes) -> Sequence[int]:
    """Return the keys that `pack_keys` wrote."""
    keys = array("Q")
    keys.frombytes(data)
    return keys
