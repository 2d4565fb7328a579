"""Check by numbers that captured states are those of the planned layers, before a long run.

Guarantee: a back end that is off by one layer, or whose rows depend on the batch, is refused with
the layer that matches instead. Price: a few short forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagled.errors import ArtifactError
from eagled.shards.backend import Captured, Ids
from eagled.shards.format import Bits

Floats = npt.NDArray[np.float32]
TOLERANCE = 0.05  # relative; bf16 noise on a batch stays well below, another layer far above
_LENGTHS = (24, 9, 17)  # unequal, so that the batch is padded
_STRIDE = 7919  # a prime, so that probe ids are spread over any vocabulary


@dataclass(frozen=True, slots=True)
class Reference:
    """All boundaries 0..N-1 of one input, each [T, D], and the final state after the norm."""

    boundaries: tuple[Floats, ...]
    last: Floats


def probe_inputs(vocab_size: int) -> list[Ids]:
    """Return a few short id sequences that are the same for every run."""
    return [(np.arange(n, dtype=np.int64) * _STRIDE + n) % vocab_size for n in _LENGTHS]


def from_bits(bits: Bits) -> Floats:
    """Return bf16 bit patterns as float32, same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def distance(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    """Return the median over tokens of the relative error of [T, D] rows.

    The median, since a few tokens carry activations a thousand times larger than the rest.
    """
    error = np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1)
    size = np.linalg.norm(theirs.astype(np.float64), axis=-1)
    return float(np.median(error / np.maximum(size, np.finfo(np.float32).tiny)))


def check_layers(
    captured: Captured,
    reference: Reference,
    layers: Sequence[int],
    tolerance: float = TOLERANCE,
) -> None:
    """Raise unless every captured layer and `last` equal the reference within `tolerance`.

    Boundary N has no reference and is left out.

    Raises:
        ArtifactError: naming the planned layer and the one that matches instead.
    """
    for index, k in enumerate(layers):
        if k >= len(reference.boundaries):
            continue
        errors = [distance(from_bits(captured.aux[:, index]), b) for b in reference.boundaries]
        best = int(np.argmin(errors))
        if best == k and errors[k] <= tolerance:
            continue
        hint = f"boundary {best} matches instead" if errors[best] <= tolerance else "none matches"
        raise ArtifactError(
            f"layer check: index {index} is planned as boundary {k}, but its states differ by "
            f"{errors[k]:.3f} from it; {hint} (error {errors[best]:.3f}, tolerance {tolerance})"
        )
    error = distance(from_bits(captured.last), reference.last)
    if error > tolerance:
        raise ArtifactError(
            f"layer check: the final states differ by {error:.3f} from the reference after the "
            f"final norm (tolerance {tolerance}); are they taken before the norm?"
        )


def check_batching(
    together: Sequence[Captured], alone: Sequence[Captured], tolerance: float = TOLERANCE
) -> None:
    """Raise unless samples of a batch have the states that they have alone.

    Raises:
        ArtifactError: naming the sample of the batch.
    """
    for index, (ours, theirs) in enumerate(zip(together, alone, strict=True)):
        if ours.aux.shape != theirs.aux.shape:
            raise ArtifactError(
                f"batch check: sample {index} has {len(ours.aux)} rows in a batch, "
                f"{len(theirs.aux)} alone"
            )
        for layer in range(ours.aux.shape[1]):
            error = distance(from_bits(ours.aux[:, layer]), from_bits(theirs.aux[:, layer]))
            if error > tolerance:
                raise ArtifactError(
                    f"batch check: sample {index}, layer index {layer} differs by {error:.3f} "
                    f"between a batch and alone (tolerance {tolerance})"
                )


def head_agreement(
    last: Floats, positions: npt.NDArray[np.integer[Any]], ids: Ids, head: Floats
) -> float:
    """Return the share of `last` rows whose best token by `head` is the one that followed.

    Args:
        last: final states [P, D].
        positions: row numbers of `last` in the sample, [P].
        ids: the sample's ids, [T].
        head: weights of the target's output head, [V, D].
    """
    best = np.argmax(last @ head.T, axis=-1)
    return float(np.mean(best == np.asarray(ids)[positions + 1]))
