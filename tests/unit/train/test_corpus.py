"""A corpus version is read back as it was frozen, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.errors import ArtifactError
from eagled.train.corpus import corpus_versions, latest_corpus, read_corpus
from tests.unit.train.helpers import Answer, make_corpus


def test_rows_come_back_by_split(tmp_path: Path) -> None:
    """Ids, prompt length and split of each row are as frozen."""
    corpus = make_corpus(
        tmp_path, [Answer("b", [1, 2], [3]), Answer("a", [4], [5, 6], split="holdout")]
    )

    rows = [(r.dataset, r.split, r.n_prompt, r.input_ids.tolist()) for r in corpus.rows()]
    assert rows == [("a", "holdout", 1, [4, 5, 6]), ("b", "train", 2, [1, 2, 3])]
    assert [r.dataset for r in corpus.rows("train")] == ["b"]


def test_latest_is_by_number(tmp_path: Path) -> None:
    """v1000 is newer than v999; other folders are not versions."""
    for name in ("v999", "v1000", "v001.bak", "merge.tmp"):
        (tmp_path / name).mkdir()

    assert [p.name for p in corpus_versions(tmp_path)] == ["v999", "v1000"]
    assert corpus_versions(tmp_path / "none") == []
    with pytest.raises(ArtifactError, match="run `eagled merge` first"):
        latest_corpus(tmp_path / "none")


def test_torn_and_altered_tables_are_refused(tmp_path: Path) -> None:
    """Size is always checked, the checksum on demand."""
    folder = make_corpus(tmp_path, [Answer("a", [1], [2, 3])]).folder
    table = folder / "corpus.parquet"
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 2] ^= 1
    table.write_bytes(raw)

    read_corpus(folder)
    with pytest.raises(ArtifactError, match="altered"):
        read_corpus(folder, checksum=True)
    table.write_bytes(raw[:-1])
    with pytest.raises(ArtifactError, match="the manifest says"):
        read_corpus(folder)
