"""When the daemon answers systemd's watchdog, and what its alarms remember."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from eagled.clock import FakeClock
from eagled.daemon_actions import DaemonActions
from eagled.daemon_runtime import AlarmBoard, Runtime, lane_chooser
from eagled.daemon_watch import IDLE_ALARM_S, Watch
from eagled.server.client import SglangClient
from eagled.server.protocol import ServerLimits
from tests.servers.kit import make_config


@dataclass
class FakeNotifier:
    """Counts signs of life."""

    watchdog_s: float | None = 60.0
    pings: int = 0
    told: list[str] = field(default_factory=list)

    def watchdog(self) -> None:
        """Count a sign of life."""
        self.pings += 1

    def status(self, text: str) -> None:
        """Keep a status."""
        self.told.append(text)


class Rig:
    """A watch on a store that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.notifier = FakeNotifier()
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.store = SimpleNamespace(commits=0, queue_depth=0, failed=failed)
        self.board = AlarmBoard(self.clock)
        runtime = SimpleNamespace(
            clock=self.clock,
            store=self.store,
            notifier=self.notifier,
            board=self.board,
            hold="",
            config=make_config(),
        )
        self.watch = Watch(cast("Runtime", runtime), cast("DaemonActions", None))

    def after(self, seconds: float) -> int:
        """Let time pass, ping, and return how many signs of life went out for it."""
        before = self.notifier.pings
        self.clock.advance(seconds)
        self.watch._ping(self.clock.monotonic())
        return self.notifier.pings - before


async def test_the_watchdog_is_answered_while_the_writer_moves() -> None:
    """An idle writer and one that commits are alive; one that stands with work is not."""
    rig = Rig()
    idle = rig.after(100)
    rig.store.queue_depth = 5
    rig.store.commits = 1
    moving = rig.after(100)
    standing = [rig.after(20), rig.after(20)]
    rig.store.commits = 2
    again = rig.after(1)

    assert (1, 1, [1, 0], 1) == (idle, moving, standing, again)
    assert ["the database writer has not moved for 40 s"] == rig.notifier.told


async def test_a_failed_store_is_never_a_sign_of_life() -> None:
    """Once the store has failed systemd is to end the daemon if it does not end itself."""
    rig = Rig()
    rig.store.failed.set_result(RuntimeError("x"))

    assert 0 == rig.after(1)


def _document(*, queued: int, in_flight: int, paused: bool = False, server: str = "up") -> Any:
    lane = {"queued": queued, "in_flight": in_flight, "paused": paused}
    return {"lanes": {"short": lane}, "servers": [{"state": server}]}


async def test_standing_still_with_open_work_is_an_alarm() -> None:
    """Queued work, an open lane and a server that is up, but nothing sent: said after a minute."""
    rig = Rig()
    told = []
    for document in (
        _document(queued=5, in_flight=0),
        _document(queued=5, in_flight=1),
        _document(queued=5, in_flight=0, paused=True),
        _document(queued=5, in_flight=0, server="down"),
        _document(queued=0, in_flight=0),
    ):
        for _ in range(2):
            rig.clock.advance(IDLE_ALARM_S)
            rig.watch._judge_standstill(document)
        told.append([alarm.kind for alarm in rig.board.all()])

    assert [["standstill"], [], [], [], []] == told


def test_an_alarm_keeps_its_first_time_and_shows_hostile_text_harmlessly() -> None:
    """Raising it again changes the words, not the time; control characters become visible."""
    clock = FakeClock()
    board = AlarmBoard(clock)
    first = clock.now_ms()
    board.raise_("k", "one")
    clock.advance(5)
    board.raise_("k", "two\x1b[31m")
    board.keep("other", "x", when=False)

    assert [("two␛[31m", first)] == [(alarm.text, alarm.since_ms) for alarm in board.all()]
    board.clear("k")
    assert [] == board.all()


def test_lanes_are_chosen_with_what_the_servers_say() -> None:
    """The smallest context of the known servers bounds the last lane; unknown ones do not."""
    config = make_config(lanes={"short": {"context": 100}, "long": {"context": 0}})
    clients = [SimpleNamespace(limits=ServerLimits(context=n)) for n in (None, 1000, 500)]
    lane_of = lane_chooser(config, cast("list[SglangClient]", clients))

    assert ["short", "long", "long", None] == [lane_of(n) for n in (92, 93, 492, 493)]
