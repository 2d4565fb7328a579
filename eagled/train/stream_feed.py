"""A run's optimiser steps from shards that come while it trains, and go when they are learnt.

Guarantee: a shard is given back only when a durable checkpoint has all of it; the checkpoint has
the order of all shards so far and the place in it, so a run that goes on takes the steps that it
would have taken. Held-out samples are copied before anything of their shard is learnt, and an
estimate reads those of the shards begun, so it too depends on the order alone.
Price: what a step still needs stays in the ring: it must hold a step's rows and two shards, else
short steps are made, with a warning. The copies of held-out samples lie beside the checkpoints.

The leading process talks with the supply; each decision is shared, so that all take the same steps.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagled.artifacts import require_same
from eagled.config import TrainConfig
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.shards.format import ShardManifest
from eagled.shards.reader import Sample, ShardDataset
from eagled.train.data import load_pack, pick
from eagled.train.feed import Counts, Driver, HeldOut, Steps
from eagled.train.held import HeldSamples
from eagled.train.rows import Batch
from eagled.train.stream import Place, StreamPlan, StreamStep
from eagled.train.supply import Leased, Outlook, Supply
from eagled.train.team import Team

_log = logging.getLogger(__name__)
_AHEAD = 3  # optimiser steps that are loaded before they are needed
WAIT_S = 5.0  # one wait for a shard; a stop is noticed after it
_ASK_EVERY_S = 0.5  # while steps are loaded: a question costs the daemon an fsync


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What a stream is trained with.

    Attributes:
        folder: of the run; held-out samples are copied to `held/` in it.
        config: settings; `max_steps` is the length of the schedule.
        seed: of the order within a shard.
        identity: what each shard must say of itself, as far as it is known.
        record: `Feed.record` of the checkpoint to go on from, empty for a new run.
        lane_of: the lane of a prompt length.
        waiting: called while there is nothing to do but to wait.
    """

    folder: Path
    config: TrainConfig
    seed: int
    identity: Mapping[str, Any]
    record: Mapping[str, Any]
    lane_of: Callable[[int], str] | None = None
    waiting: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Open:
    """A shard in hand."""

    number: int
    name: str
    bytes: int
    data: ShardDataset


@dataclass(frozen=True, slots=True)
class _Known:
    """A shard of the stream's order, and what its training samples come to."""

    name: str
    counts: Counts


def identity_of(manifest: ShardManifest) -> dict[str, Any]:
    """Return what all shards of a run have in common."""
    return {
        "target_hash": manifest.target_hash,
        "tokenizer_hash": manifest.tokenizer_hash,
        "layers": list(manifest.layers),
    }


