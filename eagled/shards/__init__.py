"""Hidden-state shards: format, writing, acceptance, reading, verification.

Importing this package loads neither torch nor transformers: the daemon scans shards at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagled.shards.reader import Sample, ShardDataset

__all__ = ["Sample", "ShardDataset"]


def __getattr__(name: str) -> object:
    """Load the torch reader only for who asks for it."""
    if name in __all__:
        from eagled.shards import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
