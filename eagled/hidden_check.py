"""`eagled doctor --hidden-states`: are the states that a run would store the right ones?

Guarantee: real samples go through the configured back end and through transformers; every chunk is
compared with every boundary of the model and with the final state before and after its norm. A
verdict is good only if each chunk is nearest to what it is planned to be, within the tolerance.
What is wrong is named: off by one, wrong order, before the norm, another model. Where no machine
can hold the target in transformers, `--no-reference` checks what can be checked without it: the
target's own head must rank the token that followed first (greedy answers), layers must differ, and
with `--stock` one short prompt is compared with what stock SGLang hands out (`hidden_stock.py`).
Without that nobody has looked at the layers, and the verdict says so: the head sees `last` alone.
Price: a few forward passes; torch is imported here, in the command's own process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagled.shards.accept import StatesRequest, accept_states
from eagled.shards.backend import Captured, Ids
from eagled.shards.selfcheck import Floats, Reference, distance, from_bits, head_agreement

TOLERANCE = 0.05  # relative; two engines in bf16 stay near 0.01, another layer is above 0.1
AGREEMENT = (
    0.8  # of greedy tokens; near-ties fall either way in bf16, a wrong row gives next to none
)
LAST, PRE_NORM = "last", "before the final norm"
UNSEEN = (
    "not checked: the layers. The head sees the final state only, so wrong layers would pass; "
    "compare them with a stock server (--stock, docs/capture.md) before a long run"
)
NOTHING = (
    "nothing was checked: there is no reference, no output head in the target's safetensors files "
    "and no stock server (--stock, docs/capture.md)"
)
_OF_TARGET = "of the target"
_OF_STOCK = "that stock SGLang gives for this run's layers"


@dataclass(frozen=True, slots=True)
class ChunkFinding:
    """One chunk of one sample.

    Attributes:
        planned: what it should be: a boundary or `last`.
        error: relative difference from that, median over tokens.
        nearest: what it is nearest to.
        nearest_error: difference from that.
        words: what is wrong; empty when nothing is.
    """

    planned: str
    error: float
    nearest: str
    nearest_error: float
    words: str


@dataclass(frozen=True, slots=True)
class SampleFinding:
    """One sample; `agreement` is of the head's best tokens, None where it was not asked."""

    sample: str
    tokens: int
    chunks: tuple[ChunkFinding, ...]
    agreement: float | None = None

    @property
    def problems(self) -> list[str]:
        """What is wrong with it, in words."""
        found = [f"{c.planned}: {c.words}" for c in self.chunks if c.words]
        if self.agreement is not None and self.agreement < AGREEMENT:
            found.append(
                f"the target's head ranks the token that followed first for "
                f"{self.agreement:.0%} of an answer only: {LAST} is off by one or of another model"
            )
        return found


def boundary(k: int) -> str:
    """Return the name of a boundary."""
    return f"boundary {k}"


def judge(
    captured: Captured,
    reference: Reference,
    layers: Sequence[int],
    pre_norm: Floats,
    tolerance: float = TOLERANCE,
) -> tuple[ChunkFinding, ...]:
    """Return a finding for each chunk, layers in the order of the plan and `last` at the end.

    Args:
        captured: what the back end gave for one sample.
        reference: what transformers gives, [T, D] each.
        layers: planned boundaries.
        pre_norm: transformers' final state before the norm, [T, D].
        tolerance: largest difference of what is the same.
    """
    rows = len(captured.last)
    candidates = {boundary(k): b[:rows] for k, b in enumerate(reference.boundaries)}
    candidates[PRE_NORM] = pre_norm[:rows]
    candidates[LAST] = reference.last[:rows]
    names = [*(boundary(k) for k in layers), LAST]
    states = [*(captured.aux[:, i] for i in range(len(layers))), captured.last]
    return tuple(
        _finding(name, from_bits(bits), candidates, names, tolerance)
        for name, bits in zip(names, states, strict=True)
    )


def judge_stock(
    captured: Captured,
    stock: Floats,
    layers: Sequence[int],
    tolerance: float = TOLERANCE,
) -> tuple[ChunkFinding, ...]:
    """Return a finding for each chunk that a stock server gave.

    Args:
        captured: what the back end gave for the same prompt.
        stock: [T, C, D], the run's layers, or the final state alone.
        layers: boundaries of the stock server's chunks; empty is the final state.
        tolerance: largest difference of what is the same.
    """
    names = [boundary(k) for k in layers] or [LAST]
    candidates = {name: stock[:, i] for i, name in enumerate(names)}
    states = [captured.aux[:, i] for i in range(len(layers))] or [captured.last]
    return tuple(
        _finding(name, from_bits(bits), candidates, names, tolerance, _OF_STOCK)
        for name, bits in zip(names, states, strict=True)
    )


