"""What the parts of a running daemon share: its resources, its live settings, its alarms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from eagled.clock import Clock
from eagled.config import Config
from eagled.config_load import LoadedConfig
from eagled.control.desks import ExtractDesk, TextDesk
from eagled.control.doorbell import Doorbell
from eagled.control.roll import Roll
from eagled.daemon_endpoints import Endpoints
from eagled.daemon_ring import RingDesk
from eagled.daemon_servers import LaunchedServers
from eagled.daemon_spool import SpoolView
from eagled.daemon_thread import Readers
from eagled.disk import DiskGovernor, DiskView
from eagled.lanes import lane_for
from eagled.notify import Notifier
from eagled.paths import StatePaths
from eagled.printable import printable
from eagled.progress import Progress
from eagled.server.client import SglangClient
from eagled.server.protocol import Load
from eagled.status import Alarm
from eagled.store import Store
from eagled.supervise import Supervisor
from eagled.workers.generate import Generator

LaneOf = Callable[[int], str | None]
HOLD_SETTING = "hold"  # "", "paused" or "draining": an operator stopped everything
EXTRACT_SETTING = "extraction_paused"  # "1" when an operator stopped extraction


class AlarmBoard:
    """What a person should look at now; an alarm keeps the time at which it was first raised."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._alarms: dict[str, Alarm] = {}

    def raise_(self, kind: str, text: str, level: str = "warn") -> None:
        """Raise an alarm, or change the words of one that is up."""
        known = self._alarms.get(kind)
        since = known.since_ms if known else self._clock.now_ms()
        acked = known.acknowledged if known else False
        self._alarms[kind] = Alarm(kind, level, printable(text), since, acked)

    def acknowledge(self, kind: str) -> bool:
        """Mark an alarm as seen; return whether there is one."""
        known = self._alarms.get(kind)
        if known is not None:
            self._alarms[kind] = replace(known, acknowledged=True)
        return known is not None

    def clear(self, kind: str) -> None:
        """Take an alarm back."""
        self._alarms.pop(kind, None)

    def keep(self, kind: str, text: str, *, when: bool, level: str = "warn") -> None:
        """Raise or take back, by `when`."""
        if when:
            self.raise_(kind, text, level)
        else:
            self.clear(kind)

    def all(self) -> list[Alarm]:
        """Return the alarms, oldest first."""
        return sorted(self._alarms.values(), key=lambda alarm: alarm.since_ms)


@dataclass
class Runtime:
    """One running daemon.

    Attributes:
        hold: "paused" or "draining" while an operator has stopped everything.
        extraction_paused: an operator has stopped extraction.
        stopping: shutdown has begun.
        enqueueing: prepared folders that are being read.
        corpus_frozen: a corpus exists (what `extract.start = "after_merge"` waits for).
        disk: the governor's last view; None before the first.
        ring: the ring of shards; idle unless disk.mode is stream.
        spool: the spool's last numbers; None unless servers capture while they generate.
        loads: what each server's load endpoint said last, by address.
        servers: those that the daemon launched.
        endpoints: adds and removes servers while the daemon runs.
        roll: the workers that give signs of life.
        readers: threads that read the database beside its writer.
    """

    loaded: LoadedConfig
    paths: StatePaths
    clock: Clock
    notifier: Notifier
    store: Store
    generator: Generator
    clients: list[SglangClient]
    doorbell: Doorbell
    text: TextDesk
    extract: ExtractDesk
    governor: DiskGovernor
    progress: Progress
    board: AlarmBoard
    started_ms: int
    roll: Roll = field(default_factory=Roll)
    readers: Readers = field(default_factory=Readers)
    supervisor: Supervisor | None = None
    hold: str = ""
    extraction_paused: bool = False
    stopping: bool = False
    enqueueing: int = 0
    corpus_frozen: bool = False
    disk: DiskView | None = None
    ring: RingDesk | None = None
    spool: SpoolView | None = None
    loads: dict[str, Load] = field(default_factory=dict)
    servers: LaunchedServers | None = None
    endpoints: Endpoints | None = None

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.loaded.config

    def extraction_reason(self) -> str:
        """Return why no sample is handed to extraction now; empty if it goes on."""
        if self.stopping:
            return "the daemon is stopping"
        if self.hold:
            return f"the run is {self.hold}"
        if self.extraction_paused:
            return "paused by an operator"
        if self.config.extract.start == "after_merge" and not self.corpus_frozen:
            return "waits for `eagled merge`"
        if self.disk is not None and self.disk.paused:
            return self.disk.reason
        return self.ring.wait_reason(self.extract) if self.ring is not None else ""

    def apply_hold(self) -> None:
        """Let the generator claim, or not, as hold and disk say."""
        critical = self.disk is not None and self.disk.critical
        spool_full = self.spool is not None and self.spool.full
        if self.hold or critical or spool_full:
            self.generator.drain()
        else:
            self.generator.undrain()


def server_context(clients: Sequence[SglangClient]) -> int | None:
    """Return the smallest context of the servers that have said theirs; None if none has."""
    known = [c.limits.context for c in clients if c.limits.context is not None]
    return min(known, default=None)


def lane_chooser(config: Config, clients: Sequence[SglangClient]) -> LaneOf:
    """Return the function that gives the lane for a prompt's tokens, with what servers say."""

    def lane_of(n_prompt: int) -> str | None:
        return lane_for(config, n_prompt, server_context=server_context(clients))

    return lane_of
