"""What the parts of a run agree on about states that servers capture: folder, layers, environment.

Guarantee: the daemon, the extraction worker and a server that `eagled serve` starts see one spool
and one list of boundaries, all from the configuration. Reads the target's config.json only.
"""

from __future__ import annotations

from pathlib import Path

from eagled.config import MIB, Config
from eagled.credentials import read_key
from eagled.paths import StatePaths
from eagled.sglang_plugin.settings import (
    ACTIVE_ENV,
    FSYNC_ENV,
    LAYERS_ENV,
    RESERVE_ENV,
    SPOOL_ENV,
)
from eagled.shards.backend_sglang import CaptureServer
from eagled.shards.layers import plan_layers
from eagled.shards.target import read_target, resolve_model

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - compared with, never written to


def spool_folder(config: Config) -> Path:
    """Return the folder into which servers write captured states."""
    return config.extract.spool or StatePaths(config.run.state_dir).spool


def capture_servers(config: Config) -> list[CaptureServer]:
    """Return the configured servers with their keys.

    Raises:
        AuthError: if a key file cannot be used.
    """
    return [
        CaptureServer(s.url.rstrip("/"), read_key(s.api_key_file) if s.api_key_file else "")
        for s in config.servers
    ]


def capture_environment(config: Config) -> dict[str, str]:
    """Return the variables with which a server of this run captures.

    The plugin itself must be in the server's environment (docs/capture.md); without it they do
    nothing.

    Raises:
        ConfigError: if the target or its layers cannot be used.
    """
    target = read_target(resolve_model(config.target.model, config.target.revision))
    layers = plan_layers(target.n_layers, config.extract.layers)
    spool = spool_folder(config).resolve()
    return {
        ACTIVE_ENV: "1",
        SPOOL_ENV: str(spool),
        LAYERS_ENV: ",".join(map(str, layers)),
        FSYNC_ENV: "off" if spool.is_relative_to(_IN_MEMORY) else "file",
        RESERVE_ENV: str(max(1, config.disk.reserve_bytes // (2 * MIB))),
    }
