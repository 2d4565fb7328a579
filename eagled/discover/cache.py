"""What earlier runs found out, a file each, so that an interrupted run goes on where it was.

Guarantee: an entry is written whole, as soon as its dataset is done; it counts only for the same
question (dataset, settings, tokenizer, version of `facts.py`). Problems that may pass are asked
again by the next run. A file that is torn or of another version is asked again as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json, sha256_json, write_json
from eagled.discover.facts import FACTS_VERSION, PASSING, Facts, Found
from eagled.discover.overlap import read_marks, write_marks
from eagled.discover.sample import Mark
from eagled.errors import ArtifactError

_KEY_CHARS = 32


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of answers.

    Attributes:
        folder: where.
        settings: everything besides the dataset that decides the answer.
        now_s: the time of day, seconds since 1970.
        max_age_s: older entries are asked again.
        offline: nothing is asked again, however old.
    """

    folder: Path
    settings: Sequence[object]
    now_s: Callable[[], float]
    max_age_s: float
    offline: bool = False

    def found(self, question: Sequence[object]) -> list[Found] | None:
        """Return the results of a search, None if it has to be asked."""
        value = self._read(self._path("searches", question))
        return None if value is None else [Found(**item) for item in value["found"]]

    def put_found(self, question: Sequence[object], found: Sequence[Found]) -> None:
        """Remember the results of a search."""
        items = [dataclasses.asdict(item) for item in found]
        self._write(self._path("searches", question), {"found": items})

    def facts(self, found: Found) -> Facts | None:
        """Return what is known of a dataset, None if it has to be asked."""
        value = self._read(self._path("facts", self._question(found)))
        facts = None if value is None else Facts.from_json(value["facts"])
        again = facts is None or (facts.problem in PASSING and not self.offline)
        return None if again else facts

    def marks(self, found: Found) -> list[Mark]:
        """Return the marks of a dataset's sampled questions."""
        return read_marks(self._marks_path(found))

    def put(self, found: Found, facts: Facts, marks: Sequence[Mark]) -> None:
        """Remember a dataset."""
        write_marks(self._marks_path(found), marks)
        path = self._path("facts", self._question(found))
        self._write(path, {"facts": facts.to_json()})

    def _question(self, found: Found) -> Sequence[object]:
        return [dataclasses.asdict(found), *self.settings]

    def _marks_path(self, found: Found) -> Path:
        return self._path("facts", self._question(found)).with_suffix(".marks")

    def _path(self, kind: str, question: Sequence[object]) -> Path:
        key = sha256_json([FACTS_VERSION, *question])[:_KEY_CHARS]
        return self.folder / kind / f"{key}.json"

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        write_json(path, {"at_s": self.now_s(), **value})

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            value = read_json(path)
        except ArtifactError:
            return None
        age_s = self.now_s() - float(value.get("at_s", 0))
        return value if self.offline or 0 <= age_s <= self.max_age_s else None
