"""SIGHUP without a terminal: look at the configuration file again, and say what differs.

Guarantee: nothing that runs changes. A daemon keeps the configuration of its start (servers, lanes'
limits, priorities and pauses have commands of their own that hold at once), so what the file says
now is named in an alarm until the next start, and a file that would be refused is said before it
is needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from eagled.config_load import load_config
from eagled.daemon_runtime import Runtime
from eagled.errors import ConfigError

logger = logging.getLogger(__name__)
ALARM = "config"
_MOST_NAMED = 10


def has_terminal() -> bool:
    """Return whether this process has a terminal whose closing ends it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def look_at_config(runtime: Runtime) -> None:
    """Compare the file with what runs, and keep the alarm about it."""
    path = runtime.loaded.path
    try:
        found = (await asyncio.to_thread(load_config, path)).config
    except (ConfigError, OSError) as exc:
        text = f"{path} would be refused at the next start; what runs goes on. {exc}"
        logger.error("%s", text)  # noqa: TRY400 - the cause is the file
        runtime.board.raise_(ALARM, text)
        return
    names = list(differing(runtime.config.model_dump(), found.model_dump()))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    text = f"{path} differs from what runs: {', '.join(names[:_MOST_NAMED])}{more}; "
    text += "it holds from the next start"
    logger.info("%s", text if names else f"{path} says what runs")
    runtime.board.keep(ALARM, text, when=bool(names), level="info")


def differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of settings that differ, in order; a list of tables counts as one."""
    for key in sorted(old.keys() | new.keys()):
        before, after, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differing(before, after, f"{name}.")
        elif before != after:
            yield name
