"""Drawing tokens: the distribution after each filter, and what decides the draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagled.engine.params import Sampling
from eagled.engine.sampling import draw, make_rng

_PROBS = [0.05, 0.4, 0.1, 0.25, 0.2]
_LOGITS = torch.tensor(_PROBS).log()


def _shares(sampling: Sampling, logits: torch.Tensor = _LOGITS) -> list[float]:
    """Return the exact share of each id, by sweeping the uniform number."""
    steps = 4000
    counts = np.bincount(
        [draw(logits, sampling, (i + 0.5) / steps) for i in range(steps)], minlength=len(logits)
    )
    return [float(c) / steps for c in counts]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), _PROBS),
        (Sampling(top_k=2), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(top_p=0.6), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(top_p=0.7), [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
        (Sampling(top_p=0.01), [0, 1, 0, 0, 0]),
        (Sampling(min_p=0.45), [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
        (Sampling(top_k=3, top_p=0.6), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(top_k=500), _PROBS),
    ],
)
def test_filters_keep_the_right_ids(sampling: Sampling, expected: list[float]) -> None:
    """top-k, top-p and min-p cut the softmax as SGLang does; the rest is renormalised."""
    assert pytest.approx(expected, abs=0.001) == _shares(sampling)


def test_temperature_sharpens_and_flattens() -> None:
    """Probabilities are raised to 1/temperature before the draw."""
    cold = np.array(_PROBS) ** 2
    hot = np.array(_PROBS) ** 0.5

    assert pytest.approx(list(cold / cold.sum()), abs=0.001) == _shares(Sampling(temperature=0.5))
    assert pytest.approx(list(hot / hot.sum()), abs=0.001) == _shares(Sampling(temperature=2.0))


def test_a_flat_distribution_wider_than_the_head_is_sorted_whole() -> None:
    """top-p over thousands of equal ids can draw beyond the first sorted part."""
    logits = torch.zeros(5000)

    drawn = {draw(logits, Sampling(top_p=0.9), (i + 0.5) / 5000) for i in range(5000)}

    assert 4490 <= len(drawn) <= 4510


def test_banned_ids_are_never_drawn() -> None:
    """An id at minus infinity stays out, even at the edge of the uniform range."""
    logits = _LOGITS.clone()
    logits[4] = float("-inf")

    assert 4 not in {draw(logits, Sampling(), u) for u in (0.0, 0.5, 1.0 - 1e-16)}


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    """Equal seeds give equal numbers, negative ones too; without a seed they differ."""
    assert make_rng(-3).random() == make_rng(-3).random()
    assert make_rng(3).random() != make_rng(4).random()
    assert make_rng(None).random() != make_rng(None).random()
