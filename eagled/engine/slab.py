"""Key/value memory of the slot loop: one slab for each class of row lengths.

A slab holds rows of up to `width` tokens for every layer, packed at the front so that the active
rows are one view without a gather. A row that outgrows its slab moves to one twice as wide.

Guarantee: memory is taken when a row joins and never exceeds `width` tokens a row; a row's unused
tail is zero, because a masked NaN left by an earlier row would still poison the attention sum
(0 x NaN). Price: one copy of a row when it moves (at each doubling, and when a hole is closed).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MIN_WIDTH = 1024  # tokens; below this, separate groups cost more in weight reads than they save
_GROW_ROWS = 4  # rows added at once; the allocator is called less often


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token needs in each layer: (heads, key width, value width)."""

    layers: tuple[tuple[int, int, int], ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        values = sum(heads * (key + value) for heads, key, value in self.layers)
        return values * self.dtype.itemsize


def width_for(tokens: int, longest: int) -> int:
    """Return the slab width for a row of `tokens`: a power of two, at most `longest`."""
    width = MIN_WIDTH
    while width < tokens:
        width *= 2
    return min(width, longest)


class Slab:
    """Keys and values of rows 0..rows-1, each [heads, width, head width] a layer."""

    def __init__(self, shape: KvShape, width: int) -> None:
        self.shape = shape
        self.width = width
        self.rows = 0
        self.keys = [self._empty(0, heads, key) for heads, key, _ in shape.layers]
        self.values = [self._empty(0, heads, value) for heads, _, value in shape.layers]

    @property
    def capacity(self) -> int:
        """Rows that fit without taking more memory."""
        return self.keys[0].shape[0]

    def add(self) -> int:
        """Take a zeroed row at the end and return its index."""
        if self.rows == self.capacity:
            self._grow(self.rows + _GROW_ROWS if self.rows else 1)
        row = self.rows
        self.rows += 1
        self._zero(row, 0)
        return row

    def adopt(self, source: Slab, row: int, tokens: int) -> int:
        """Copy the first `tokens` of another slab's row into a new row; return its index."""
        new = self.add()
        for mine, theirs in zip(self._all(), source._all(), strict=True):
            mine[new, :, :tokens] = theirs[row, :, :tokens]
        return new

    def remove(self, row: int, last_tokens: int) -> None:
        """Drop a row; the last row, `last_tokens` long, moves into its place."""
        last = self.rows - 1
        if row != last:
            for store in self._all():
                store[row, :, :last_tokens] = store[last, :, :last_tokens]
            self._zero(row, last_tokens)
        self.rows = last
        if not last:
            self._grow(0)

    def _all(self) -> list[torch.Tensor]:
        return self.keys + self.values

    def _zero(self, row: int, start: int) -> None:
        for store in self._all():
            store[row, :, start:] = 0

    def _grow(self, capacity: int) -> None:
        stores = [self._resized(store, capacity) for store in self._all()]  # all or none
        self.keys, self.values = stores[: len(self.keys)], stores[len(self.keys) :]

    def _resized(self, store: torch.Tensor, capacity: int) -> torch.Tensor:
        new = self._empty(capacity, store.shape[1], store.shape[3])
        kept = min(self.rows, capacity)
        new[:kept] = store[:kept]
        return new

    def _empty(self, rows: int, heads: int, size: int) -> torch.Tensor:
        # uninitialised on purpose: the system backs pages only when a row is zeroed by `add`
        return torch.empty(
            (rows, heads, self.width, size), dtype=self.shape.dtype, device=self.shape.device
        )
