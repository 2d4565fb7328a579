"""The servers that the daemon starts itself (`[[servers]] launch`): watched, and ended with it.

Guarantee: a server is launched before anything is sent; what an earlier daemon launched and the
configuration no longer names is ended first. A stuck one is started anew when the generator asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from eagled.clock import Clock
from eagled.config import Config, ServerConfig
from eagled.credentials import read_key
from eagled.paths import StatePaths
from eagled.server.client import SglangClient
from eagled.server.command import SERVE_WORD, plan_serve, write_key
from eagled.server.launch import Launch, Launcher, end_strays, name_of
from eagled.types import EventKind

logger = logging.getLogger(__name__)
FOLDER = "servers"
_KINDS = {"launched": EventKind.SERVER_LAUNCHED, "ended": EventKind.SERVER_ENDED}


class EventStore(Protocol):
    """What is needed of the store here."""

    async def add_event(self, kind: EventKind, subject: str, detail: str, uid: int = -1) -> int:
        """Append an event and return its number."""


class LaunchedServers:
    """The launchers of a run, by address."""

    def __init__(self, launchers: Mapping[str, Launcher]) -> None:
        self._launchers = dict(launchers)

    def restart(self, url: str, reason: str) -> bool:
        """Start a server anew; False if the daemon did not launch it."""
        launcher = self._launchers.get(url)
        if launcher is None:
            return False
        launcher.restart(reason)
        return True

    def pids(self) -> dict[str, int]:
        """Return the process ids of the servers that run, by address."""
        return {url: x.pid for url, x in self._launchers.items() if x.pid is not None}

    async def stop(self) -> None:
        """End all that are not to be kept."""
        await asyncio.gather(*(launcher.stop() for launcher in self._launchers.values()))


async def launch_servers(
    config: Config,
    paths: StatePaths,
    store: EventStore,
    clock: Clock,
    clients: Sequence[SglangClient],
) -> LaunchedServers:
    """Start every server that the configuration launches.

    Raises:
        ConfigError: if a command cannot serve this run.
        AuthError: if a key cannot be read.
    """
    launches = {s.url.rstrip("/"): launch_of(config, s, paths) for s in config.servers if s.launch}
    wanted = frozenset(launch.name for launch in launches.values())
    for text in await end_strays(paths.root / FOLDER, wanted):
        await store.add_event(EventKind.SERVER_ENDED, text, "no longer configured")
    client_at = {client.url: client for client in clients}
    launchers = {
        url: Launcher(launch, clock, client_at[url].reachable, partial(_tell, store))
        for url, launch in launches.items()
    }
    for launcher in launchers.values():
        launcher.start()
    return LaunchedServers(launchers)


def launch_of(config: Config, server: ServerConfig, paths: StatePaths) -> Launch:
    """Return what starts a server: its own command, or the one that `eagled serve` runs."""
    folder, name = paths.root / FOLDER, name_of(server.url)
    argv, env = server.launch, dict(config.serve.env)
    if argv == (SERVE_WORD,):
        plan = plan_serve(config, server)
        argv, env = with_key(plan.argv, server, folder, name), dict(plan.env)
    log = paths.logs / f"{name}.log"
    keep, timeout_s = server.launch_keep, server.launch_timeout_s
    return Launch(name, server.url.rstrip("/"), argv, env, folder, log, timeout_s, keep)


def with_key(
    argv: tuple[str, ...], server: ServerConfig, folder: Path, name: str
) -> tuple[str, ...]:
    """Return a command line that finds the key in a file, if there is one."""
    if server.api_key_file is None:
        return argv
    return (*argv, "--config", str(write_key(folder, name, read_key(server.api_key_file))))


async def _tell(store: EventStore, what: str, url: str, detail: str) -> None:
    logger.info("server %s url=%s detail=%s", what, url, detail)
    await store.add_event(_KINDS[what], url, detail)
