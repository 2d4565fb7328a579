"""Which conversations are held out of training: decided by their identity, the share and the seed.

Guarantee: the same on every run and machine, and all turns of a conversation are on one side. A
merge and the ring of shards both ask here, so a run that streams holds out what a merge would.
"""

from __future__ import annotations

import hashlib

TRAIN, HOLDOUT = "train", "holdout"
_FRACTION_BITS = 64


def split_of(conversation: str, holdout: float, seed: int) -> str:
    """Return the split of a conversation (uid in hex): `train` or `holdout`."""
    digest = hashlib.blake2b(bytes.fromhex(conversation), digest_size=8, key=b"%d" % seed).digest()
    share = int.from_bytes(digest, "big") / 2.0**_FRACTION_BITS
    return HOLDOUT if share < holdout else TRAIN
