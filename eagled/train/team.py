"""The processes of one training run: one, or those that torchrun starts.

Guarantee: every process does the same collective calls in the same order, also when it has no data
in a step (it adds zeros). Gradients are summed, not averaged: each process's loss is its share of
the whole step's. Price: one sum over all gradients a step; a draft is one layer, so no overlap with
the backward pass is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor

from eagled.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Team:
    """This process among `world` ones, and its device."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> Team:
        """Join the run that torchrun's environment names, or be alone.

        Args:
            device: auto, cpu, cuda or cuda:N; with several processes each takes its own GPU.

        Raises:
            ConfigError: if a GPU is asked for and there is none.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        chosen = _pick(device, local if world > 1 else None)
        if world > 1:
            backend = "nccl" if chosen.type == "cuda" else "gloo"
            dist.init_process_group(backend)
        if chosen.type == "cuda":
            chosen = torch.device("cuda", chosen.index or 0)  # `cuda` alone is the first
            torch.cuda.set_device(chosen)
        return cls(int(os.environ.get("RANK", "0")), world, chosen)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def add_up(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes; `tensor` may hold it afterwards."""
        if self.world == 1:
            return tensor
        tensor = tensor.to(self.device)
        dist.all_reduce(tensor)
        return tensor

    def add_up_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the gradients of all processes; a missing one counts as zero everywhere."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self.world > 1:
                dist.all_reduce(parameter.grad)

    def share(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the leading process's value (JSON-ready) in every process."""
        if self.world == 1:
            return value
        raw = orjson.dumps(value) if self.leads else b""
        size = torch.tensor(len(raw), device=self.device)
        dist.broadcast(size, 0)
        text = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.leads:
            text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self.device)
        dist.broadcast(text, 0)
        result: dict[str, Any] = orjson.loads(bytes(text.cpu().numpy()))
        return result

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.world > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - the value that is shared
        """Return whether any process says so."""
        return bool(self.add_up(torch.tensor(int(flag))) > 0)

    def leave(self) -> None:
        """End the group."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def _pick(device: str, local: int | None) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"train.device = {device!r}, but torch sees no GPU; set it to cpu or auto"
        )
    if local is not None and device == "cuda":
        return torch.device("cuda", local)
    return torch.device(device)
