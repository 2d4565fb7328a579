"""A draft that never trained, for tests that need a folder which an engine would load."""

from __future__ import annotations

from pathlib import Path

import torch

from eagled.train.export import DraftWeights, export_draft
from eagled.train.geometry import geometry_for, target_config
from eagled.train.start import new_head
from eagled.train.teacher import load_teacher
from eagled.train.vocab import DraftVocab


def random_draft(model: Path, folder: Path, layers: tuple[int, ...]) -> Path:
    """Write a draft of half the target's vocabulary that never trained."""
    config = target_config(model)
    vocab_size = int(config["vocab_size"])
    vocab = DraftVocab.of_ids(torch.arange(0, vocab_size, 2).numpy(), vocab_size)
    ids = torch.from_numpy(vocab.ids)
    geometry = geometry_for(model, draft_vocab_size=len(ids), layers=layers)
    head = new_head(geometry, load_teacher(model), ids, start="target", seed=0)
    weights = {k: v.detach() for k, v in head.named_parameters()}
    draft = DraftWeights(
        geometry, weights, torch.from_numpy(vocab.d2t), torch.from_numpy(vocab.t2d), {}
    )
    return export_draft(draft, folder, config, dtype="float32", version="0.5.23")
