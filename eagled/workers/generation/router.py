"""Which server takes a sample.

Guarantee: the one whose memory is least taken, among those whose budget has room (`Endpoint.free`)
if there are any; a conversation's later turns go to the server that holds its earlier ones in
cache, as long as that one has room. Servers may come and go.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagled.workers.generation.endpoint import Endpoint

_REMEMBERED = 100_000  # conversations; about 10 MB, the oldest are forgotten first


class Router:
    """Chooses among endpoints."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = list(endpoints)
        self._home: dict[int, Endpoint] = {}

    @property
    def capacity(self) -> int:
        """Return the most requests at once that all servers together take."""
        return sum(endpoint.capacity for endpoint in self.endpoints)

    def room(self, now: float) -> int:
        """Return how many more requests all servers together take now."""
        return sum(endpoint.room(now) for endpoint in self.endpoints)

    def pick(self, conversation_id: int, now: float) -> Endpoint | None:
        """Return the server for a sample; None if none has room."""
        if len(self.endpoints) == 1:
            only = self.endpoints[0]
            return only if only.room(now) else None
        home = self._home.get(conversation_id)
        if home is not None and home.room(now) and home.free > 0:
            return home
        free = [endpoint for endpoint in self.endpoints if endpoint.room(now)]
        if not free:
            return None
        chosen = min(free, key=lambda endpoint: (endpoint.free <= 0, endpoint.fullness))
        self._remember(conversation_id, chosen)
        return chosen

    def add(self, endpoint: Endpoint) -> None:
        """Use one more server from now on."""
        self.endpoints.append(endpoint)

    def remove(self, endpoint: Endpoint) -> None:
        """Forget a server; what runs there is its owner's business."""
        self.endpoints.remove(endpoint)
        self._home = {c: e for c, e in self._home.items() if e is not endpoint}

    def _remember(self, conversation_id: int, endpoint: Endpoint) -> None:
        self._home.pop(conversation_id, None)
        self._home[conversation_id] = endpoint
        if len(self._home) > _REMEMBERED:
            del self._home[next(iter(self._home))]
