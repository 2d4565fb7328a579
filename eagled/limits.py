"""Open files: how many the daemon needs, and raising the soft limit to them.

A daemon that runs out of them fails at every connection while accept() spins, so it refuses to
start instead.
"""

from __future__ import annotations

import resource

from eagled.config import Config
from eagled.errors import ConfigError

_SPARE = 128  # database, logs, control clients, workers' pipes
_UNLIMITED_LANE = 1024  # a lane with limit 0 is bounded by the server only
FILES_PER_REQUEST = 2  # a request, and the one that takes its place while it closes


def needed_files(config: Config) -> int:
    """Return how many open files the configuration can lead to."""
    requests = sum(lane.limit or _UNLIMITED_LANE for lane in config.lanes.values())
    return FILES_PER_REQUEST * requests + _SPARE


def raise_file_limit(config: Config) -> int:
    """Raise the soft limit as far as needed and allowed; return what holds now.

    Raises:
        ConfigError: if the hard limit is below what the lanes need.
    """
    need = needed_files(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if hard != unlimited and hard < need:
        raise ConfigError(
            f"the lanes need {need} open files, this process may have {hard}: raise the hard limit "
            "(LimitNOFILE= in the unit, `ulimit -Hn`), or lower lanes.*.limit"
        )
    if soft != unlimited and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        return need
    return soft
