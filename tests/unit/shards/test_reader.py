"""The dataset gives back what was written."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.utils.data import DataLoader

from eagled.errors import ArtifactError
from eagled.shards import ShardDataset, ShardSampler
from eagled.shards.container import read_container
from eagled.shards.format import StatesSample, read_shard_header
from eagled.shards.stored import map_shard
from eagled.shards.verify import verify_shards
from eagled.shards.writer import ShardWriter, rewrite_metadata
from eagled.train.corpus import Corpus
from tests.faults import fault_file
from tests.unit.shards.helpers import manifest, sample, write_shard
from tests.unit.train.helpers import Answer, make_corpus


def bits(tensor: torch.Tensor) -> list[list[int]]:
    """Return a bf16 tensor as its bit patterns."""
    return [[int(x) & 0xFFFF for x in row] for row in tensor.view(torch.int16)]


def test_samples_come_back_by_index_and_uid(tmp_path: Path) -> None:
    """Across two files every sample has its own ids, mask and rows."""
    items = [sample(1), sample(2, 2, 5), sample(3, 4, 1)]
    first = write_shard(tmp_path, items[:2]).path
    second = write_shard(tmp_path, items[2:]).path

    dataset = ShardDataset([first, second])

    assert len(dataset) == 3
    assert dataset.uids == tuple(i.uid for i in items)
    for index, item in enumerate(items):
        got = dataset[index]
        assert got["uid"] == dataset.entry(index).uid == dataset.by_uid(item.uid)["uid"] == item.uid
        assert got["input_ids"].tolist() == item.input_ids.tolist()
        assert got["loss_mask"].tolist() == item.loss_mask.astype(bool).tolist()
        assert bits(got["aux"]) == item.aux.tolist()
        assert bits(got["last"]) == item.last.tolist()
        assert got["last_positions"].tolist() == item.last_positions.tolist()


def test_index_past_the_end_ends_iteration(tmp_path: Path) -> None:
    """Plain iteration over the dataset sees every sample once."""
    write_shard(tmp_path, [sample(1), sample(2)])

    dataset = ShardDataset.from_folder(tmp_path)
    assert [s["uid"] for s in (dataset[i] for i in range(len(dataset)))] == list(dataset.uids)
    with pytest.raises(IndexError):
        dataset[2]


def test_dataset_survives_pickling(tmp_path: Path) -> None:
    """A loader's worker process gets the dataset without its mappings."""
    write_shard(tmp_path, [sample(1)])
    dataset = ShardDataset.from_folder(tmp_path)
    first = dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes

    assert bits(copy[0]["aux"]) == bits(first["aux"])


def test_shards_of_other_layers_are_refused(tmp_path: Path) -> None:
    """Files whose states mean something else are not mixed; both values are named."""
    first = write_shard(tmp_path, [sample(1)]).path
    writer = ShardWriter(tmp_path, manifest("all"))
    writer.append(sample(2, last="all"))
    second = writer.finish().path

    with pytest.raises(ArtifactError, match=r"last differs.*'all'.*'supervised'"):
        ShardDataset([first, second])


def test_doubled_sample_is_refused(tmp_path: Path) -> None:
    """A sample in two files would be trained twice."""
    paths = [
        write_shard(tmp_path, [sample(1)]).path,
        write_shard(tmp_path, [sample(1), sample(2)]).path,
    ]

    with pytest.raises(ArtifactError, match="twice"):
        ShardDataset(paths)


def test_of_two_attempts_the_newest_counts(tmp_path: Path) -> None:
    """A stale copy of a sample, left in a partly accepted shard, is skipped."""
    newer = dataclasses.replace(sample(1), attempt=2)
    paths = [
        write_shard(tmp_path, [newer]).path,
        write_shard(tmp_path, [sample(1), sample(2)]).path,
    ]

    for order in (paths, paths[::-1]):
        dataset = ShardDataset(order)
        assert sorted(dataset.uids) == [sample(1).uid, sample(2).uid]
        assert [dataset.entry(i).attempt for i in range(2) if dataset[i]["uid"] == newer.uid] == [2]


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    """No shards is an error, not a dataset of length 0."""
    with pytest.raises(ArtifactError, match="no shards"):
        ShardDataset.from_folder(tmp_path)


@pytest.mark.fault("F76")
def test_missing_key_lists_what_is_there(tmp_path: Path) -> None:
    """A file that lacks a tensor is refused when opened; found and missing keys are listed."""
    case = json.loads(fault_file("disk/key_names.json").read_text(encoding="utf-8"))
    path = tmp_path / "shard-1.safetensors"
    save_file({name: np.zeros(4, np.float32) for name in case["stored_keys"]}, path)

    with pytest.raises(ArtifactError) as info:
        read_container(path).require(case["reader_wants"])
    message = str(info.value)
    assert "missing tensor hidden_state; found: hidden_states, input_ids, loss_mask" in message
    with pytest.raises(ArtifactError, match="missing tensor aux, last, last_positions, offsets"):
        read_shard_header(path)
    with pytest.raises(ArtifactError, match="missing tensor"):
        ShardDataset([path])


