"""Checkpoints of a training run: everything that the next step depends on, whole or not at all.

Guarantee: a folder `step-NNNNNN` under its final name is complete and synced; a run that continues
from it computes the same bits as one that was never stopped. The draft's vocabulary mapping is part
of it: the rows of its head are in that order, whatever the corpus would give today.
Price: weights, two moments and, with a running mean, the mean: 12 or 16 bytes a parameter.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagled.artifacts import TMP_SUFFIX, fsync_dir, read_json, write_json
from eagled.errors import ArtifactError

CHECKPOINT_FORMAT = "eagled-checkpoint/1"
_NAME = re.compile(r"^step-(\d{6,})$")
_KEEP = 2
_TENSORS, _STATE = "state.safetensors", "state.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run after `step` optimiser steps.

    Attributes:
        step: optimiser steps done.
        tensors: `model.*`, `mean.*` (a running mean of the weights, maybe none), `exp_avg.*`,
            `exp_avg_sq.*`, `d2t`, `t2d`.
        facts: JSON-ready values that a run must agree with to continue.
        metrics_bytes: length of metrics.jsonl at that step.
        feed: JSON-ready place in the data, where the step alone does not tell it.
    """

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    metrics_bytes: int
    feed: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder` and remove older ones but one.

    Raises:
        DiskError: if the disk is full or failing.
    """
    final = folder / f"step-{checkpoint.step:06d}"
    tmp = final.with_name(final.name + TMP_SUFFIX)
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    save_file({k: v.contiguous() for k, v in checkpoint.tensors.items()}, tmp / _TENSORS)
    with (tmp / _TENSORS).open("rb") as file:
        os.fsync(file.fileno())
    write_json(
        tmp / _STATE,
        {
            "format": CHECKPOINT_FORMAT, "step": checkpoint.step,
            "facts": dict(checkpoint.facts), "metrics_bytes": checkpoint.metrics_bytes,
            "feed": dict(checkpoint.feed),
        },
    )  # fmt: skip
    shutil.rmtree(final, ignore_errors=True)
    tmp.rename(final)
    fsync_dir(folder)
    for old in checkpoints(folder)[:-_KEEP]:
        shutil.rmtree(old)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints below `folder`, oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _NAME.match(p.name))]
    return [path for _, path in sorted(found)]


def load_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint.

    Raises:
        ArtifactError: if it is torn or of another format.
    """
    state = read_json(path / _STATE)
    if state.get("format") != CHECKPOINT_FORMAT:
        raise ArtifactError(
            f"{path}: format is {state.get('format')!r}, this version reads {CHECKPOINT_FORMAT!r}"
        )
    try:
        tensors = load_file(path / _TENSORS)
    except (OSError, SafetensorError) as exc:
        raise ArtifactError(f"{path / _TENSORS} cannot be read: {exc}") from exc
    step, metrics_bytes = int(state["step"]), int(state["metrics_bytes"])
    return Checkpoint(step, tensors, state["facts"], metrics_bytes, state.get("feed", {}))


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> dict[str, Tensor]:
    """Return both moments of every parameter by name."""
    return {
        f"{key}.{names[parameter]}": state[key].detach().cpu()
        for parameter, state in optimizer.state.items()
        for key in ("exp_avg", "exp_avg_sq")
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    tensors: Mapping[str, Tensor],
    step: int,
) -> None:
    """Give every parameter its moments and its count of steps back."""
    for parameter, name in names.items():
        if f"exp_avg.{name}" not in tensors:
            continue
        device = parameter.device
        optimizer.state[parameter] = {
            "step": torch.tensor(
                float(step), device=device if optimizer.defaults.get("fused") else "cpu"
            ),
            "exp_avg": tensors[f"exp_avg.{name}"].to(device),
            "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(device),
        }
