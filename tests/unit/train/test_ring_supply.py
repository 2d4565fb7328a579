"""The ring as training takes from it: lease kept, a daemon's restart survived, the end told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from eagled.errors import UnreachableError, UsageError
from eagled.shards.ring import Ring
from eagled.workers.ring_supply import AWAY_S, RingSupply, stream_over

DEADLINE_S = 30.0  # a limit of failure only


class Daemon:
    """The calls of a daemon with two shards."""

    def __init__(self) -> None:
        self.ring = Ring(1000)
        self.ring.put(["a", "b"])
        self.away = False
        self.now_s = 0.0
        self.lease_s = 1000.0
        self.extraction, self.full = "running", False
        self.counts: dict[str, int] = {"queued": 3}
        self.renewed = threading.Event()

    def get(self, _socket: Path, path: str) -> Any:
        """Answer a question."""
        self._reach()
        if path == "/v1/status":
            return {"datasets": {"d": self.counts}, "extraction": {"state": self.extraction}}
        return {"cap_bytes": 500, "lease_s": self.lease_s, "full": self.full}

    def post(self, _socket: Path, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Any:
        """Do what is asked."""
        self._reach()
        assert timeout_s > body.get("wait_s", 0.0)
        name, what = body["consumer"], path.rpartition("/")[2]
        if what == "register":
            self.ring.register(name, 0)
        elif what == "lease":
            if not body["max"]:
                self.renewed.set()
            given = self.ring.lease(name, body["max"], 0)
            return {"shards": [_told(shard) for shard in given]}
        elif what == "release":
            self.ring.release(name, body["shards"], 0)
            gone = self.ring.free()
            self.ring.put([s for s in self.ring.shards if s not in gone])
        else:
            self.ring.leave(name)
        return {}

    def _reach(self) -> None:
        if self.away:
            raise UnreachableError("nobody answers")


def _told(name: str) -> dict[str, Any]:
    return {"name": name, "path": f"/s/{name}", "bytes": 9, "train": ["u"], "holdout": []}


@pytest.fixture(name="beside")
def _beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[Daemon], RingSupply]:
    """Return what makes a supply of a daemon."""

    def make(daemon: Daemon) -> RingSupply:
        monkeypatch.setattr("eagled.workers.ring_supply.call.get", daemon.get)
        monkeypatch.setattr("eagled.workers.ring_supply.call.post", daemon.post)
        return RingSupply(Path("s"), "train-x", lambda: daemon.now_s)

    return make


Beside = Callable[[Daemon], RingSupply]


def test_shards_are_leased_and_released_one_by_one(beside: Beside) -> None:
    """Oldest first; what is released goes, what is not stays; at the end nobody is waited for."""
    daemon = Daemon()
    with beside(daemon) as supply:
        taken = [supply.take(0.0), supply.take(0.0), supply.take(0.0)]
        assert ["a", "b", None] == [shard and shard.name for shard in taken]
        assert 500 == supply.cap_bytes
        supply.release(["a"])
        assert ("b",) == daemon.ring.shards
        supply.leave()

    assert [] == daemon.ring.consumers()


def test_the_lease_is_renewed_while_the_trainer_is_busy(beside: Beside) -> None:
    """Nothing is asked for, and still the daemon hears of it, again and again."""
    daemon = Daemon()
    daemon.lease_s = 0.04
    with beside(daemon):
        for _ in range(3):
            assert daemon.renewed.wait(DEADLINE_S)
            daemon.renewed.clear()


def test_a_consumer_that_left_stays_away(beside: Beside) -> None:
    """No renewal comes after the end and registers it again; a daemon that is gone is no error."""
    daemon = Daemon()
    daemon.lease_s = 0.04
    with beside(daemon) as supply:
        assert daemon.renewed.wait(DEADLINE_S)
        supply.leave()
        assert not supply._renewer.is_alive()
        daemon.away = True
        supply.leave()

    assert [] == daemon.ring.consumers()


def test_a_daemon_that_restarts_is_waited_for(beside: Beside) -> None:
    """Away: nothing comes, nothing is known; what was to be released is when it is back."""
    daemon = Daemon()
    with beside(daemon) as supply:
        assert supply.take(0.0) is not None
        daemon.away = True
        supply.release(["a"])
        daemon.counts, daemon.now_s = {}, AWAY_S - 1
        assert supply.take(0.0) is None
        assert not supply.outlook().over
        daemon.away = False
        second = supply.take(0.0)
        assert second is not None
        assert "b" == second.name

    assert ("b",) == daemon.ring.shards


def test_a_daemon_that_stays_away_is_an_error(beside: Beside) -> None:
    """At once at the start, after `AWAY_S` later."""
    daemon = Daemon()
    with beside(daemon) as supply:
        daemon.away, daemon.now_s = True, AWAY_S + 1
        with pytest.raises(UnreachableError):
            supply.take(0.0)
    with pytest.raises(UnreachableError):
        beside(daemon).__enter__()


def test_a_run_that_keeps_its_shards_is_an_error(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the daemon says of it goes through."""
    daemon = Daemon()
    supply = beside(daemon)

    def refused(*_: object, **__: object) -> None:
        raise UsageError("disk.mode")

    monkeypatch.setattr("eagled.workers.ring_supply.call.post", refused)
    with pytest.raises(UsageError, match=r"disk\.mode"):
        supply.__enter__()


def test_the_outlook_tells_the_end_a_full_ring_and_a_pause(beside: Beside) -> None:
    """Over only when nothing is on its way; full is of the ring; held is any pause."""
    daemon = Daemon()
    with beside(daemon) as supply:
        first = supply.outlook()
        daemon.extraction = "paused"
        paused = supply.outlook()
        daemon.full = True
        full = supply.outlook()

    assert (False, False, False) == (first.over, first.full, first.held)
    assert (False, False, True) == (paused.over, paused.full, paused.held)
    assert (False, True, True) == (full.over, full.full, full.held)


@pytest.mark.parametrize(
    ("counts", "over"),
    [
        ({"extracted": 9, "failed": 1, "rejected": 2}, True),
        ({"extracted": 9, "extracting": 1}, False),
        ({"generated": 1}, False),
        ({"waiting": 1}, False),
        ({"queued": 1}, False),
        ({"retry_wait": 1}, False),
        ({"generating": 1}, False),
    ],
)
def test_a_stream_is_over_when_nothing_is_on_its_way(counts: dict[str, int], *, over: bool) -> None:
    """Whatever can still come to a shard keeps it open, also while the daemon is held."""
    assert over == stream_over({"datasets": {"d": counts}, "phase": "paused"})


def test_a_run_without_data_is_not_over() -> None:
    """Nothing was enqueued yet."""
    assert not stream_over({"datasets": {}})
