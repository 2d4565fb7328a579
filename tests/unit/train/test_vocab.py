"""The draft vocabulary holds the right ids, as offsets, and a stale one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from eagled.errors import ArtifactError, ConfigError
from eagled.train.corpus import Corpus
from eagled.train.vocab import (
    DraftVocab,
    VocabInputs,
    build_vocab,
    check_mapping,
    check_size,
    choose_ids,
    load_vocab,
    mapping_to_continue,
    size_for,
)
from tests.faults import fault_file
from tests.unit.train.helpers import Answer, make_corpus


def case(name: str) -> dict[str, Any]:
    """Return a fault's settings."""
    return dict(json.loads(fault_file(f"vocab/{name}.json").read_text(encoding="utf-8")))


def counts(table: dict[str, int], target_vocab: int = 40) -> npt.NDArray[np.int64]:
    """Return counts by id from a JSON object."""
    result = np.zeros(target_vocab, np.int64)
    for key, n in table.items():
        result[int(key)] = n
    return result


@pytest.mark.fault("F78")
@pytest.mark.fault("F83")
def test_offsets_mask_and_kept_ids() -> None:
    """The ids, offsets and mask are those of the file; kept ids are in with count 0."""
    given = case("counts")
    found = choose_ids(counts(given["counts"]), given["draft_vocab"], given["always_keep"])
    vocab = DraftVocab.of_ids(found.ids, given["target_vocab"])

    assert found.ids.tolist() == given["expect_ids"]
    assert vocab.d2t.tolist() == given["expect_d2t"]
    assert vocab.t2d.astype(int).tolist() == given["expect_t2d"]
    assert [i + int(d) for i, d in enumerate(vocab.d2t)] == given["expect_ids"]
    assert (str(vocab.d2t.dtype), str(vocab.t2d.dtype)) == ("int64", "bool")
    assert set(given["always_keep"]) <= set(found.ids.tolist())
    assert found.fillers == 0


@pytest.mark.fault("F78")
@pytest.mark.parametrize("wrong", ["absolute", "range"])
def test_ids_instead_of_offsets_are_refused(wrong: str) -> None:
    """Absolute ids or 0, 1, 2, … in d2t do not pass the check."""
    given = case("counts")
    d2t = np.asarray(given["expect_ids"]) if wrong == "absolute" else np.arange(10)
    t2d = np.asarray(given["expect_t2d"], np.bool_)

    with pytest.raises(ArtifactError, match="offsets"):
        check_mapping(d2t, t2d, draft_vocab=10, target_vocab=40)


@pytest.mark.fault("F77")
def test_small_corpus_is_filled_up() -> None:
    """Five distinct tokens in 16 places: 16 different sorted ids inside the target, 11 fillers."""
    given = case("few_tokens")
    found = choose_ids(counts(given["counts"]), given["draft_vocab"], given["always_keep"])

    assert len(set(found.ids.tolist())) == 16
    assert found.ids.tolist() == sorted(found.ids.tolist())
    assert 0 <= found.ids.min() <= found.ids.max() <= 39
    assert {0, 1, 5, 6, 8} <= set(found.ids.tolist())
    assert found.fillers == 11
    assert found.ids.tolist() == list(range(16))


def test_ties_go_to_the_smaller_id() -> None:
    """Among equally frequent tokens the smaller ids are chosen."""
    assert choose_ids(counts({"30": 5, "20": 5, "10": 5, "5": 9}), 3).ids.tolist() == [5, 10, 20]


@pytest.mark.fault("F82")
@pytest.mark.parametrize("index", range(6))
def test_bad_sizes_are_refused(index: int) -> None:
    """Zero, negative, fractional, textual, too large and boolean sizes name setting and range."""
    given = case("bad_sizes")
    size = given["draft_vocab"][index]

    with pytest.raises(ConfigError) as info:
        choose_ids(np.ones(given["target_vocab"], np.int64), size)
    assert f"vocab.size = {size!r} is not allowed" in str(info.value)
    assert "1..40" in str(info.value)
    assert len(given["draft_vocab"]) == 6


def test_more_kept_ids_than_places() -> None:
    """When the control tokens alone do not fit, the smallest allowed size is named."""
    with pytest.raises(ConfigError, match=r"allowed: 3\.\.40"):
        choose_ids(counts({}), 2, (1, 2, 3))
    with pytest.raises(ConfigError, match=r"\[40\] are outside 0\.\.39"):
        choose_ids(counts({}), 8, (40,))


