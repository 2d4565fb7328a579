"""Questions seen before, exactly or nearly, in little memory.

Guarantee: `KeySet` holds 64-bit keys at 11 to 27 bytes each (10 million: under 300 MB at its
largest, while it grows); `NearIndex` finds earlier texts whose estimated Jaccard similarity of
word triples reaches the threshold, always the same ones for the same order of texts, and takes a
few megabytes of memory for any number of them.
Price: two different questions get the same 64-bit key with a chance of 3 in a million over 10
million rows, and one of them is then left out. MinHash is an estimate (standard error 0.04 at a
similarity of 0.8), and pairs close to the threshold can be missed. A text takes 512 bytes of disk
for its signature and at a threshold of 0.8 200 to 400 for its places in the index, 600 while that
doubles (`near_disk_bytes`).
Coupled: `workers/preparation/parts.py` stores keys and signatures in this form; another version
of rensa's algorithm makes other signatures, so it is part of what names a prepared dataset.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from eagled.bands import FULL, SLOT_BYTES, BandTable, nameless_file, write_at
from eagled.errors import ArtifactError

KEY_BYTES = 8
SLOTS = 128  # values of a signature; a power of two is rensa's fast path
SIGNATURE_BYTES = 4 * SLOTS
SIGNATURE_VERSION = 1  # raise it with the words, the shingles or the seed below
_SEED = 1
_SHINGLE_WORDS = 3
_LEAST_SHINGLES = 10  # a shorter text shares its few triples with others by chance
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\\w+")  # CJK has no blanks
_FIRST_BITS = 12
_CHAIN = 8  # rows remembered under one band value; more are the same text anyway
_BAND_ROWS = (16, 8, 4, 2)
_RECALL = 0.9  # of the pairs exactly at the threshold that the bands have to find
_Look = tuple[int, tuple[int, list[int]]]  # a mark, and what the table has for it
_STRUCT = struct.Struct(f"<{SLOTS}I")


class KeySet:
    """A set of 64-bit keys in one flat array; it only grows."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(KEY_BYTES << _FIRST_BITS))
        self._mask = (1 << _FIRST_BITS) - 1
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __contains__(self, key: int) -> bool:
        return bool(self._slots[self._place(key or 1)])

    def add(self, key: int) -> bool:
        """Remember a key; False if it was there.

        Keys are hashes: 0 and 1 count as the same one, because 0 marks a free place.
        """
        place = self._place(key or 1)
        if self._slots[place]:
            return False
        self._slots[place] = key or 1
        self._n += 1
        if self._n > FULL * len(self._slots):
            self._grow()
        return True

    def _place(self, key: int) -> int:
        slots, mask = self._slots, self._mask
        place = key & mask
        while (found := slots[place]) and found != key:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", bytes(2 * KEY_BYTES * len(old)))
        self._mask = len(self._slots) - 1
        for key in old:
            if key:
                self._slots[self._place(key)] = key


def key_of(identity: bytes) -> int:
    """Return the 64-bit key of a question's 16-byte identity."""
    return int.from_bytes(identity[:KEY_BYTES], "little")


def algorithm() -> str:
    """Return what decides a signature, for the inputs of a prepared dataset."""
    import rensa  # type: ignore[import-untyped] # a compiled module without stubs

    return f"rensa {rensa.RMinHash.ALGORITHM_VERSION}.{SIGNATURE_VERSION}"


def signature_of(texts: Iterable[str]) -> bytes | None:
    """Return the MinHash signature of normalised texts, 128 little-endian u32.

    None for a text of fewer than twelve words: it proves nothing.
    """
    words = [word for text in texts for word in _WORD.findall(text)]
    if len(words) - _SHINGLE_WORDS + 1 < _LEAST_SHINGLES:
        return None
    import rensa

    sketch = rensa.RMinHash(SLOTS, _SEED)
    sketch.update([" ".join(three) for three in zip(words, words[1:], words[2:], strict=False)])
    return _STRUCT.pack(*sketch.digest())


