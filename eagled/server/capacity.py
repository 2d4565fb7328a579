"""Ask the configured servers how much KV memory and context they have; nobody has to answer."""

from __future__ import annotations

import asyncio

from eagled.config import Config, ServerConfig
from eagled.cuts import Capacity
from eagled.errors import EagledError
from eagled.server.client import SglangClient
from eagled.server.protocol import ServerInfo

_TIMEOUT_S = 5.0
_UNKNOWN_VOCAB = 1 << 32  # no ids are sent


async def ask_capacity(config: Config) -> Capacity:
    """Return what the servers that answer within five seconds have together."""
    asked = (_info(config, server) for server in config.servers)
    infos = [info for info in await asyncio.gather(*asked) if info is not None]
    kv_tokens = sum(info.max_total_tokens or 0 for info in infos)
    contexts = [info.context for info in infos if info.context]
    return Capacity(kv_tokens or None, min(contexts, default=None))


async def _info(config: Config, server: ServerConfig) -> ServerInfo | None:
    client = SglangClient(server, config.generation, vocab_size=_UNKNOWN_VOCAB)
    try:
        async with asyncio.timeout(_TIMEOUT_S), client:
            return await client.server_info()
    except (EagledError, TimeoutError):
        return None
