"""The ring of shards as the feed of a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.config import Config
from eagled.errors import ArtifactError
from eagled.lanes import lane_for
from eagled.shards.target import TargetFacts
from eagled.train.checkpoint import checkpoints, load_checkpoint
from eagled.train.stream_feed import StreamFeed, StreamSpec
from eagled.train.team import Team
from eagled.workers.ring_supply import RingSupply


@dataclass(frozen=True, slots=True)
class Stream:
    """Where the ring is: the daemon's socket; `waiting` is called while no shard comes."""

    socket: Path
    waiting: Callable[[], None] = lambda: None


@contextmanager
def open_stream(
    config: Config, team: Team, folder: Path, target: TargetFacts, stream: Stream
) -> Iterator[tuple[StreamFeed, dict[str, Any]]]:
    """Give the feed of a run, and what its shards are; waits for the first shard of a new run.

    The consumer is `train-NAME`. It stays registered when the run is stopped before its end, so
    that nothing goes which it has not learnt.
    """
    found = checkpoints(folder / "checkpoints")
    last = load_checkpoint(found[-1]) if found else None
    if last is not None and not last.facts.get("stream"):
        raise ArtifactError(
            f"{found[-1]} was trained on a corpus: go on without --stream, or give another --name"
        )
    identity: dict[str, Any] = {"target_hash": target.target_hash}
    if last is not None:
        identity |= {k: last.facts[k] for k in ("tokenizer_hash", "layers")}
    spec = StreamSpec(
        folder, config.train, config.run.seed, identity, last.feed if last else {},
        lambda n: lane_for(config, n, server_context=None) or "none", stream.waiting,
    )  # fmt: skip
    with ExitStack() as stack:
        supply = None
        feed = StreamFeed(spec, team)
        if team.leads:
            supply = stack.enter_context(RingSupply(stream.socket, f"train-{folder.name}"))
        feed.begin(supply)
        yield feed, {**feed.identity, "stream": True}
        if supply is not None and feed.finished:
            supply.leave()
