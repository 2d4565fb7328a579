"""A trainer's loop over the ring: what was read is released after the checkpoint that has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagled.shards.ring import Ring
from eagled.workers.ring_reader import ring_shards

NAMES = ("a", "b", "c", "d", "e", "f", "g")


class Killed(Exception):  # noqa: N818 - not an error: what a SIGKILL does to this process
    """The trainer is gone."""


class Disk:
    """What outlives a trainer: the daemon's ring with a small cap, and the newest checkpoint."""

    def __init__(self, cap: int) -> None:
        self.ring, self.coming, self.cap = Ring(1000), list(NAMES), cap
        self.learnt: tuple[str, ...] = ()
        self.names: tuple[str, ...] = ()
        self.gone: list[str] = []
        self.log: list[str] = []
        self.moments = 0
        self.kill_at = -1
        self.forgetful = False
        self.now_ms = 0

    def moment(self, what: str) -> None:
        """Note a moment; the trainer is killed at one of them."""
        self.log.append(what)
        self.moments += 1
        if self.moments == self.kill_at:
            raise Killed

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call as the daemon does; a kill comes before it was heard, or after."""
        call, name = path.rpartition("/")[2], str(body["consumer"])
        self.moment(f"{call} {','.join(body.get('shards', []))}".strip())
        reply: dict[str, Any] = {}
        if self.forgetful:  # every call comes after the end of the last lease
            self.ring.expire(self.now_ms)
            self.now_ms += 5000
        if call == "register":
            self.ring.register(name, self.now_ms)
        elif call == "lease":
            there = self.ring.shards
            fresh = [self.coming.pop(0) for _ in range(self.cap - len(there)) if self.coming]
            self.ring.put([*there, *fresh])
            names = self.ring.lease(name, body["max"], self.now_ms)
            reply = {"shards": [{"name": n, "path": f"/s/{n}"} for n in names]}
        elif call == "release":
            self.ring.release(name, body["shards"], self.now_ms)
            self.gone += self.ring.free()
            self.ring.put([n for n in self.ring.shards if n not in self.gone])
        else:
            self.ring.leave(name)
        self.moment("answered")
        return reply


def train(disk: Disk, every: int) -> None:
    """Go on from the newest checkpoint until nothing comes."""
    learnt = list(disk.learnt)

    def checkpoint(names: tuple[str, ...]) -> None:
        disk.moment("checkpoint begins")
        disk.learnt, disk.names = tuple(learnt), names  # one rename
        disk.moment(f"checkpoint {','.join(names)}")

    for path in ring_shards(
        disk.post, "t", checkpoint=checkpoint, ended=lambda: True, done=disk.names, every=every
    ):
        assert path.parent == Path("/s")
        disk.moment(f"read {path.name}")
        learnt.append(path.name)


def test_a_shard_is_released_after_its_checkpoint() -> None:
    """Register, lease, read, checkpoint, release; a full ring forces the checkpoint earlier."""
    disk = Disk(cap=2)
    disk.coming = ["a", "b", "c"]
    train(disk, every=3)

    steps = [line for line in disk.log if line not in ("answered", "checkpoint begins")]
    assert steps == [
        "register", "lease", "read a", "lease", "read b", "lease", "checkpoint a,b", "release a,b",
        "lease", "read c", "lease", "checkpoint c", "release c", "lease", "leave",
    ]  # fmt: skip
    assert disk.gone == ["a", "b", "c"]


@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.integers(1, 60), max_size=3))
def test_a_kill_at_any_moment_loses_and_doubles_nothing(
    cap: int, every: int, kills: list[int]
) -> None:
    """Whatever was going on when it was killed: each shard is learnt from exactly once."""
    disk = Disk(cap)
    for kill_at in kills:
        disk.moments, disk.kill_at = 0, kill_at
        try:
            train(disk, every)
        except Killed:
            continue
    disk.kill_at = -1
    train(disk, every)

    assert disk.learnt == NAMES
    assert sorted(disk.gone) == list(NAMES)


def test_every_moment_of_a_run_was_one_to_be_killed_at() -> None:
    """The same, with a kill at each moment of an unbroken run in turn."""
    whole = Disk(cap=2)
    train(whole, every=2)
    for moment in range(1, whole.moments + 1):
        disk = Disk(cap=2)
        disk.kill_at = moment
        with pytest.raises(Killed):
            train(disk, every=2)
        disk.moments, disk.kill_at = 0, -1
        train(disk, every=2)

        assert disk.learnt == NAMES, disk.log


def test_a_trainer_slower_than_its_lease_reads_nothing_twice() -> None:
    """What it was given again after its lease ran out is not read again, and goes in the end."""
    disk = Disk(cap=3)
    disk.forgetful = True
    train(disk, every=2)

    assert disk.learnt == NAMES
    assert sorted(disk.gone) == list(NAMES)
