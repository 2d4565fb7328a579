"""A small training run, for tests that kill it or start several: FOLDER [KIND [BATCHES]].

KIND is even, one_batch or stream.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagled.config import TrainConfig
from eagled.shards.reader import Sample
from eagled.train.data import MemorySource
from eagled.train.feed import CorpusFeed, Feed
from eagled.train.stream_feed import StreamFeed, StreamSpec
from eagled.train.team import Team
from eagled.train.trainer import RunSpec, Trainer
from tests.unit.train.kit import geometry, learnable, sample, target_ends, vocabulary
from tests.unit.train.stream_kit import ToyRing, write_shard

SETTINGS = {
    "device": "cpu", "ttt_steps": 3, "epochs": 6, "batch_tokens": 48, "lr": 1e-2, "ema": 0.9,
    "checkpoint_every": 3,
}  # fmt: skip


def main(folder: str, kind: str = "even", batches: str = "1") -> None:
    """Train to the end, from wherever the folder's last checkpoint is."""
    torch.set_num_threads(1)
    samples = learnable(24)
    settings = {**SETTINGS, "accumulation": int(batches)}
    if kind == "stream":
        settings["max_steps"] = 100
    if kind == "one_batch":  # two processes: the second has nothing to do in any step
        samples, settings["batch_tokens"] = [*learnable(6), sample(40, 6, 7)], 4096
        settings["max_tokens"] = 30
    config = TrainConfig.model_validate(settings)
    team = Team.join("cpu")
    run = RunSpec(Path(folder), config, 3, geometry(), vocabulary(), {"corpus": "c1"})
    feed: Feed = (
        streamed(run, team, samples)
        if kind == "stream"
        else CorpusFeed(MemorySource(samples), config, seed=run.seed, team=team)
    )
    trainer = Trainer(run, team, target_ends(), feed)
    trainer.run()
    weights = {name: weight.detach() for name, weight in trainer.head.named_parameters()}
    save_file(weights, Path(folder) / f"rank-{team.rank}.safetensors")
    team.leave()


def streamed(run: RunSpec, team: Team, samples: Sequence[Sample]) -> StreamFeed:
    """Return a feed from a ring of small shards, which the leading process reads and empties."""
    feed = StreamFeed(StreamSpec(run.folder, run.config, run.seed, {}, {}), team)
    shards = run.folder / "shards"
    parts = [samples[i : i + 6] for i in range(0, len(samples), 6)]
    feed.begin(ToyRing([write_shard(shards, p) for p in parts]) if team.leads else None)
    return feed


if __name__ == "__main__":
    main(*sys.argv[1:])
