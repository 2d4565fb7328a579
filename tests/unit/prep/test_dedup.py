"""Questions seen before: the compact set against Python's own, MinHash against exact Jaccard."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagled.dedup import (
    SIGNATURE_BYTES,
    KeySet,
    NearIndex,
    band_rows,
    key_of,
    near_disk_bytes,
    signature_of,
    similarity,
)

WORDS = [f"word{i}" for i in range(3000)]


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 40)))
def test_a_key_set_is_a_set(keys: list[int]) -> None:
    """Whatever is added is found, nothing else, and each counts once (0 and 1 are one key)."""
    ours, oracle = KeySet(), set[int]()
    for key in keys:
        assert ((key or 1) not in oracle) == ours.add(key)
        oracle.add(key or 1)

    assert len(oracle) == len(ours)
    assert all(key in ours for key in keys)
    assert all(((key ^ 1) or 1) in oracle or (key ^ 1) not in ours for key in keys)


def test_keys_take_few_bytes() -> None:
    """200,000 keys take at most 27 bytes each, right after the table has grown."""
    rng = random.Random(3)  # noqa: S311 - test data, seeded
    keys = [rng.getrandbits(64) for _ in range(200_000)]
    found = KeySet()
    most = 0.0
    for n, key in enumerate(keys, 1):
        found.add(key)
        if n >= 100_000:
            most = max(most, found._slots.itemsize * len(found._slots) / n)

    assert most <= 27
    assert len(set(keys)) == len(found)
    assert all(key in found for key in keys)


def test_a_key_is_the_start_of_the_identity() -> None:
    """The first eight bytes, little-endian, as docs/formats.md says."""
    assert 0x0807060504030201 == key_of(bytes(range(1, 17)))


def _text(rng: random.Random, n: int = 120) -> list[str]:
    return rng.sample(WORDS, n)


def _triples(words: list[str]) -> set[tuple[str, ...]]:
    return set(zip(words, words[1:], words[2:], strict=False))


def _signature(words: list[str]) -> bytes:
    found = signature_of([" ".join(words)])
    assert found is not None
    return found


def test_signatures_estimate_the_similarity_of_word_triples() -> None:
    """Over many pairs the estimate is within four standard errors of exact Jaccard."""
    rng = random.Random(7)  # noqa: S311 - test data, seeded
    for changed in range(0, 40, 4):
        one = _text(rng)
        other = [w if i >= changed else rng.choice(WORDS) for i, w in enumerate(one)]
        exact = len(_triples(one) & _triples(other)) / len(_triples(one) | _triples(other))
        estimate = similarity(_signature(one), _signature(other))

        assert abs(exact - estimate) <= 4 * max(0.02, (exact * (1 - exact) / 128) ** 0.5)


def test_short_texts_prove_nothing() -> None:
    """Eleven words have no signature, twelve have; characters of CJK count as words."""
    assert signature_of(["one two three four five six seven eight nine ten eleven"]) is None
    twelve = signature_of(["one two three four five six seven eight nine ten eleven twelve"])
    assert twelve is not None
    assert SIGNATURE_BYTES == len(twelve)
    assert (
        signature_of(["\u6211\u4eec\u4eca\u5929\u53bb\u4e2d\u56fd\u9910\u9986\u5403\u996d"]) is None
    )
    assert signature_of(
        ["\u6211\u4eec\u4eca\u5929\u53bb\u4e2d\u56fd\u9910\u9986\u5403\u996d\u5427"]
    )


@pytest.mark.parametrize(
    ("threshold", "rows"), [(0.5, 2), (0.7, 4), (0.8, 8), (0.9, 8), (0.95, 16)]
)
def test_bands_suit_the_threshold(threshold: float, rows: int) -> None:
    """The longest band that still finds nine of ten pairs exactly at the threshold."""
    assert rows == band_rows(threshold)
    assert 1 - (1 - threshold**rows) ** (128 // rows) >= 0.9


def test_near_texts_are_found_and_others_not(tmp_path: Path) -> None:
    """Among 2,000 texts, copies with two changed words are found, unrelated texts never."""
    rng = random.Random(11)  # noqa: S311 - test data, seeded
    texts = [_text(rng) for _ in range(2000)]
    index = NearIndex(0.8, tmp_path / "scratch")
    signatures = [_signature(words) for words in texts]
    wrong = []
    for signature in signatures:
        wrong += [found] if (found := index.find(signature)) is not None else []
        index.add(signature)
    copies = [[*words[:30], "other", *words[31:90], "changed", *words[91:]] for words in texts]
    found = sum(index.find(_signature(words)) is not None for words in copies)
    index.close()

    assert [] == wrong
    assert (2000, True) == (len(index), found >= 1900)
    assert [] == list(tmp_path.iterdir())


def test_many_equal_texts_do_not_slow_the_index_down(tmp_path: Path) -> None:
    """One text a thousand times keeps its chains short and is still found."""
    index = NearIndex(0.8, tmp_path / "scratch")
    signature = _signature(_text(random.Random(1)))  # noqa: S311 - test data, seeded
    for _ in range(1000):
        index.add(signature)
    longest = max(len(index._table.find(mark)[1]) for mark in index._marks(signature))
    found = index.find(signature)
    index.close()

    assert (8, 1.0) == (longest, found)


def test_ten_million_texts_take_disk_and_no_memory(tmp_path: Path) -> None:
    """By its arithmetic at most 12 GB at the default threshold; what is measured stays below it."""
    rng = random.Random(13)  # noqa: S311 - test data, seeded
    index = NearIndex(0.8, tmp_path / "scratch")
    for n in range(1, 5001):
        index.add(rng.randbytes(SIGNATURE_BYTES))
        if n in (2600, 2700, 5000):  # before and after the table has doubled, and later
            assert index.disk_bytes <= near_disk_bytes(n, 0.8)
    index.close()

    assert 512 + 394 + 197 == near_disk_bytes(1_000_000, 0.8) // 1_000_000 + 1
    assert near_disk_bytes(10_000_000, 0.8) < 12 << 30