class StreamFeed:
    """Steps from a supply of shards."""

    def __init__(self, spec: StreamSpec, team: Team) -> None:
        """Begin where `spec.record` ends.

        Raises:
            ConfigError: if the length of the schedule is not set.
        """
        c = spec.config
        if c.max_samples:
            raise ConfigError(
                f"train.max_samples = {c.max_samples}: samples can be chosen from a corpus only, a "
                "stream is learnt as it comes; leave it at 0"
            )
        if not c.max_steps:
            raise ConfigError(
                "train.max_steps = 0: a stream does not tell its length, and the learning rate "
                "needs it; set it to about all training tokens / (train.batch_tokens * "
                "train.accumulation * processes)"
            )
        self._spec, self._team = spec, team
        self._supply: Supply | None = None
        self._done = 0
        self._place = Place(int(spec.record.get("learnt", 0)), int(spec.record.get("used", 0)))
        self._plan = StreamPlan(
            batch_tokens=c.batch_tokens, batches=c.accumulation * team.world, seed=spec.seed,
            place=self._place,
        )  # fmt: skip
        self._order = [_Known(name, Counts(*n)) for name, *n in spec.record.get("shards", ())]
        self.identity: dict[str, Any] = dict(spec.identity)
        self.over = False
        self._samples = _Samples()
        self._open: deque[_Open] = deque()
        self._cap = 0
        self._asked = 0.0  # monotonic
        self._learnt = {shard.name for shard in self._order[: self._place.learnt]}
        self._held: HeldSamples | None = None
        if team.leads:
            self._held = HeldSamples(spec.folder / "held", c.eval_samples, self._place.begun)

    @property
    def total(self) -> int:
        """Optimiser steps of the schedule."""
        return self._spec.config.max_steps

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return self.over or self._done == self.total

    def begin(self, supply: Supply | None) -> None:
        """Wait for the first shard of a new run, which says what the states are.

        Args:
            supply: of the shards; given to the leading process only.

        Raises:
            ArtifactError: if the stream ends before it, or it is of another target.
            UnreachableError: if nobody answers.
        """
        self._supply = supply
        while not (self._plan.waiting or self._order):
            self._act(self._shared(wait=True))
            if self.over:
                raise ArtifactError("the stream ended before its first training sample")

    def first(self) -> Tensor:
        """Return the states of a sample of the first shard, [T-1, L*D]."""
        return self._samples.first()["aux"]

    def steps(self, driver: Driver) -> Steps:
        """Yield the steps, loaded ahead as far as shards are there."""
        ahead: deque[tuple[StreamStep, Future[list[Batch]]]] = deque()
        number = self._done = driver.step
        with ThreadPoolExecutor(1, "eagled-load") as pool:
            while True:
                while len(ahead) < _AHEAD and number + len(ahead) < self.total:
                    step = self._next(driver, wait=not ahead)
                    if step is None:
                        break
                    ahead.append((step, pool.submit(self._load, step)))
                if not ahead:
                    return
                step, future = ahead.popleft()
                batches = future.result()
                self._place = step.after  # the driver has done this step when it comes back
                self._done = number + 1
                yield number, batches
                number += 1

    def epoch_of(self, step: int) -> int:
        """Return 0: a stream is read once."""
        return 0 * step

    def ends_epoch(self, step: int) -> bool:
        """Return whether the schedule ends after so many steps."""
        return step == self.total

    def held_out(self) -> HeldOut | None:
        """Return the first held-out samples of the shards begun; only in the leading process."""
        if self._held is None:
            return None
        return self._held.read(self._place.begun, self._spec.config.max_tokens, self._spec.lane_of)

    def counts(self) -> Counts:
        """Return what the training samples of the shards begun come to."""
        return sum((shard.counts for shard in self._order[: self._place.begun]), Counts())

    def facts(self) -> Mapping[str, Any]:
        """Return the length of the longest sample so far."""
        return {"longest_tokens": self.counts().longest_rows + 1}

    def record(self) -> Mapping[str, Any]:
        """Return the order of the shards begun and the place in it."""
        begun = self._order[: self._place.begun]
        shards = [[shard.name, *dataclasses.astuple(shard.counts)] for shard in begun]
        return {"shards": shards, "learnt": self._place.learnt, "used": self._place.used}

    def wants_checkpoint(self) -> bool:
        """Return whether half of the ring could go."""
        learnt = sum(shard.bytes for shard in self._open if shard.number < self._place.learnt)
        return 0 < self._cap <= 2 * learnt

    def saved(self) -> None:
        """Give back what the checkpoint has all of."""
        names = []
        while self._open and self._open[0].number < self._place.learnt:
            shard = self._open.popleft()
            self._samples.forget(shard.data)
            names.append(shard.name)
        self._learnt.update(names)
        if names and self._supply is not None:
            self._supply.release(names)

    def _next(self, driver: Driver, *, wait: bool) -> StreamStep | None:
        """Return the next step; None without `wait` if no shard is there, or at the end."""
        while (step := self._plan.next()) is None and not self.over:
            decided = self._shared(wait=wait)
            do = decided["do"]
            if do == "nothing" or (do == "wait" and driver.stopping()):
                return None
            if do in ("save", "away"):
                driver.checkpoint()
            step = self._act(decided)
            if step is not None:
                return step
        return step

    def _shared(self, *, wait: bool) -> dict[str, Any]:
        """Return what the leading process decides to do next, in every process."""
        decided = {} if self._supply is None else self._decide(self._supply, wait=wait)
        return self._team.share(decided)

    def _decide(self, supply: Supply, *, wait: bool) -> dict[str, Any]:
        """Ask for a shard; with `wait` every step before is done, and so is nothing else.

        Returns:
            `do` is shard, end, save, rest (room is needed, and no shard is whole), away, wait, or
            nothing without `wait`.
        """
        now = time.monotonic()
        if not wait and now - self._asked < _ASK_EVERY_S:
            return {"do": "nothing"}
        self._asked, do = now, "nothing"
        try:
            found = self._fresh(supply, 0.0)
            if found is None and wait:
                do = self._idle(supply.outlook())
                # again: one may have come between the two questions
                found = self._fresh(supply, 0.0 if do in ("end", "save") else WAIT_S)
        except UnreachableError as exc:
            return {"do": "away", "why": str(exc)}
        if found is None:
            return {"do": do}
        self._asked = 0.0  # there may be more
        shard = dataclasses.asdict(found)
        return {"do": "shard", "shard": shard, "cap_bytes": supply.cap_bytes}

    def _idle(self, outlook: Outlook) -> str:
        """Return what to do while no shard comes."""
        if outlook.over:
            return "end"
        if outlook.held and self._open and self._open[0].number < self._place.learnt:
            return "save"
        if outlook.full and self._open:
            return "rest"
        self._spec.waiting()
        return "wait"

    def _fresh(self, supply: Supply, wait_s: float) -> Leased | None:
        """Return a shard that is neither learnt nor in hand."""
        while (found := supply.take(wait_s)) is not None:
            if found.name in self._learnt:  # killed between checkpoint and release
                supply.release([found.name])
            elif all(shard.name != found.name for shard in self._open):  # a lease that ran out
                return found
        return None

    def _act(self, decided: Mapping[str, Any]) -> StreamStep | None:
        """Do what was decided; return the step that it made."""
        do = decided["do"]
        if do == "away":
            raise UnreachableError(decided["why"])
        if do == "shard":
            self._cap = decided["cap_bytes"]
            self._take(Leased(**decided["shard"]))
        if do not in ("end", "rest"):
            return None
        self.over = do == "end"
        if do == "rest":
            _log.warning("the ring is too small for an optimiser step; it is taken short")
        step = self._plan.rest()
        if step is None:
            self._place = self._plan.place
        return step

    def _take(self, leased: Leased) -> None:
        """Put a shard behind the others."""
        path, number = Path(leased.path), self._plan.shards
        if number < len(self._order) and leased.name != self._order[number].name:
            raise ArtifactError(
                f"{self._order[number].name}: the checkpoint is in the midst of this shard, and it "
                "is no longer in the ring: this trainer was away for longer than disk.lease_s, and "
                "another consumer released it. `eagled draft export` gives what was learnt so far; "
                "another --name begins anew"
            )
        if not path.exists():
            raise ArtifactError(
                f"{path} went before it was read: the lease was lost (disk.lease_s), or somebody "
                "removed it"
            )
        data = ShardDataset([path])
        self._check(data.manifest, path)
        found = pick(data, _indices(data, leased.train, path), self._spec.config.max_tokens)
        if self._held is not None:
            self._held.keep(number, data, _indices(data, leased.holdout, path))
        numbers = self._samples.add(data, found.index)
        self._plan.add(dict(zip(numbers, found.rows, strict=True)))
        self._order[number:] = [_Known(leased.name, Counts.of(found))]
        self._open.append(_Open(number, leased.name, leased.bytes, data))

    def _check(self, manifest: ShardManifest, path: Path) -> None:
        """Refuse a shard of another target, or without final states."""
        if manifest.last == "none":
            raise ConfigError(f"{path} has no final states: set extract.last to supervised")
        for key, theirs in identity_of(manifest).items():
            require_same(key, self.identity.setdefault(key, theirs), theirs, where=str(path))

    def _load(self, step: StreamStep) -> list[Batch]:
        """Return this process's batches of a step."""
        c = self._spec.config
        mine = step.packs[self._team.rank :: self._team.world]
        loaded = [
            load_pack(self._samples, which, steps=c.ttt_steps, max_tokens=c.max_tokens)
            for which in mine
        ]
        batches = [b for b in loaded if b is not None]
        return [b.pinned() for b in batches] if self._team.device.type == "cuda" else batches