def _finding(
    planned: str,
    ours: Floats,
    candidates: dict[str, Floats],
    names: Sequence[str],
    tolerance: float,
    whose: str = _OF_TARGET,
) -> ChunkFinding:
    errors = {name: distance(ours, theirs) for name, theirs in candidates.items()}
    if planned not in errors:  # boundary N
        planned = PRE_NORM
    nearest = min(errors, key=lambda name: (errors[name], name != planned))
    error = errors[planned]
    words = ""
    if errors[nearest] > tolerance:
        words = f"nothing {whose} is near (least {errors[nearest]:.3f}): another model?"
        if whose is _OF_STOCK and planned != LAST:
            words = words.replace("another model?", "other layers, or another model?")
    elif nearest != planned:
        words = f"it is {nearest} ({_slip(planned, nearest, names)})"
    return ChunkFinding(planned, error, nearest, errors[nearest], words)


def _slip(planned: str, nearest: str, names: Sequence[str]) -> str:
    """Return what kind of mistake puts one in the other's place."""
    if {planned, nearest} == {LAST, PRE_NORM}:
        return "the final norm was left out" if nearest == PRE_NORM else "the norm was applied"
    if nearest in names:
        return "the layers are in another order than planned"
    if nearest == LAST or PRE_NORM in (planned, nearest):
        return "taken at the other end of the model"
    away = int(nearest.split()[1]) - int(planned.split()[1]) if planned != LAST else 0
    return (
        f"off by {away:+d}: ids of layers' outputs and boundaries were mixed up"
        if away
        else ("a layer's state instead of the final one")
    )


def head_check(captured: Captured, n_answer: int, head: Floats) -> float:
    """Return the share of a greedy answer's tokens that the head of `last` ranks first.

    Args:
        captured: states of prompt and answer.
        n_answer: tokens of the answer.
        head: the target's output head, [V, D].
    """
    ids = np.asarray(captured.token_ids)
    positions: npt.NDArray[np.int64] = np.arange(len(ids) - n_answer - 1, len(ids) - 1)
    return head_agreement(from_bits(captured.last)[positions], positions, ids, head)


def check_shape(sample: str, captured: Captured, layers: tuple[int, ...], width: int) -> None:
    """Raise unless rows, ids, layers, width and values are acceptable.

    Raises:
        StatesRejectedError: with everything that is wrong.
    """
    ids = np.asarray(captured.token_ids)
    accept_states(
        StatesRequest(sample, ids, layers, width, capture=captured.capture), captured.aux_offer
    )


def summary(findings: Iterable[SampleFinding]) -> tuple[bool, list[str]]:
    """Return the verdict and its lines: worst error per chunk, then what is wrong."""
    findings = list(findings)
    lines = []
    by_name: dict[str, list[ChunkFinding]] = {}
    for chunk in (c for f in findings for c in f.chunks):
        by_name.setdefault(chunk.planned, []).append(chunk)
    for name, chunks in by_name.items():
        worst = max(chunks, key=lambda c: c.error)
        lines.append(f"{name}: relative error at most {worst.error:.4f}, nearest {worst.nearest}")
    shares = [f.agreement for f in findings if f.agreement is not None]
    if shares:
        lines.append(f"head of {LAST}: {min(shares):.0%} of a greedy answer's tokens first")
    if not any(name != LAST for name in by_name):
        lines.append(UNSEEN if findings else NOTHING)
    problems = [f"sample {f.sample}: {p}" for f in findings for p in f.problems]
    good = bool(findings) and not problems
    return good, [*lines, *problems, "verdict: " + ("good" if good else "do not start this run")]


def compare(
    samples: Sequence[tuple[str, Ids]],
    captured: Sequence[Captured],
    reference: Any,  # noqa: ANN401 - ReferenceModel; it needs torch
) -> list[SampleFinding]:
    """Return what a reference model says of captured samples."""
    found = []
    for (name, ids), states in zip(samples, captured, strict=True):
        check_shape(name, states, reference.layers, states.aux.shape[2])
        true, pre_norm = reference.states(ids)
        chunks = judge(states, true, reference.layers, pre_norm)
        found.append(SampleFinding(name, len(ids), chunks))
    return found
