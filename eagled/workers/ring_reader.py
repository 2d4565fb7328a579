"""Read the ring of shards in a trainer: lease, read, release, until the run has no more.

Guarantee: a shard is released only after the loop asked for the next one, so a trainer that dies
gets it again when it registers anew. Blocking; standard library but for what `post` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Post = Callable[[str, Mapping[str, Any]], Any]  # path and body of a control call -> its answer
LEASE_WAIT_S = 30.0


def ring_shards(
    post: Post, consumer: str, *, ended: Callable[[], bool], wait_s: float = LEASE_WAIT_S
) -> Iterator[Path]:
    """Yield the path of each shard in turn; leaves the ring at the end.

    Args:
        post: such as `lambda path, body: call.post(socket, path, body, timeout_s=60)`
            (`eagled.control.call`).
        consumer: name of this trainer.
        ended: asked when nothing came within `wait_s`; True ends.
        wait_s: seconds one lease waits, at most 60.

    Raises:
        UnreachableError: if the daemon is away.
        UsageError: if the run keeps its shards.
    """
    post("/v1/ring/register", {"consumer": consumer})
    while True:
        body = {"consumer": consumer, "max": 1, "wait_s": wait_s}
        shards = post("/v1/ring/lease", body)["shards"]
        if not shards and ended():
            break
        for shard in shards:
            yield Path(shard["path"])
            post("/v1/ring/release", {"consumer": consumer, "shards": [shard["name"]]})
    post("/v1/ring/leave", {"consumer": consumer})
