"""Hidden-state shards: format, writing, acceptance, reading, verification.

Importing this package loads neither torch nor transformers: the daemon scans shards at start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagled.shards.reader import Sample, ShardDataset
    from eagled.shards.sampler import ShardSampler

_HOME = {"Sample": "reader", "ShardDataset": "reader", "ShardSampler": "sampler"}
__all__ = ["Sample", "ShardDataset", "ShardSampler"]


def __getattr__(name: str) -> object:
    """Load the torch reader only for who asks for it."""
    if name in _HOME:
        module = importlib.import_module(f"eagled.shards.{_HOME[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
