"""What a stream of shards is to training: shards one after the other, and giving them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Leased:
    """A shard of the supply: its file, and the uids that count in it, by split."""

    name: str
    path: str
    bytes: int
    train: tuple[str, ...]
    holdout: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a supply can be expected to do.

    Attributes:
        over: no more is made; what is there may still have to be taken.
        full: no more is made before something is given back.
        held: no more is made for now, for any reason; room may help.
    """

    over: bool = False
    full: bool = False
    held: bool = False


class Supply(Protocol):
    """Where shards come from (`eagled.workers.ring_supply` is the daemon's ring)."""

    @property
    def cap_bytes(self) -> int:
        """Most bytes of shards that are not given back; 0 is not limited."""

    def take(self, wait_s: float) -> Leased | None:
        """Return the next shard, in the order of the stream; None if none came in time.

        Raises:
            UnreachableError: if nobody has answered for too long.
        """

    def outlook(self) -> Outlook:
        """Return what can be expected."""

    def release(self, names: Sequence[str]) -> None:
        """Give shards back."""
