"""Questions seen before, exactly or nearly, in little memory.

Guarantee: `KeySet` holds 64-bit keys at 11 to 27 bytes each (10 million: under 300 MB at its
largest, while it grows); `NearIndex` finds earlier texts whose estimated Jaccard similarity of
word triples reaches the threshold, always the same ones for the same order of texts.
Price: two different questions get the same 64-bit key with a chance of 3 in a million over 10
million rows, and one of them is then left out. MinHash is an estimate (standard error 0.04 at a
similarity of 0.8), and pairs close to the threshold can be missed. A signature takes 512 bytes on
disk, its place in the index about 220 bytes of memory.
Coupled: `workers/preparation/parts.py` stores keys and signatures in this form; another version
of rensa's algorithm makes other signatures, so it is part of what names a prepared dataset.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from eagled.errors import ArtifactError

KEY_BYTES = 8
SLOTS = 128  # values of a signature; a power of two is rensa's fast path
SIGNATURE_BYTES = 4 * SLOTS
SIGNATURE_VERSION = 1  # raise it with the words, the shingles or the seed below
_SEED = 1
_SHINGLE_WORDS = 3
_LEAST_SHINGLES = 10  # a shorter text shares its few triples with others by chance
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\\w+")  # CJK has no blanks
_FULL = 0.65  # share of used places at which a table doubles
_FIRST_BITS = 12
_CHAIN = 8  # rows remembered under one band value; more are the same text anyway
_BAND_ROWS = (16, 8, 4, 2)
_RECALL = 0.9  # of the pairs exactly at the threshold that the bands have to find
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
        if self._n > _FULL * len(self._slots):
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
    pairs = zip(_STRUCT.unpack(one), _STRUCT.unpack(other), strict=True)
    equal = sum(1 for a, b in pairs if a == b)
    return equal / SLOTS


def band_rows(threshold: float) -> int:
    """Return how many values make a band: the most that still find pairs at the threshold."""
    for rows in _BAND_ROWS:
        if 1 - (1 - threshold**rows) ** (SLOTS // rows) >= _RECALL:
            return rows
    return 1


class NearIndex:
    """Locality-sensitive index of signatures, which lie in a file and are read when needed.

    The file is scratch: it is emptied at the start and removed by `close`.
    """

    def __init__(self, threshold: float, scratch: Path) -> None:
        self._threshold = threshold
        self._rows = band_rows(threshold)
        self._path = scratch
        self._file = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._n = 0
        self._used = 0
        self._slots = array("Q", bytes(8 << _FIRST_BITS))  # fingerprint << 32 | row + 1
        self._mask = (1 << _FIRST_BITS) - 1

    def __len__(self) -> int:
        return self._n

    def close(self) -> None:
        """Remove the scratch file."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def find(self, signature: bytes) -> float | None:
        """Return the similarity to the most similar earlier text that reaches the threshold."""
        rows = {row for band in self._bands(signature) for row in self._chain(band)[1]}
        best = max((similarity(signature, self._read(row)) for row in rows), default=0.0)
        return best if best >= self._threshold else None

    def near(self, signature: bytes) -> list[int]:
        """Return the earlier texts, by their place in the order of `add`, that reach it."""
        rows = {row for band in self._bands(signature) for row in self._chain(band)[1]}
        return sorted(r for r in rows if similarity(signature, self._read(r)) >= self._threshold)

    def add(self, signature: bytes) -> None:
        """Remember a text."""
        os.pwrite(self._file, signature, self._n * SIGNATURE_BYTES)
        self._n += 1
        for band in self._bands(signature):
            place, rows = self._chain(band)
            if len(rows) < _CHAIN:
                self._slots[place] = (band >> 32) << 32 | self._n
                self._used += 1
                if self._used > _FULL * len(self._slots):
                    self._grow()

    def _bands(self, signature: bytes) -> Iterator[int]:
        width = 4 * self._rows
        for number, start in enumerate(range(0, SIGNATURE_BYTES, width)):
            digest = blake2b(
                signature[start : start + width], digest_size=8, salt=number.to_bytes(8, "little")
            )
            yield int.from_bytes(digest.digest(), "little")

    def _chain(self, band: int) -> tuple[int, list[int]]:
        """Return (first free place, rows) of a band value.

        A fingerprint is 32 bits; a foreign row among the rows is found by its signature.
        """
        slots, mask, mark = self._slots, self._mask, band >> 32
        place, rows = _start(mark, mask), []
        while found := slots[place]:
            if found >> 32 == mark:
                rows.append((found & 0xFFFFFFFF) - 1)
            place = (place + 1) & mask
        return place, rows

    def _read(self, row: int) -> bytes:
        data = os.pread(self._file, SIGNATURE_BYTES, row * SIGNATURE_BYTES)
        if len(data) != SIGNATURE_BYTES:
            raise ArtifactError(f"{self._path} lost what was written to it: {len(data)} bytes")
        return data

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", bytes(16 * len(old)))
        self._mask = len(self._slots) - 1
        for value in _in_order(old):
            place = _start(value >> 32, self._mask)
            while self._slots[place]:
                place = (place + 1) & self._mask
            self._slots[place] = value


def _start(mark: int, mask: int) -> int:
    """Spread a 32-bit fingerprint over a table of any size."""
    return (mark * 0x9E3779B97F4A7C15 >> 20) & mask


def _in_order(slots: Sequence[int]) -> Iterator[int]:
    """Yield used places so that rows of one chain keep their order over the table's end."""
    free = next(i for i, value in enumerate(slots) if not value)
    for i in range(len(slots)):
        value = slots[(free + i) % len(slots)]
        if value:
            yield value
