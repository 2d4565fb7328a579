"""Merging freezes exactly one moment's answers, in a fixed order, once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagled.artifacts import write_json
from eagled.clock import FakeClock
from eagled.config import Config
from eagled.errors import ArtifactError, DiskError
from eagled.holdout import split_of
from eagled.paths import StatePaths
from eagled.store import Store, StoreReader
from eagled.store.records import Body, DatasetRecord, NewConversation, NewTurn
from eagled.tokens import make_uid, pack_ids
from eagled.train.vocab import vocab_run
from eagled.types import Mode
from eagled.workers import merge as merge_module
from eagled.workers.merge import CorpusResult, merge_corpus, merge_run
from tests.unit.train.helpers import Answer, Answers

MADE_WITH = {"target": "toy"}


def merge(reader: Any, folder: Path, **changes: Any) -> CorpusResult:
    """Merge with a holdout of one half."""
    values: dict[str, Any] = {"holdout": 0.5, "seed": 0, "provenance": MADE_WITH}
    return merge_corpus(reader, folder, **{**values, **changes})


def some(n: int) -> list[Answer]:
    """Return n answers in two datasets."""
    return [Answer("ba"[i % 2], [i % 30, 1], [i % 30] * (1 + i % 5)) for i in range(n)]


def test_order_does_not_depend_on_ids(tmp_path: Path) -> None:
    """The same answers stored in another order give the same bytes."""
    answers = [dataclasses.replace(a, talk=make_uid(str(i))) for i, a in enumerate(some(40))]
    one = merge(Answers(answers), tmp_path / "a")
    two = merge(Answers(answers[::-1]), tmp_path / "b")

    rows = list(one.corpus.rows())
    assert [(r.dataset, r.conversation, r.turn) for r in rows] == sorted(
        (r.dataset, r.conversation, r.turn) for r in rows
    )
    assert len(rows) == 40
    for name in ("corpus.parquet", "manifest.json"):
        assert (one.corpus.folder / name).read_bytes() == (two.corpus.folder / name).read_bytes()


def test_same_members_give_the_same_version(tmp_path: Path) -> None:
    """Merging again returns v001; a new answer, seed or provenance makes a new version."""
    store = Answers(some(6))
    first, again = merge(store, tmp_path), merge(store, tmp_path)
    assert (first.corpus.version, first.created) == ("v001", True)
    assert (again.corpus.version, again.created) == ("v001", False)

    more = merge(Answers(some(7)), tmp_path)
    seed = merge(store, tmp_path, seed=3)
    other = merge(store, tmp_path, provenance={"target": "else"})
    back = merge(store, tmp_path)

    assert [r.corpus.version for r in (more, seed, other, back)] == ["v002", "v003", "v004", "v001"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v001", "v002", "v003", "v004"]


def test_turns_of_a_conversation_stay_together(tmp_path: Path) -> None:
    """All turns of a conversation are in one split, in turn order."""
    talks = [make_uid(str(n)) for n in range(30)]
    answers = [Answer("a", [1], [2], turn=t, talk=talk) for t in (2, 0, 1) for talk in talks]

    rows = list(merge(Answers(answers), tmp_path).corpus.rows())

    split = {r.conversation: r.split for r in rows}
    assert all(split[r.conversation] == r.split for r in rows)
    assert [r.turn for r in rows] == [0, 1, 2] * 30
    assert 5 <= sum(s == "holdout" for s in split.values()) <= 25


def test_holdout_is_stable_and_about_its_share() -> None:
    """The split depends on uid and seed alone, and holds out about the share asked for."""
    uids = [make_uid(str(n)).hex() for n in range(4000)]
    held = [split_of(u, 0.1, 0) == "holdout" for u in uids]

    assert 320 <= sum(held) <= 480
    assert [split_of(u, 0.1, 0) == "holdout" for u in uids] == held
    assert [split_of(u, 0.1, 1) == "holdout" for u in uids] != held
    assert all(split_of(u, 0.2, 0) == "holdout" for u, h in zip(uids, held, strict=True) if h)
    assert {split_of(u, 0.0, 0) for u in uids} == {"train"}


class _Changing(Answers):
    """A store in which answers change between the list and the reading of the bodies."""

    def bodies(self, ids: Sequence[int]) -> Iterator[Body]:
        """Yield the bodies after one was generated anew, one altered and one removed."""
        rows = dict(self.rows)
        rows[2] = dataclasses.replace(rows[2], attempt=2, output=pack_ids([9]))
        rows[3] = dataclasses.replace(rows[3], output=pack_ids([8]))
        del rows[4]
        yield from (rows[i] for i in ids if i in rows)


def test_changed_members_are_left_out_and_counted(tmp_path: Path) -> None:
    """A new attempt, other ids and a vanished answer are not mixed in."""
    store = _Changing(some(10))
    kept = {store.rows[i].uid.hex() for i in (1, 5, 6, 7, 8, 9, 10)}

    result = merge(store, tmp_path)

    assert {r.uid for r in result.corpus.rows()} == kept
    assert result.changed == 3
    assert result.corpus.manifest["rows"] == 7


def test_bodies_are_read_in_chunks(tmp_path: Path) -> None:
    """No read asks for more than 500 bodies; progress is told after each, and as it is written."""
    store, seen = Answers(some(1203)), []

    result = merge(store, tmp_path, progress=lambda done, total: seen.append((done, total)))

    assert store.chunks == [500, 500, 203]
    assert seen[:3] == [(500, 1203), (1000, 1203), (1203, 1203)]
    assert seen[3:] == [(1203, 1203)] * 3
    assert sum(1 for _ in result.corpus.rows()) == 1203


def test_manifest_counts(tmp_path: Path) -> None:
    """Rows, tokens and answers by dataset and finish are those of the members."""
    answers = [Answer("a", [1, 2, 3], [4]), Answer("b", [1], [2, 3], split="holdout")]

    manifest = merge(Answers(answers), tmp_path).corpus.manifest

    want = {
        "rows": 2, "tokens": 7, "supervised_tokens": 3, "datasets": {"a": 1, "b": 1},
        "finish": {"stop": 2}, "conversations": 2, "holdout_rows": 1, "holdout_conversations": 1,
        "holdout": 0.5, "seed": 0, "made_with": MADE_WITH,
    }  # fmt: skip
    assert {key: manifest[key] for key in want} == want


def test_nothing_to_merge_is_an_error(tmp_path: Path) -> None:
    """An empty store, and one that is wholly held out, are errors; no version appears."""
    with pytest.raises(ArtifactError, match="nothing to merge"):
        merge(Answers([]), tmp_path)
    with pytest.raises(ArtifactError, match="nothing to train on"):
        merge(Answers([Answer("a", [1], [2], split="holdout")]), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_damaged_and_empty_answers_stop_the_merge(tmp_path: Path) -> None:
    """Ids whose checksum differs, or an answer without ids, are errors, not rows."""
    store = Answers(some(3))
    store.rows[2] = dataclasses.replace(store.rows[2], prompt=type(store.rows[1].prompt)(b"", 1, 1))
    with pytest.raises(ArtifactError, match="damaged"):
        merge(store, tmp_path)
    store.rows[2] = dataclasses.replace(store.rows[1], id=2, output=pack_ids([]))
    with pytest.raises(ArtifactError, match="nothing of it would be supervised"):
        merge(store, tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_no_half_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the table cannot be written, earlier versions stand and nothing else is left."""
    merge(Answers(some(3)), tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(merge_module, "_write_table", full)
    with pytest.raises(DiskError, match="make room"):
        merge(Answers(some(4)), tmp_path)

    assert [p.name for p in tmp_path.iterdir()] == ["v001"]


def test_leftovers_of_a_killed_merge_are_removed(tmp_path: Path) -> None:
    """A merge that was killed does not disturb the next one."""
    (tmp_path / "merge.tmp").mkdir()
    (tmp_path / "merge.tmp" / "corpus.parquet").write_bytes(b"half")

    assert merge(Answers(some(3)), tmp_path).corpus.version == "v001"
    assert [p.name for p in tmp_path.iterdir()] == ["v001"]


async def fill(paths: StatePaths, n: int) -> None:
    """Store n native answers, which are accepted from the start."""
    store = await Store.open(paths, clock=FakeClock(), create=True)
    try:
        dataset = await store.add_dataset(DatasetRecord("alpha", 0, Mode.NATIVE, "k", n, n, 0))
        items = []
        for i in range(n):
            uid = make_uid("talk", str(i))
            turn = NewTurn(
                make_uid("turn", str(i)), 0, pack_ids([1, i % 50]), pack_ids([3, i % 50])
            )
            items.append(NewConversation(uid, make_uid("d", str(i)), None, None, (turn,)))
        await store.add_conversations(dataset, items)
    finally:
        await store.close()


async def test_merge_and_vocab_of_a_real_store(tmp_path: Path, tiny_model: Path) -> None:
    """From the database through a corpus version to a vocabulary, with the run's configuration."""
    config = Config.model_validate(
        {
            "run": {"state_dir": str(tmp_path)},
            "target": {"model": str(tiny_model)},
            "datasets": [{"name": "alpha", "source": "x"}],
            "merge": {"holdout": 0.2},
            "vocab": {"size": 64},
        }
    )
    paths = StatePaths(tmp_path)
    await fill(paths, 60)
    write_json(paths.datasets / "alpha" / "manifest.json", {"prep_key": "k"})
    with StoreReader(paths.database) as reader:
        result = merge_run(config, reader, server="f1")
        again = merge_run(config, reader, server=None)

    made_with = result.corpus.manifest["made_with"]
    assert (result.corpus.n_rows, result.created, again.created) == (60, True, False)
    assert (made_with["prepared"], made_with["server"]) == ({"alpha": "k"}, "f1")
    assert made_with["sampling"]["alpha"]["max_new_tokens"] == 8192
    vocab = vocab_run(config, result.corpus)
    assert vocab.folder == paths.vocab / "v001-64"
    assert len(vocab.vocab.ids) == 64
    assert set(range(8)) <= set(vocab.vocab.ids.tolist())
    assert {c.split for c in vocab.coverage} == {"train", "holdout"}


def test_merge_loads_no_model_library() -> None:
    """The daemon merges in its own process, so torch and transformers stay out of it."""
    script = (
        "import sys, eagled.workers.merge, eagled.train.vocab, eagled.shards.verify\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
