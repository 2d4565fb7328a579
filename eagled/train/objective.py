"""The training objective: K steps of training-time test, decayed, averaged over supervised tokens.

    total = sum over k of  decay^k * (sum of the rows' losses at step k) / (rows with loss at k)

The denominators are those of the whole optimiser step, over all its batches and processes, so a
batch that is short, or empty, changes nothing but its own share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagled.train.losses import LossName, RowScores, head_loss
from eagled.train.model import DraftHead
from eagled.train.rows import Batch


@dataclass(frozen=True, slots=True)
class Objective:
    """How the K steps add up.

    Attributes:
        steps: K.
        decay: weight of step k is decay^k.
        loss: which loss compares a row with the target.
    """

    steps: int = 5
    decay: float = 0.8
    loss: LossName = "soft_ce"


@dataclass(frozen=True, slots=True)
class TeacherView:
    """The target's ends as training needs them, on the device.

    Attributes:
        embed: [V, Dt].
        head: rows of the target's output head in the draft vocabulary, ascending [Vd, Dt].
        ids: target id of each draft id, i64 [Vd].
    """

    embed: Tensor
    head: Tensor
    ids: Tensor


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over rows with loss, by step; f64 [K] each, to be added up and divided by `rows`.

    Attributes:
        rows: rows with loss.
        loss: their losses, without decay.
        agree: rows where the draft's first choice is the target's (within the draft vocabulary).
        hit: rows where it is the token that really follows.
        prefix: rows whose earlier steps were all hits.
        chain: those of them that are hits themselves.
    """

    rows: Tensor
    loss: Tensor
    agree: Tensor
    hit: Tensor
    prefix: Tensor
    chain: Tensor

    def stacked(self) -> Tensor:
        """Return all of them as [6, K]."""
        return torch.stack(
            [self.rows, self.loss, self.agree, self.hit, self.prefix, self.chain]
        ).double()

    @classmethod
    def of_stacked(cls, sums: Tensor) -> StepSums:
        """Return what `stacked` gave."""
        return cls(*sums.unbind(0))


def objective_loss(
    head: DraftHead, batch: Batch, teacher: TeacherView, objective: Objective, totals: Tensor
) -> tuple[Tensor, StepSums]:
    """Return a batch's share of the total, and its sums.

    Args:
        head: the draft.
        batch: on the head's device.
        teacher: as the batch.
        objective: how steps add up.
        totals: rows with loss at each step in the whole optimiser step, [K].
    """
    outputs = torch.stack(head(batch.rows, teacher.embed, objective.steps))  # [K, Q, D]
    query, step, last = batch.picks.unbind(1)
    weights = objective.decay ** torch.arange(objective.steps, dtype=torch.float32)
    weights = weights / totals.clamp_min(1).float()
    h, y = outputs[step, query], batch.last[last]  # [M, D], [M, Dt]
    total, scores = head_loss(
        h, head.lm_head.weight, y, teacher.head, weights.to(h.device)[step], objective.loss
    )
    return total, _sums(batch, scores, teacher.ids, objective.steps)


def hits_of(batch: Batch, draft: Tensor, ids: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return which query rows carry loss, and which are right about the following token.

    Both are bool [K, Q]; `draft` holds the first choice (a draft id) of each pick.
    """
    query, step, _ = batch.picks.unbind(1)
    wanted = torch.zeros(steps, len(batch.rows.active), dtype=torch.bool, device=draft.device)
    hit = wanted.clone()
    wanted[step, query] = True
    hit[step, query] = ids[draft] == batch.targets
    return wanted, hit


@torch.no_grad()
def _sums(batch: Batch, scores: RowScores, ids: Tensor, steps: int) -> StepSums:
    step = batch.picks[:, 1]
    wanted, hit = hits_of(batch, scores.draft, ids, steps)
    start = wanted & wanted[0]  # chains begin where serving begins: at rows with loss at step 0
    run = torch.cat([torch.ones_like(hit[:1]), hit[:-1]]).int().cumprod(0).bool()
    zeros = torch.zeros(steps, device=scores.loss.device)
    return StepSums(
        rows=wanted.sum(1),
        loss=zeros.index_add(0, step, scores.loss.float()),
        agree=zeros.index_add(0, step, (scores.draft == scores.teacher).float()),
        hit=hit.sum(1),
        prefix=(start & run).sum(1),
        chain=(start & run & hit).sum(1),
    )
