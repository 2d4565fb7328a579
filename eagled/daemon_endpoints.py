"""Servers that come and go while the daemon runs.

Guarantee: what an operator added, drained or removed is in the store before the call returns, and
holds over restarts. A server that is removed gets nothing new, finishes what it has, and is then
forgotten; no sample is lost or charged. `eagled server add` of a known one takes a drain back.
A server that the daemon launched is no longer used either, but its process runs on until the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import ValidationError

from eagled.config import Config, ServerConfig
from eagled.errors import UsageError
from eagled.server.client import SglangClient
from eagled.store import Store
from eagled.workers.generate import Generator

logger = logging.getLogger(__name__)
SETTING = "live_servers"


class LiveServers:
    """What differs from the configuration: servers added, removed and drained."""

    def __init__(self, config: Config, text: str = "") -> None:
        self._configured = {_address(s.url): s for s in config.servers}
        self.added: dict[str, ServerConfig] = {}
        self.removed: set[str] = set()
        self.draining: set[str] = set()
        self._read(text)

    def _read(self, text: str) -> None:
        """Take over what was stored; what cannot be read is logged and left out."""
        try:
            raw = orjson.loads(text or "{}")
            added = [ServerConfig.model_validate(each) for each in raw.get("added", [])]
            self.added = {_address(each.url): each for each in added}
            self.removed = {str(url) for url in raw.get("removed", [])}
            self.draining = {str(url) for url in raw.get("draining", [])}
        except (orjson.JSONDecodeError, ValidationError, AttributeError, TypeError) as exc:
            logger.warning("setting %s is unreadable and left out: %s", SETTING, exc)

    def to_json(self) -> str:
        """Return what is stored."""
        return orjson.dumps(
            {
                "added": [s.model_dump(mode="json") for s in self.added.values()],
                "removed": sorted(self.removed),
                "draining": sorted(self.draining),
            }
        ).decode()

    def all(self) -> list[ServerConfig]:
        """Return the servers to use: the configured ones first."""
        known = {u: s for u, s in self._configured.items() if u not in self.removed}
        return list((known | self.added).values())

    def add(self, server: ServerConfig) -> None:
        """Use a server; a configured one keeps what the configuration says of it."""
        address = _address(server.url)
        self.removed.discard(address)
        self.draining.discard(address)
        if address not in self._configured:
            self.added[address] = server

    def remove(self, address: str) -> None:
        """Use it no more."""
        self.added.pop(address, None)
        self.draining.discard(address)
        if address in self._configured:
            self.removed.add(address)


class Endpoints:
    """Carries out `eagled server …` on the generator and keeps it in the store.

    Owns the clients that it opens; those of the start belong to the daemon.
    """

    def __init__(
        self,
        live: LiveServers,
        config: Config,
        store: Store,
        generator: Generator,
        clients: list[SglangClient],
        *,
        vocab_size: int,
    ) -> None:
        self._live = live
        self._config = config
        self._store = store
        self._generator = generator
        self._clients = clients
        self._vocab_size = vocab_size
        self._own: list[SglangClient] = []
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()

    def start(self) -> None:
        """Drain again what an operator has drained in an earlier life."""
        for address in self._live.draining:
            if address in self._known():
                self._generator.leave(address)

    async def stop(self) -> None:
        """Close the clients that were opened here."""
        for task in self._leaving.values():
            task.cancel()
        for client in self._own:
            await client.__aexit__(None, None, None)

    def _known(self) -> Sequence[str]:
        return [client.url for client in self._clients]

    async def add(self, fields: Mapping[str, Any], uid: int) -> str:
        """Use one more server, or a drained one again; return what was done in words.

        Raises:
            UsageError: if it is no address, is being removed, or names a key file and comes from
                somebody who could not read it: the key would go wherever they say.
            AuthError: if its key file cannot be used.
        """
        try:
            server = ServerConfig.model_validate(dict(fields))
        except ValidationError as exc:
            words = "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in exc.errors())
            raise UsageError(f"this is no server: {words}") from None
        if server.api_key_file is not None and uid not in (0, os.geteuid()):
            raise UsageError("api_key_file: only root and the daemon's own user may name one")
        address = _address(server.url)
        async with self._lock:
            if address in self._leaving:
                raise UsageError(f"{address} is being removed; add it when that is over")
            if address in self._known():
                self._live.add(server)
                await self._keep(uid)
                self._generator.stay(address)
                return f"{address} is used"
            known = {_address(s.url): s for s in self._config.servers}
            client = SglangClient(
                known.get(address, server), self._config.generation, vocab_size=self._vocab_size
            )
            await client.__aenter__()
            self._live.add(server)
            await self._keep(uid)
            self._own.append(client)
            self._clients.append(client)
            self._generator.add_server(client)
            return f"{address} is used from now on"

    async def drain(self, url: str, uid: int) -> str:
        """Send nothing new to a server; what runs there is finished."""
        address = self._find(url)
        async with self._lock:
            self._live.draining.add(address)
            await self._keep(uid)
            n = self._generator.leave(address)
        return f"{address} is drained: {n} requests are being finished, nothing new is sent"

    async def remove(self, url: str, uid: int) -> str:
        """Drain a server and forget it when nothing runs there."""
        address = self._find(url)
        async with self._lock:
            self._live.remove(address)
            await self._keep(uid)
            n = self._generator.leave(address)
            if address not in self._leaving:
                self._leaving[address] = asyncio.create_task(self._see_off(address))
        return f"{address} is removed once its {n} requests are finished"

    async def _see_off(self, address: str) -> None:
        """Wait until a server has nothing of ours, and close the way to it."""
        try:
            await self._generator.remove_server(address)
            client = next(c for c in self._clients if c.url == address)
            self._clients.remove(client)
            if client in self._own:
                self._own.remove(client)
                await client.__aexit__(None, None, None)
            logger.info("server removed url=%s", address)
        except Exception:
            logger.exception("removing a server failed url=%s", address)
        finally:
            self._leaving.pop(address, None)

    def _find(self, url: str) -> str:
        address = _address(url)
        if address not in self._known():
            known = ", ".join(self._known()) or "none"
            raise UsageError(f"no server is called {address!r}; in use: {known}")
        return address

    async def _keep(self, uid: int) -> None:
        await self._store.set_setting(SETTING, self._live.to_json(), uid)


def _address(url: str) -> str:
    return url.rstrip("/")
