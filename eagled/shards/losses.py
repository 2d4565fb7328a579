"""What a lossy codec lost, by layer: sums while writing, numbers in the shard's header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# columns of the sums: values that are not 0; of these, stored as 0; relative errors; squared
# errors; squared values; the largest value
ERROR_SUMS = ("values", "zeroed", "relative", "squared_error", "squared", "peak")


class Losses:
    """The sums of one tensor."""

    def __init__(self) -> None:
        self._sums: npt.NDArray[np.float64] | None = None  # [L, len(ERROR_SUMS)]

    def add(self, sums: npt.NDArray[np.float64] | None) -> None:
        """Add the sums of more rows."""
        if sums is None:
            return
        if self._sums is None:
            self._sums = sums.copy()
            return
        peak = np.maximum(self._sums[:, -1], sums[:, -1])
        self._sums += sums
        self._sums[:, -1] = peak

    def table(self, layers: Sequence[int | str]) -> list[dict[str, Any]]:
        """Return a row a layer: values compared, share stored as 0, errors; empty if lossless."""
        if self._sums is None:
            return []
        return [_row(layer, sums) for layer, sums in zip(layers, self._sums, strict=True)]


def _row(layer: int | str, sums: npt.NDArray[np.float64]) -> dict[str, Any]:
    values, zeroed, relative, squared_error, squared, peak = (float(x) for x in sums)
    return {
        "layer": layer,
        "values": int(values),
        "zeroed": zeroed / values if values else 0.0,
        "mean_relative_error": relative / values if values else 0.0,
        "rms_error_share": (squared_error / squared) ** 0.5 if squared else 0.0,
        "peak": peak,
    }
