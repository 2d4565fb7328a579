"""Open files: how many the daemon needs, and raising the soft limit to them.

A daemon that runs out of them fails at every connection while accept() spins, so it refuses to
start instead.
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from eagled.config import Config
from eagled.control.protocol import MAX_CONNECTIONS, MAX_SCRAPERS
from eagled.errors import ConfigError

_SPARE = 128  # database, logs, workers' pipes, files that are read
_DOORS = MAX_CONNECTIONS + MAX_SCRAPERS
_UNLIMITED_LANE = 1024  # a lane with limit 0 is bounded by the server only
FILES_PER_REQUEST = 2  # a request, and the one that takes its place while it closes


def needed_files(config: Config) -> int:
    """Return how many open files the configuration can lead to."""
    requests = sum(lane.limit or _UNLIMITED_LANE for lane in config.lanes.values())
    return FILES_PER_REQUEST * requests + _DOORS + _SPARE


def open_files() -> tuple[int, int]:
    """Return how many files this process has open, and how many it may have."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()), most
    except OSError as exc:
        if exc.errno == errno.EMFILE:
            return most, most
        return 0, most  # this system does not say


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
