"""The dataset gives back what was written."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from eagled.errors import ArtifactError
from eagled.shards import ShardDataset
from eagled.shards.container import read_container
from eagled.shards.format import read_shard_header
from eagled.shards.writer import ShardWriter
from tests.faults import fault_file
from tests.unit.shards.helpers import manifest, sample, write_shard


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
        assert got.uid == dataset.entry(index).uid == dataset.by_uid(item.uid).uid == item.uid
        assert got.input_ids.tolist() == item.input_ids.tolist()
        assert got.loss_mask.tolist() == item.loss_mask.astype(bool).tolist()
        assert bits(got.aux) == item.aux.tolist()
        assert bits(got.last) == item.last.tolist()
        assert got.last_positions.tolist() == item.last_positions.tolist()


def test_index_past_the_end_ends_iteration(tmp_path: Path) -> None:
    """Plain iteration over the dataset sees every sample once."""
    write_shard(tmp_path, [sample(1), sample(2)])

    dataset = ShardDataset.from_folder(tmp_path)
    assert [s.uid for s in (dataset[i] for i in range(len(dataset)))] == list(dataset.uids)
    with pytest.raises(IndexError):
        dataset[2]


def test_dataset_survives_pickling(tmp_path: Path) -> None:
    """A loader's worker process gets the dataset without its mappings."""
    write_shard(tmp_path, [sample(1)])
    dataset = ShardDataset.from_folder(tmp_path)
    first = dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes

    assert bits(copy[0].aux) == bits(first.aux)


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
        assert [dataset.entry(i).attempt for i in range(2) if dataset[i].uid == newer.uid] == [2]


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
