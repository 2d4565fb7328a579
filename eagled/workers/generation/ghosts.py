"""Requests that may still run at a server although nobody waits for them any more.

A server whose client went away is meant to drop the request; some builds keep decoding it for
minutes, and a few such ghosts fill the server. Guarantee: a request of ours that ended without the
server's word is aborted by its rid, and again (at most `MOST_ABORTS` times) while the server says
that it has more requests than we have there. A rid is only ever one of ours and of fixed length, so
a server that matches prefixes aborts no other. Pure state; `monitor.py` does the asking.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagled.server.protocol import Load

GRACE_S = 2.0  # after an abort; a healthy server has let go of the request by then
MOST_ABORTS = 4
FORGET_S = 900.0  # no server keeps a request that long after so many aborts
_MOST_KEPT = 4096


@dataclass(slots=True)
class _Left:
    at: float
    aborts: int = 0
    asked_at: float = float("inf")


class Ghosts:
    """What was left behind at one endpoint; `now` is monotonic seconds.

    Attributes:
        extra: how many requests more than ours the server had at the last look.
    """

    def __init__(self) -> None:
        self.extra = 0
        self._left: dict[str, _Left] = {}

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, rid: str, now: float, *, aborted: bool) -> None:
        """Note that a request ended here without the server's word, perhaps aborted already."""
        self._left[rid] = _Left(now, 1, now) if aborted else _Left(now)
        if len(self._left) > _MOST_KEPT:
            del self._left[next(iter(self._left))]

    def clear(self) -> None:
        """The server is another process now: nothing of ours is left there."""
        self._left.clear()
        self.extra = 0

    def saw(self, load: Load | None, ours: int, now: float) -> bool:
        """Take in a load; return whether it shows ghosts for the first time in a row."""
        before = self.extra
        settled = [rid for rid, left in self._left.items() if now - left.asked_at >= GRACE_S]
        if load is None or not settled:
            self.extra = 0
            return False
        self.extra = max(0, load.running + load.waiting - ours)
        if not self.extra:
            for rid in settled:
                del self._left[rid]
        return bool(self.extra and not before)

    def due(self, now: float) -> list[str]:
        """Return the rids to abort now: each once at once, then while the server has too many."""
        rids = []
        for rid, left in list(self._left.items()):
            if now - left.at > FORGET_S or left.aborts >= MOST_ABORTS:
                del self._left[rid]
            elif not left.aborts or (self.extra and now - left.asked_at >= GRACE_S):
                left.aborts += 1
                left.asked_at = now
                rids.append(rid)
        return rids
