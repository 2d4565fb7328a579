"""The weights that a new draft starts from.

The output head and the final norm are the target's own (the rows of the draft vocabulary), `fc`
hands the highest aux layer through, and the rest is small noise from the seed. So the draft speaks
the target's language from the first step and learns what differs. The layer that is handed through
is brought to unit size: deep layers are some twenty times larger, and nothing that the draft's
layer adds would count beside them.
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
    geometry: Geometry,
    teacher: Teacher,
    ids: torch.Tensor,
    *,
    start: Start,
    seed: int,
    size: float = 1.0,
) -> DraftHead:
    """Return a head with fresh weights in float32; the same seed gives the same bits.

    Args:
        geometry: its shape.
        teacher: the target's ends, on the CPU.
        ids: target id of each draft id, i64 [Vd].
        start: whether head, norm and `fc` begin as the target's, or at random.
        seed: of the noise.
        size: root mean square of the highest aux layer, see `state_size`.
    """
    head = DraftHead(geometry)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() > 1:
                weight.copy_(_SPREAD * torch.randn(weight.shape, generator=generator))
        if start == "target":
            _from_target(head, teacher, ids, size)
    return head


def _from_target(head: DraftHead, teacher: Teacher, ids: torch.Tensor, size: float) -> None:
    g = head.geometry
    head.lm_head.weight.copy_(teacher.head[ids].float())
    head.norm.weight.copy_(teacher.norm.float())
    if g.hidden_size == g.target_hidden_size:
        high = head.fc.weight[:, -g.target_hidden_size :]
        high.add_(torch.eye(g.hidden_size) / size)


def state_size(aux: torch.Tensor, layers: int) -> float:
    """Return the root mean square of the highest layer's states, the median over tokens.

    The median, because a few tokens (the first one above all) have states a thousand times larger.
    """
    high = aux.float().chunk(layers, -1)[-1]
    return max(float(high.square().mean(-1).sqrt().median()), 1e-6)