def similarity(one: bytes, other: bytes) -> float:
    """Return the estimated Jaccard similarity of two signatures."""
    equal = np.frombuffer(one, "<u4") == np.frombuffer(other, "<u4")
    return int(np.count_nonzero(equal)) / SLOTS


def band_rows(threshold: float) -> int:
    """Return how many values make a band: the most that still find pairs at the threshold."""
    for rows in _BAND_ROWS:
        if 1 - (1 - threshold**rows) ** (SLOTS // rows) >= _RECALL:
            return rows
    return 1


def near_disk_bytes(texts: int, threshold: float) -> int:
    """Return the most disk that an index of so many texts takes, doubling included."""
    rows = SLOTS // band_rows(threshold) * texts
    table = int(rows / FULL) * 2 * SLOT_BYTES  # right after it has doubled
    return SIGNATURE_BYTES * texts + table + table // 2


class NearIndex:
    """Locality-sensitive index of signatures; both lie in files and are read when needed.

    The files are scratch and have no name: nothing of them is left when the process ends.

    Raises (from every method):
        DiskError: if the disk is full or failing.
    """

    def __init__(self, threshold: float, scratch: Path) -> None:
        self._threshold = threshold
        self._rows = band_rows(threshold)
        self._path = scratch
        self._file = nameless_file(scratch)
        self._table = BandTable(scratch)
        self._looked: tuple[bytes, list[_Look]] = (b"", [])
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def disk_bytes(self) -> int:
        """Size of both files."""
        return os.fstat(self._file).st_size + self._table.disk_bytes

    def close(self) -> None:
        """Give the space on disk back."""
        os.close(self._file)
        self._table.close()

    def find(self, signature: bytes) -> float | None:
        """Return the similarity to the most similar earlier text that reaches the threshold."""
        found = (similarity(signature, self._read(row)) for row in self._candidates(signature))
        best = max(found, default=0.0)
        return best if best >= self._threshold else None

    def near(self, signature: bytes) -> list[int]:
        """Return the earlier texts, by their place in the order of `add`, that reach it."""
        rows = self._candidates(signature)
        return sorted(r for r in rows if similarity(signature, self._read(r)) >= self._threshold)

    def add(self, signature: bytes) -> None:
        """Remember a text."""
        write_at(self._file, signature, self._n * SIGNATURE_BYTES, self._path)
        size, taken = self._table.size, set[int]()
        for mark, found in self._look(signature):
            void = found[0] in taken or size != self._table.size
            place, rows = self._table.find(mark) if void else found
            if len(rows) < _CHAIN:
                self._table.put(place, mark, self._n)
                taken.add(place)
        self._looked = (b"", [])
        self._n += 1

    def _candidates(self, signature: bytes) -> set[int]:
        """Return the rows that share a band; a foreign one is found out by its signature."""
        return {row for _, (_, rows) in self._look(signature) for row in rows}

    def _look(self, signature: bytes) -> list[_Look]:
        """Return what each band's mark finds; for the last text without looking again."""
        if self._looked[0] != signature:
            looked = [(mark, self._table.find(mark)) for mark in self._marks(signature)]
            self._looked = (signature, looked)
        return self._looked[1]

    def _marks(self, signature: bytes) -> Iterator[int]:
        """Yield a 32-bit mark for each band."""
        width = 4 * self._rows
        for number, start in enumerate(range(0, SIGNATURE_BYTES, width)):
            digest = blake2b(
                signature[start : start + width], digest_size=8, salt=number.to_bytes(8, "little")
            )
            yield int.from_bytes(digest.digest()[4:], "little")

    def _read(self, row: int) -> bytes:
        data = os.pread(self._file, SIGNATURE_BYTES, row * SIGNATURE_BYTES)
        if len(data) != SIGNATURE_BYTES:
            raise ArtifactError(f"{self._path} lost what was written to it: {len(data)} bytes")
        return data