def _indices(data: ShardDataset, uids: Sequence[str], path: Path) -> list[int]:
    """Return where samples are in a shard, in file order."""
    wanted = set(uids)
    found = [i for i, uid in enumerate(data.uids) if uid in wanted]
    if len(found) != len(wanted):
        raise ArtifactError(f"{path} lacks {len(wanted) - len(found)} samples that it was made of")
    return found


class _Samples:
    """The training samples of the shards in hand, by a running number."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[ShardDataset, int]] = {}
        self._next = 0

    def add(self, data: ShardDataset, indices: Sequence[int]) -> range:
        """Give samples of a shard numbers, in their order."""
        numbers = range(self._next, self._next + len(indices))
        self._places.update({n: (data, i) for n, i in zip(numbers, indices, strict=True)})
        self._next = numbers.stop
        return numbers

    def forget(self, data: ShardDataset) -> None:
        """Drop the samples of a shard; its file is unmapped."""
        self._places = {n: at for n, at in self._places.items() if at[0] is not data}

    def first(self) -> Sample:
        """Return the sample with the lowest number."""
        return self[min(self._places)]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Sample:
        data, index = self._places[number]
        return data[index]

    def mask(self, number: int) -> torch.Tensor:
        """Return the loss mask of one sample."""
        data, index = self._places[number]
        return data.mask(index)
