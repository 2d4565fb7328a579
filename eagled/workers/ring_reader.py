"""Read the ring of shards in a trainer: lease, read, checkpoint, release, until no more come.

Guarantee: a shard is released only after `checkpoint` returned for it, and one that the newest
checkpoint has is never read again. So a trainer that is killed at any moment, and goes on from its
newest checkpoint, has learnt from each shard exactly once. Price: at least one checkpoint for what
the ring holds at once, since extraction waits for room. Blocking; standard library but for what
`post` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

Post = Callable[[str, Mapping[str, Any]], Any]  # path and body of a control call -> its answer
Checkpoint = Callable[[tuple[str, ...]], None]  # names that it must hold -> durable on return
LEASE_WAIT_S = 30.0


def ring_shards(
    post: Post,
    consumer: str,
    *,
    checkpoint: Checkpoint,
    ended: Callable[[], bool],
    done: Collection[str] = (),
    every: int = 1,
    wait_s: float = LEASE_WAIT_S,
) -> Iterator[Path]:
    """Yield the path of each shard in turn; leaves the ring at the end.

    A loop that is left early releases nothing but what its checkpoints had.

    Args:
        post: such as `lambda path, body: call.post(socket, path, body, timeout_s=60)`
            (`eagled.control.call`).
        consumer: name of this trainer.
        checkpoint: writes a durable checkpoint of all that was learnt, with these names, those read
            since the last one, in it. Called after `every` shards, when nothing more comes before
            these are released, and at the end.
        ended: asked when nothing came within `wait_s`; True ends.
        done: the names in the checkpoint that this process goes on from.
        every: most shards between two checkpoints.
        wait_s: seconds one lease waits, at most 60.

    Raises:
        UnreachableError: if the daemon is away.
        UsageError: if the run keeps its shards.
    """
    post("/v1/ring/register", {"consumer": consumer})
    read: list[str] = []
    while True:
        body = {"consumer": consumer, "max": 1, "wait_s": 0.0 if read else wait_s}
        shards = post("/v1/ring/lease", body)["shards"]
        for shard in shards:
            if shard["name"] in read:  # silent for so long that the lease ran out
                continue
            if shard["name"] in done:
                _release(post, consumer, [shard["name"]])
                continue
            yield Path(shard["path"])
            read.append(shard["name"])
        if read and (not shards or len(read) >= every):
            checkpoint(tuple(read))
            _release(post, consumer, read)
            read = []
        elif not shards and ended():
            break
    post("/v1/ring/leave", {"consumer": consumer})


def _release(post: Post, consumer: str, names: list[str]) -> None:
    post("/v1/ring/release", {"consumer": consumer, "shards": list(names)})