def test_a_format_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    """The message has the tag and those that can be read, also where tensors have other names."""
    shard = write_shard(tmp_path, [sample(1)])
    rewrite_metadata(shard.path, {"format": "eagled-shard/9"})
    words = "format is 'eagled-shard/9', this version of eagled reads eagled-shard/1 and eagled-"

    for read in (lambda: read_shard_header(shard.path), lambda: ShardDataset([shard.path])):
        with pytest.raises(ArtifactError, match=words):
            read()
    save_file({"states": np.zeros(4, np.float32)}, shard.path, {"format": "eagled-shard/9"})
    with pytest.raises(ArtifactError, match=words):
        read_shard_header(shard.path)
    report = verify_shards(tmp_path)
    assert [words in f.problem for f in report.findings] == [True]


def open_files(folder: Path) -> int:
    """Return how many files of a folder this process has open."""
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum(str(folder) in os.path.realpath(link) for link in links)


def test_files_are_closed_with_their_dataset(tmp_path: Path) -> None:
    """Many shards are open a bounded number at a time, and none after the dataset is gone."""
    paths = [write_shard(tmp_path, [sample(n)]).path for n in range(40)]
    dataset = ShardDataset(paths)
    for index in range(len(dataset)):
        assert dataset[index]["aux"].shape[0] > 0
        assert 0 < open_files(tmp_path) <= 2 * 33  # each is mapped, and open
    del dataset
    gc.collect()

    assert open_files(tmp_path) == 0


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    """Reading what is gone says so; a mapping alone would end the process."""
    shard = write_shard(tmp_path, [sample(1, 600, 600)])
    dataset = ShardDataset([shard.path])
    assert len(dataset[0]["aux"]) == 1199
    aux = read_shard_header(shard.path).container.tensors["aux"]
    arrays = map_shard(read_shard_header(shard.path))
    os.truncate(shard.path, aux.start + 5000)

    with pytest.raises(ArtifactError, match="became shorter"):
        arrays.states("aux", 0)


def corpus_shards(folder: Path) -> tuple[Corpus, list[StatesSample]]:
    """Freeze four answers (one held out) and write states for them, last member first."""
    answers = [
        Answer("a", [1, 2, 3], [4, 5, 6, n], "holdout" if n == 2 else "train") for n in range(4)
    ]
    corpus = make_corpus(folder, answers)
    items = []
    for n, row in enumerate(corpus.rows()):
        items.append(
            dataclasses.replace(sample(n), uid=row.uid, input_ids=row.input_ids.astype(np.int32))
        )
    write_shard(folder / "shards", [*items[::-1], sample(99)])
    return corpus, items


def test_a_corpus_chooses_and_orders(tmp_path: Path) -> None:
    """Only members of the split are given, in the corpus's order; others in the files are not."""
    corpus, items = corpus_shards(tmp_path)
    both = ShardDataset.from_folder(tmp_path / "shards", corpus=corpus)
    train = ShardDataset.from_folder(tmp_path / "shards", corpus=corpus, split="train")

    assert both.uids == tuple(i.uid for i in items)
    assert train.uids == tuple(r.uid for r in corpus.rows("train"))
    assert len(train) == 3
    assert [both[i]["input_ids"].tolist() for i in range(4)] == [
        i.input_ids.tolist() for i in items
    ]
    assert [both.length(i) for i in range(4)] == [7] * 4


def test_a_corpus_without_its_states_is_refused(tmp_path: Path) -> None:
    """Missing members are counted and named, unless a partial dataset is asked for."""
    corpus, items = corpus_shards(tmp_path)
    write_shard(tmp_path / "some", items[:1])

    with pytest.raises(ArtifactError, match=f"3 of 4 samples.*{items[1].uid}"):
        ShardDataset.from_folder(tmp_path / "some", corpus=corpus)
    assert len(ShardDataset.from_folder(tmp_path / "some", corpus=corpus, partial=True)) == 1


def test_states_of_another_answer_are_refused(tmp_path: Path) -> None:
    """A sample that was answered anew after its states were taken does not pass as the old one."""
    corpus, items = corpus_shards(tmp_path)
    other = dataclasses.replace(items[0], input_ids=items[0].input_ids[::-1].copy())
    write_shard(tmp_path / "other", [other, *items[1:]])
    dataset = ShardDataset.from_folder(tmp_path / "other", corpus=corpus)

    assert dataset[1]["uid"] == items[1].uid
    with pytest.raises(ArtifactError, match=f"answer of sample {items[0].uid} is not the one"):
        dataset[0]


def test_altered_bytes_are_found_on_demand(tmp_path: Path) -> None:
    """One flipped bit passes unseen when not asked for, and is found by `verify` or `checksums`."""
    path = write_shard(tmp_path, [sample(1)]).path
    ShardDataset([path], checksums=True)[0]
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)

    assert ShardDataset([path])[0]["uid"] == sample(1).uid
    with pytest.raises(ArtifactError, match="altered"):
        ShardDataset([path], checksums=True)[0]
    with pytest.raises(ArtifactError, match="altered"):
        ShardDataset([path]).verify()


def test_loader_workers_decode_every_sample_once(tmp_path: Path) -> None:
    """Two worker processes with a shuffled sampler give each sample of three files once."""
    for n in range(3):
        write_shard(tmp_path, [sample(10 * n + i) for i in range(4)])
    dataset = ShardDataset.from_folder(tmp_path)
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=ShardSampler(len(dataset), seed=5),
        num_workers=2,
        multiprocessing_context="spawn",
    )

    assert sorted(s["uid"] for s in loader) == sorted(dataset.uids)
