"""A trainer of the ring that ends by SIGKILL where it is told: SOCKET FOLDER MOMENT NUMBER.

What it learns are the uids of the samples that it has seen; its checkpoint is one JSON file. It
dies after the NUMBER-th `read` of a shard, before or after its `checkpoint`, or never.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

from eagled.artifacts import read_json, write_json
from eagled.control import call
from eagled.shards.format import read_shard_header
from eagled.workers.ring_reader import ring_shards

CHECKPOINT = "checkpoint.json"


def main(socket: Path, folder: Path, moment: str, number: int) -> None:
    """Go on from the newest checkpoint."""
    path = folder / CHECKPOINT
    state = read_json(path) if path.exists() else {"learnt": [], "names": []}
    learnt = list(state["learnt"])
    count = {name: itertools.count(1) for name in ("read", "before", "after")}

    def at(now: str) -> None:
        if next(count[now]) == number and now == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def checkpoint(names: tuple[str, ...]) -> None:
        at("before")
        write_json(path, {"learnt": learnt, "names": list(names)})
        at("after")

    shards = ring_shards(
        lambda where, body: call.post(socket, where, body, timeout_s=90.0),
        "trainer", checkpoint=checkpoint, ended=lambda: True, done=state["names"], every=2,
        wait_s=0.0,
    )  # fmt: skip
    for shard in shards:
        learnt += [entry.uid for entry in read_shard_header(shard).samples]
        at("read")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
