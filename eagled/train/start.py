"""The weights that a new draft starts from.

The output head and the final norm are the target's own (the rows of the draft vocabulary), `fc`
hands the highest aux layer through, and the rest is small noise from the seed. So the draft speaks
the target's language from the first step and learns what differs; with little data this is worth
more than any other setting.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from eagled.train.geometry import Geometry
from eagled.train.model import DraftHead
from eagled.train.teacher import Teacher

Start: TypeAlias = Literal["target", "random"]
_SPREAD = 0.02  # standard deviation of fresh matrices, as Llama's


def new_head(
    geometry: Geometry, teacher: Teacher, ids: torch.Tensor, *, start: Start, seed: int
) -> DraftHead:
    """Return a head with fresh weights in float32; the same seed gives the same bits.

    Args:
        geometry: its shape.
        teacher: the target's ends, on the CPU.
        ids: target id of each draft id, i64 [Vd].
        start: whether head, norm and `fc` begin as the target's, or at random.
        seed: of the noise.
    """
    head = DraftHead(geometry)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() > 1:
                weight.copy_(_SPREAD * torch.randn(weight.shape, generator=generator))
        if start == "target":
            _from_target(head, teacher, ids)
    return head


def _from_target(head: DraftHead, teacher: Teacher, ids: torch.Tensor) -> None:
    g = head.geometry
    head.lm_head.weight.copy_(teacher.head[ids].float())
    head.norm.weight.copy_(teacher.norm.float())
    if g.hidden_size == g.target_hidden_size:
        high = head.fc.weight[:, -g.target_hidden_size :]
        high.add_(torch.eye(g.hidden_size))
