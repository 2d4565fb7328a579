"""What of a sample is stored under a trim policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from eagled.shards import ShardDataset
from eagled.shards.compute import Work, to_sample
from eagled.shards.format import ShardManifest
from eagled.shards.trim import Trim
from eagled.shards.verify import Member, verify_shards
from eagled.shards.writer import ShardWriter
from eagled.tokens import pack_ids
from eagled.types import ExtractJob, Fence
from tests.unit.shards.helpers import HIDDEN, LAYERS, manifest, random_bits


@pytest.mark.parametrize(
    ("max_tokens", "keep", "span"),
    [
        (0, 0, (0, 100)),  # everything
        (0, 10, (50, 100)),  # ten tokens before the answer, which begins at 60
        (0, 80, (0, 100)),  # more than there are
        (80, 0, (20, 100)),  # the prompt would take more than half of 80
        (20, 0, (50, 70)),
        (100, 0, (0, 100)),
        (30, 10, (50, 80)),
        (30, 25, (45, 75)),
    ],
)
def test_span(max_tokens: int, keep: int, span: tuple[int, int]) -> None:
    """The window before the answer, the longest length, and both together."""
    assert Trim(max_tokens, keep).span(100, 60) == span


@pytest.mark.parametrize("first", range(1, 30))
@pytest.mark.parametrize("max_tokens", [2, 3, 7, 16, 40])
@pytest.mark.parametrize("keep", [0, 1, 5])
def test_something_supervised_is_always_left(first: int, max_tokens: int, keep: int) -> None:
    """Never longer than asked, never without the row that predicts the first answer token."""
    start, end = Trim(max_tokens, keep).span(32, first)

    assert 0 <= start < first < end <= 32
    assert end - start <= max_tokens


def work() -> tuple[Work, np.ndarray, np.ndarray]:
    """Return 12 + 8 tokens with states whose rows can be told apart."""
    ids = np.arange(100, 120)
    job = ExtractJob(Fence(1, 1, 1), bytes(16), "alpha", pack_ids(ids[:12]), pack_ids(ids[12:]))
    mask = np.concatenate([np.zeros(12, np.uint8), np.ones(8, np.uint8)])
    rng = np.random.default_rng(0)
    aux = random_bits(rng, (20, len(LAYERS), HIDDEN))
    return Work(job, ids, mask), aux, random_bits(rng, (20, HIDDEN))


def trimmed(max_tokens: int = 0, keep_prompt: int = 0) -> ShardManifest:
    """Return the toy's manifest with a trim policy."""
    return dataclasses.replace(manifest(), max_tokens=max_tokens, keep_prompt=keep_prompt)


def test_states_of_the_window_only(tmp_path: Path) -> None:
    """Rows, ids and positions are those of tokens 9 to 15; verification knows of the cut."""
    one, aux, last = work()
    plan = trimmed(max_tokens=7, keep_prompt=3)
    item = to_sample(one, aux, last, plan)
    writer = ShardWriter(tmp_path, plan)
    writer.append(item)
    shard = writer.finish()
    got = ShardDataset([shard.path])[0]

    assert (item.skip, item.cut, got["skip"]) == (9, 4, 9)
    assert got["input_ids"].tolist() == list(range(109, 116))
    assert got["loss_mask"].int().tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert np.array_equal(item.aux, aux[9:15].reshape(6, -1))
    assert got["last_positions"].tolist() == [2, 3, 4, 5]
    assert np.array_equal(item.last, last[11:15])
    stored = [Member(item.uid, 0, 12, 8, one.job.output.crc)]
    ids_of = {item.uid: (one.ids, 12)}.get
    report = verify_shards(tmp_path, members_of=lambda _: stored, ids_of=ids_of)
    assert report.findings == ()


def test_a_trimmed_prompt_keeps_the_checksum_of_its_answer(tmp_path: Path) -> None:
    """Only the prompt is cut: the answer's ids are still compared with the database."""
    one, aux, last = work()
    plan = trimmed(keep_prompt=2)
    writer = ShardWriter(tmp_path, plan)
    writer.append(to_sample(one, aux, last, plan))
    writer.finish()

    def found(crc: int) -> int:
        members = [Member(bytes(16).hex(), 0, 12, 8, crc)]
        return len(verify_shards(tmp_path, members_of=lambda _: members).findings)

    assert (0, 1) == (found(one.job.output.crc), found(one.job.output.crc ^ 1))