def test_full_vocabulary_is_the_identity() -> None:
    """As many places as tokens: every offset is 0."""
    vocab = DraftVocab.of_ids(choose_ids(counts({"3": 1}), check_size(40, 40)).ids, 40)

    assert vocab.d2t.tolist() == [0] * 40
    assert vocab.t2d.all()


def test_mapping_that_is_missing_or_misshapen() -> None:
    """A reduced draft without a mapping is refused, and so are wrong lengths and types."""
    good = DraftVocab.of_ids(np.asarray([0, 2, 5]), 8)
    assert check_mapping(good.d2t, good.t2d, draft_vocab=3, target_vocab=8).ids.tolist() == [
        0,
        2,
        5,
    ]
    with pytest.raises(ArtifactError, match="3 of 8 tokens needs d2t and t2d"):
        check_mapping(None, None, draft_vocab=3, target_vocab=8)
    wrong: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = [
        (good.d2t[:2], good.t2d),
        (good.d2t.astype(np.int32), good.t2d),
        (good.d2t, good.t2d.astype(np.int64)),
        (good.d2t, good.t2d[:7]),
    ]
    for d2t, t2d in wrong:
        with pytest.raises(ArtifactError, match="the vocabulary mapping is"):
            check_mapping(d2t, t2d, draft_vocab=3, target_vocab=8)


@pytest.mark.fault("F80")
def test_own_mapping_is_kept_and_the_difference_told() -> None:
    """With other counts the checkpoint's mapping stays, and the message says what differs."""
    given = case("resume")
    old = np.asarray(given["old_d2t"], np.int64)
    own = DraftVocab.of_ids(np.arange(10) + old, 40)
    built = DraftVocab.of_ids(choose_ids(counts(given["new_counts"]), 10).ids, 40)

    kept, difference = mapping_to_continue(own, built)
    assert kept.d2t.tolist() == given["old_d2t"]
    assert "the checkpoint's is kept" in difference
    assert mapping_to_continue(own, own) == (own, "")


def corpus(folder: Path) -> Corpus:
    """Return a corpus of two datasets; 7 is frequent in train, 9 only in the holdout."""
    return make_corpus(
        folder,
        [
            Answer("alpha", [39, 39, 39], [7, 7, 7, 3]),
            Answer("alpha", [1], [7, 4]),
            Answer("beta", [1], [3, 3, 5]),
            Answer("beta", [2], [9, 9, 9, 9, 9, 7], split="holdout"),
        ],
    )


def inputs(**changes: Any) -> VocabInputs:
    """Return inputs for four places with id 30 as the control token."""
    values: dict[str, Any] = {
        "size": 4, "target_vocab": 40, "tokenizer_hash": "k", "special": (30,),
    }  # fmt: skip
    return VocabInputs(**{**values, **changes})


def test_only_supervised_train_tokens_count(tmp_path: Path) -> None:
    """Prompts and the holdout do not decide what is in; coverage is told for both splits."""
    result = build_vocab(corpus(tmp_path), tmp_path / "vocab", inputs())

    assert result.vocab.ids.tolist() == [3, 4, 7, 30]
    shares = {(c.dataset, c.split): (c.tokens, c.covered) for c in result.coverage}
    assert shares == {
        ("alpha", "train"): (6, 6), ("beta", "train"): (3, 2), ("beta", "holdout"): (6, 1),
    }  # fmt: skip
    assert round(result.coverage[2].share, 3) == 0.667


def test_written_vocabulary_is_read_back(tmp_path: Path) -> None:
    """Another reader finds both tensors; building again changes nothing; loading checks it all."""
    frozen = corpus(tmp_path)
    first = build_vocab(frozen, tmp_path / "vocab", inputs())
    before = {p.name: p.read_bytes() for p in first.folder.iterdir()}
    second = build_vocab(frozen, tmp_path / "vocab", inputs())

    assert (first.created, second.created) == (True, False)
    assert {p.name: p.read_bytes() for p in first.folder.iterdir()} == before
    tensors = load_file(first.folder / "vocab.safetensors")
    assert tensors["d2t"].tolist() == [3, 3, 5, 27]
    assert np.flatnonzero(tensors["t2d"]).tolist() == [3, 4, 7, 30]
    loaded = load_vocab(
        first.folder, target_vocab=40, draft_vocab=4, corpus=frozen, tokenizer_hash="k"
    )
    assert loaded.ids.tolist() == [3, 4, 7, 30]
    manifest = json.loads(before["manifest.json"])
    assert manifest["coverage"] == {
        "alpha train": 1.0, "beta holdout": 0.166667, "beta train": 0.666667,
    }  # fmt: skip


