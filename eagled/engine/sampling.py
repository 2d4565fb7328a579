"""Choosing the next token of one row.

Guarantee: greedy is the argmax of the logits; a drawn token depends on the row's own logits,
parameters and seed only, never on its neighbours. Filters act as in SGLang: top-k, top-p and
min-p all look at the same softmax, and what stays is renormalised.
Price: a row with top-p sorts only the likeliest `_HEAD` ids, and all of them when that is too few.
"""

from __future__ import annotations

import secrets

import numpy as np
import torch

from eagled.engine.params import Sampling

_HEAD = 1024  # ids sorted first; on real text top-p 0.95 needs a few dozen


def make_rng(seed: int | None) -> np.random.Generator:
    """Return the row's source of uniform numbers; without a seed it is unpredictable."""
    return np.random.default_rng(secrets.randbits(63) if seed is None else seed % (1 << 63))


def draw(logits: torch.Tensor, sampling: Sampling, uniform: float) -> int:
    """Return one id drawn from a row's logits.

    Args:
        logits: [V] float32, finite except for banned ids (-inf).
        sampling: not greedy.
        uniform: a number in [0, 1) that decides the draw.
    """
    probs = torch.softmax(logits / sampling.temperature, dim=-1)  # [V]
    if sampling.top_k or sampling.top_p < 1.0:
        kept, ids = _head(probs, sampling)
    else:
        kept, ids = probs, None
    if sampling.min_p > 0.0:
        kept = torch.where(kept >= kept.max() * sampling.min_p, kept, 0.0)
    place = _invert(kept, uniform)
    return place if ids is None else int(ids[place])


def _head(probs: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids that pass top-k and top-p, likeliest first, with their probabilities."""
    count = min(sampling.top_k or _HEAD, probs.numel())
    kept, ids = torch.topk(probs, count)
    if not sampling.top_k and float(kept.sum()) < sampling.top_p:
        kept, ids = torch.sort(probs, descending=True)
    before = torch.cumsum(kept, 0) - kept
    return torch.where(before <= sampling.top_p, kept, 0.0), ids


def _invert(probs: torch.Tensor, uniform: float) -> int:
    """Return the index where the cumulated probability passes `uniform` of the total."""
    total = torch.cumsum(probs.double(), 0)
    target = uniform * float(total[-1])
    return min(int(torch.searchsorted(total, target, right=True)), int(probs.nonzero()[-1]))
