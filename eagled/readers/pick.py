"""Which answers of a conversation are taken: all, the last one, or some chosen by the seed.

Guarantee: the choice depends on seed, identity and number of answers alone. A run of hundreds of
turns so gives as many samples as a short one; what stands before a chosen turn stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagled.tokens import make_uid

ALL, LAST = "all", "last"
Turns = str | int


def pick(targets: Sequence[int], turns: Turns, seed: int, identity: str) -> tuple[int, ...]:
    """Return the chosen targets in ascending order.

    Args:
        targets: message indexes of the answers.
        turns: "all", "last", or how many to choose by chance.
        seed: the run's seed.
        identity: what names the conversation; another one gets other turns.
    """
    if turns == ALL or not targets:
        return tuple(targets)
    if turns == LAST:
        return (max(targets),)
    chosen = sorted(targets, key=lambda target: make_uid("turns", str(seed), identity, str(target)))
    return tuple(sorted(chosen[: int(turns)]))
