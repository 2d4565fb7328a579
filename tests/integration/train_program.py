"""A small training run, for tests that kill it or start several: FOLDER [KIND [BATCHES]]."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagled.config import TrainConfig
from eagled.train.data import MemorySource
from eagled.train.feed import CorpusFeed
from eagled.train.team import Team
from eagled.train.trainer import RunSpec, Trainer
from tests.unit.train.kit import geometry, learnable, sample, target_ends, vocabulary

SETTINGS = {
    "device": "cpu", "ttt_steps": 3, "epochs": 6, "batch_tokens": 48, "lr": 1e-2, "ema": 0.9,
    "checkpoint_every": 3,
}  # fmt: skip


def main(folder: str, kind: str = "even", batches: str = "1") -> None:
    """Train to the end, from wherever the folder's last checkpoint is."""
    torch.set_num_threads(1)
    samples = learnable(24)
    settings = {**SETTINGS, "accumulation": int(batches)}
    if kind == "one_batch":  # two processes: the second has nothing to do in any step
        samples, settings["batch_tokens"] = [*learnable(6), sample(40, 6, 7)], 4096
        settings["max_tokens"] = 30
    config = TrainConfig.model_validate(settings)
    team = Team.join("cpu")
    run = RunSpec(Path(folder), config, 3, geometry(), vocabulary(), {"corpus": "c1"})
    feed = CorpusFeed(MemorySource(samples), config, seed=run.seed, team=team)
    trainer = Trainer(run, team, target_ends(), feed)
    trainer.run()
    weights = {name: weight.detach() for name, weight in trainer.head.named_parameters()}
    save_file(weights, Path(folder) / f"rank-{team.rank}.safetensors")
    team.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
