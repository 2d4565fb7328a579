"""The ring of shards in stream mode: who has read what, and what may go.

Guarantee: a shard may go only when at least one consumer released it and every registered consumer
did. A consumer that was not heard of for the lease time is no longer waited for; what it held is
given to it again if it comes back. With no consumer at all nothing goes. Pure: no files, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagled.errors import UsageError


@dataclass(slots=True)
class _Consumer:
    seen_ms: int
    held: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A registered consumer: when it was heard of last (UTC ms), shards it holds and still gets."""

    name: str
    seen_ms: int
    held: tuple[str, ...]
    waiting: int


class Ring:
    """Shards in the order they were committed, and their consumers."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._shards: dict[str, set[str]] = {}  # name -> who released it
        self._consumers: dict[str, _Consumer] = {}
        self._lapsed: dict[str, set[str]] = {}  # what expired consumers held: they may yet say so

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the shards, oldest first."""
        return tuple(self._shards)

    def put(self, names: Iterable[str]) -> None:
        """Take the shards that there are, oldest first; others are forgotten."""
        self._shards = {name: self._shards.get(name, set()) for name in names}
        for held in (*(c.held for c in self._consumers.values()), *self._lapsed.values()):
            held.intersection_update(self._shards)

    def register(self, name: str, now_ms: int) -> None:
        """Begin: what an earlier process of this name held is handed out again."""
        self._consumers[name] = _Consumer(now_ms)
        self._lapsed.pop(name, None)

    def lease(self, name: str, n: int, now_ms: int) -> list[str]:
        """Hand out up to `n` shards that the consumer neither holds nor released, oldest first.

        Asking again, also for 0, renews the lease; an unknown name is registered.
        """
        consumer = self._consumers.setdefault(name, _Consumer(now_ms))
        consumer.seen_ms = now_ms
        fresh = [
            shard
            for shard, released in self._shards.items()
            if name not in released and shard not in consumer.held
        ][:n]
        consumer.held.update(fresh)
        return fresh

    def release(self, name: str, shards: Iterable[str], now_ms: int) -> int:
        """Note that a consumer is done with shards; return how many of them are still there.

        One that was away for too long may still release what it held.

        Raises:
            UsageError: if a shard that is there was never leased to it.
        """
        consumer = self._consumers.setdefault(name, _Consumer(now_ms))
        consumer.seen_ms = now_ms
        there = [shard for shard in shards if shard in self._shards]
        had = consumer.held | self._lapsed.get(name, set())
        strange = [s for s in there if s not in had and name not in self._shards[s]]
        if strange:
            raise UsageError(f"{name!r} does not hold {strange[0]!r}; it leases before it releases")
        for shard in there:
            self._shards[shard].add(name)
            consumer.held.discard(shard)
        return len(there)

    def leave(self, name: str) -> None:
        """Forget a consumer: it is no longer waited for."""
        self._consumers.pop(name, None)
        self._lapsed.pop(name, None)

    def expire(self, now_ms: int) -> list[str]:
        """Forget consumers that were not heard of for the lease time; return their names."""
        gone = [
            name
            for name, consumer in self._consumers.items()
            if now_ms - consumer.seen_ms > self._lease_ms
        ]
        for name in gone:
            self._lapsed.setdefault(name, set()).update(self._consumers.pop(name).held)
        return gone

    def free(self) -> list[str]:
        """Return the shards that may go, oldest first."""
        everyone = set(self._consumers)
        return [
            name for name, released in self._shards.items() if released and everyone <= released
        ]

    def consumers(self) -> list[ConsumerView]:
        """Return the registered consumers by name."""
        return [
            ConsumerView(
                name,
                consumer.seen_ms,
                tuple(s for s in self._shards if s in consumer.held),
                sum(name not in r and s not in consumer.held for s, r in self._shards.items()),
            )
            for name, consumer in sorted(self._consumers.items())
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return what a restart needs."""
        return {
            "consumers": {
                name: {"seen_ms": c.seen_ms, "held": sorted(c.held)}
                for name, c in self._consumers.items()
            },
            "released": {name: sorted(by) for name, by in self._shards.items() if by},
        }

    def load(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Take over what an earlier daemon left; leases run anew, since nobody could renew them."""
        self._shards = {name: set(by) for name, by in state.get("released", {}).items()}
        self._consumers = {
            name: _Consumer(now_ms, set(row["held"]))
            for name, row in state.get("consumers", {}).items()
        }
