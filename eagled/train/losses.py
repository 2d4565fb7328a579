"""Loss and acceptance of draft rows against the target's distribution, a few rows at a time.

Guarantee: no [N, Vd] tensor outlives its chunk. `soft_ce` is the cross-entropy between the
target's distribution over the draft vocabulary (renormalised there) and the draft's; `kl` is the
same less the target's entropy, so both give the same gradient.
Price: gradients are made in the forward pass, so a forward without a backward costs the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from eagled.train.fused import fused

LossName: TypeAlias = Literal["soft_ce", "kl"]
_CHUNK_VALUES = 1 << 26  # float32 logits held at a time, 256 MB; some six such tensors live


@dataclass(frozen=True, slots=True)
class RowScores:
    """What is known of N rows besides the loss that is trained on.

    Attributes:
        loss: f32 [N], each row's own loss, unweighted.
        draft: i64 [N], the draft's first choice, a draft id.
        teacher: i64 [N], the target's first choice within the draft vocabulary, a draft id.
    """

    loss: Tensor
    draft: Tensor
    teacher: Tensor


def head_loss(
    h: Tensor, head: Tensor, y: Tensor, teacher_head: Tensor, weight: Tensor, name: LossName
) -> tuple[Tensor, RowScores]:
    """Return the weighted sum of the rows' losses, and each row's scores.

    Args:
        h: the draft's normed outputs [N, D]; gradients flow into it and into `head`.
        head: the draft's `lm_head` [Vd, D].
        y: the target's final states, after its norm, that belong to the rows [N, Dt].
        teacher_head: the target's `lm_head` rows of the draft vocabulary, ascending [Vd, Dt].
        weight: f32 [N].
        name: which loss.
    """
    total, loss, draft, teacher = _HeadLoss.apply(h, head, y, teacher_head, weight, name)  # type: ignore[no-untyped-call]  # torch's own signature
    return total, RowScores(loss, draft, teacher)


class _HeadLoss(torch.autograd.Function):
    """Logits, loss and gradient chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context object
        h: Tensor,
        head: Tensor,
        y: Tensor,
        teacher_head: Tensor,
        weight: Tensor,
        name: LossName,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w, t_head = head.to(h.dtype), teacher_head.to(h.dtype)
        grad_h = torch.empty_like(h)
        grad_head = torch.zeros_like(head)
        scores = []
        for rows in row_chunks(len(h), len(head)):
            wanted = weight[rows, None]
            loss, draft, teacher, slope = _chunk(h[rows], w, y[rows].to(h.dtype), t_head, name)
            slope = (slope * wanted).to(h.dtype)  # [C, Vd]
            grad_h[rows] = slope @ w
            grad_head += slope.t() @ h[rows]
            scores.append((loss, draft, teacher))
        loss, draft, teacher = (torch.cat(part) for part in zip(*scores, strict=True))
        ctx.save_for_backward(grad_h, grad_head)
        ctx.mark_non_differentiable(loss, draft, teacher)
        return (loss * weight).sum(), loss, draft, teacher

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's context object
        grad_h, grad_head = ctx.saved_tensors
        return grad_h * grad.to(grad_h.dtype), grad_head * grad, None, None, None, None


def row_chunks(n: int, vocab: int) -> list[slice]:
    """Return slices over n rows such that rows times vocabulary stays within a bound."""
    size = max(1, _CHUNK_VALUES // vocab)
    return [slice(i, min(i + size, n)) for i in range(0, max(n, 1), size)]


@fused
def _chunk(
    h: Tensor, head: Tensor, y: Tensor, teacher_head: Tensor, name: LossName
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss [C], both first choices [C], and d loss / d logits [C, Vd], in float32."""
    log_q = F.log_softmax((h @ head.t()).float(), -1)  # [C, Vd]
    log_p = F.log_softmax((y @ teacher_head.t()).float(), -1)
    p = log_p.exp()
    loss = -(p * log_q).sum(-1)
    if name == "kl":
        loss = loss + (p * log_p).sum(-1)
    return loss, log_q.argmax(-1), log_p.argmax(-1), log_q.exp() - p


def first_choice(y: Tensor, head: Tensor) -> Tensor:
    """Return the target's most likely ids i64 [N], over its vocabulary in chunks.

    Args:
        y: final states after the norm [N, Dt].
        head: the target's whole `lm_head` [V, Dt].
    """
    best = torch.full((len(y),), -torch.inf, device=y.device)
    ids = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    for start in range(0, len(head), max(1, _CHUNK_VALUES // max(1, len(y)))):
        part = head[start : start + max(1, _CHUNK_VALUES // max(1, len(y)))]
        value, index = (y.to(part.dtype) @ part.t()).float().max(-1)
        better = value > best  # ties stay with the smaller id
        best, ids = torch.where(better, value, best), torch.where(better, index + start, ids)
    return ids
