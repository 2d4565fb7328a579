"""Which datasets ask the same questions, by exact keys and MinHash of sampled prompts.

Guarantee: of two datasets the later one names the earlier one, never the other way round, so order
decides which is kept. Shares are those of the sample: a copy in another order of a large dataset
shows a small share, so that they are lower bounds. Memory: a key and index places of each sampled
prompt; signatures lie in a scratch file.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from eagled.artifacts import write_bytes
from eagled.dedup import SIGNATURE_BYTES, NearIndex
from eagled.discover.sample import Mark

_KEY = struct.Struct("<Q?")
_NONE = bytes(SIGNATURE_BYTES)
_CHAIN = 8  # datasets remembered for one question


class Overlap:
    """Datasets in the order of their rank."""

    def __init__(self, scratch: Path, threshold: float = 0.8) -> None:
        scratch.parent.mkdir(parents=True, exist_ok=True)
        self._near = NearIndex(threshold, scratch)
        self._names: list[str] = []
        self._owner = array("I")  # of each signature
        self._keys: defaultdict[int, list[int]] = defaultdict(list)

    def close(self) -> None:
        """Remove the scratch file."""
        self._near.close()

    def add(self, name: str, marks: Sequence[Mark]) -> dict[str, float]:
        """Remember a dataset; return the share of its prompts that each earlier one has."""
        hits: Counter[int] = Counter()
        for key, signature in marks:
            found = set(self._keys.get(key, ()))
            if signature is not None:
                found |= {self._owner[row] for row in self._near.near(signature)}
            hits.update(found)
        own = len(self._names)
        self._names.append(name)
        for key, signature in marks:
            if len(self._keys[key]) < _CHAIN:
                self._keys[key].append(own)
            if signature is not None:
                self._near.add(signature)
                self._owner.append(own)
        return {self._names[i]: n / len(marks) for i, n in hits.most_common()} if marks else {}


def write_marks(path: Path, marks: Iterable[Mark]) -> None:
    """Keep the marks of a dataset beside its facts."""
    parts = [_KEY.pack(key, sign is not None) + (sign or _NONE) for key, sign in marks]
    write_bytes(path, b"".join(parts))


def read_marks(path: Path) -> list[Mark]:
    """Return the marks of a dataset; none without a file."""
    try:
        return list(_marks(path.read_bytes()))
    except OSError:
        return []


def _marks(data: bytes) -> Iterator[Mark]:
    step = _KEY.size + SIGNATURE_BYTES
    for at in range(0, len(data) - step + 1, step):
        key, signed = _KEY.unpack_from(data, at)
        yield key, data[at + _KEY.size : at + step] if signed else None