def test_same_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two builds in different folders are byte for byte the same."""
    frozen = corpus(tmp_path)
    folders = [build_vocab(frozen, tmp_path / x, inputs()).folder for x in ("a", "b")]

    names = sorted(p.name for p in folders[0].iterdir())
    assert [(folders[0] / n).read_bytes() for n in names] == [
        (folders[1] / n).read_bytes() for n in names
    ]


@pytest.mark.fault("F81")
def test_stale_file_is_not_used(tmp_path: Path) -> None:
    """Another size, the full vocabulary and another target are each refused with the cause."""
    given = case("stale_file")
    made = given["file_for"]
    frozen = corpus(tmp_path)
    folder = build_vocab(
        frozen,
        tmp_path / "vocab",
        inputs(size=made["draft_vocab"], target_vocab=made["target_vocab"]),
    ).folder
    words = [
        "draft_vocab is 10, asked for 12",
        "draft_vocab is 10, asked for 'full'",
        "target_vocab is 40, asked for 64",
    ]
    for asked, cause in zip(given["asked"], words, strict=True):
        with pytest.raises(ArtifactError, match=cause):
            load_vocab(folder, **asked)
    with pytest.raises(ArtifactError, match="tokenizer_hash is 'k', asked for 'other'"):
        load_vocab(folder, target_vocab=40, draft_vocab=10, tokenizer_hash="other")


def test_vocabulary_of_another_corpus_is_refused(tmp_path: Path) -> None:
    """A mapping is tied to the members it was counted from, not to a folder name."""
    folder = build_vocab(corpus(tmp_path), tmp_path / "vocab", inputs()).folder
    other = make_corpus(tmp_path / "other", [Answer("alpha", [1], [2, 3])])

    with pytest.raises(ArtifactError, match="members_hash"):
        load_vocab(folder, target_vocab=40, draft_vocab=4, corpus=other)


def test_altered_file_is_refused(tmp_path: Path) -> None:
    """A flipped bit in the table is found."""
    folder = build_vocab(corpus(tmp_path), tmp_path / "vocab", inputs()).folder
    path = folder / "vocab.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)

    with pytest.raises(ArtifactError, match="altered"):
        load_vocab(folder, target_vocab=40, draft_vocab=4)


def test_ids_of_another_tokenizer(tmp_path: Path) -> None:
    """An id past the target's vocabulary is an error that names the dataset."""
    with pytest.raises(ArtifactError, match=r"dataset 'alpha' has ids 3\.\.7"):
        build_vocab(corpus(tmp_path), tmp_path / "vocab", inputs(target_vocab=5, special=()))


def test_the_size_follows_the_coverage_that_is_asked_for() -> None:
    """The fewest ids that reach the share, in steps of 64, and never more than the most."""
    flat = np.full(1000, 10, np.int64)

    assert 512 == size_for(flat, 0.5, (), 1000)
    assert 100 == size_for(flat, 0.5, (), 100)
    assert 64 == size_for(counts({"1": 98, "2": 1, "3": 1}, 1000), 0.98, (7, 8), 1000)
    assert (
        576 == size_for(flat, 0.5, range(20, 520), 1000) + 64
    )  # kept ids cover half by themselves


def test_coverage_is_counted_by_lane(tmp_path: Path) -> None:
    """A lane's tokens are those of its samples, over all datasets; the size comes from coverage."""
    inputs = VocabInputs(32, 40, "t", coverage=0.9, lane_of=lambda n: "short" if n < 2 else "long")
    result = build_vocab(corpus(tmp_path), tmp_path / "vocab", inputs)
    tokens = {(c.dataset, c.split): c.tokens for c in result.lanes}

    assert {("long", "train"): 4, ("short", "train"): 5, ("short", "holdout"): 6} == tokens
    assert 32 == len(result.vocab.d2t)
    assert sum(tokens.values()) == sum(c.tokens for c in result.coverage)
