"""Where the control socket is, found without loading the whole configuration.

The daemon and every client must agree on it; this is the one place that decides. Standard library
only: `eagled status` must start fast. A file that is wrong is left to `config_load` to explain.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagled.errors import UnreachableError

SOCKET_ENV = "EAGLED_SOCKET"
_RUNTIME_ROOT = Path("/run/eagled")  # systemd: RuntimeDirectory=eagled/%i
_SOCKET_NAME = "control.sock"


def daemon_socket(configured: Path | None, state_dir: Path, environ: Mapping[str, str]) -> Path:
    """Return where the daemon puts its socket: configured, systemd's directory, or its own."""
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if environ.get(SOCKET_ENV):
        return Path(environ[SOCKET_ENV])
    if configured is not None:
        return configured
    return Path(runtime) / _SOCKET_NAME if runtime else state_dir / _SOCKET_NAME


def client_socket(config_path: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """Return where a client finds the daemon of a configuration file.

    Raises:
        UnreachableError: if there is no file to look into.
    """
    environ = os.environ if environ is None else environ
    if environ.get(SOCKET_ENV):
        return Path(environ[SOCKET_ENV])
    file = Path(config_path or environ.get("EAGLED_CONFIG") or "eagled.toml").absolute()
    file = file / "eagled.toml" if file.is_dir() else file
    if not file.is_file():
        raise UnreachableError(
            f"{file} does not exist, so the daemon's socket is not known: name the configuration "
            f"with --config, or the socket with ${SOCKET_ENV}"
        )
    tree = _tree(file)
    configured = environ.get("EAGLED_DAEMON__SOCKET") or _at(tree, "daemon", "socket")
    if configured:
        return _beside(file, configured)
    state = environ.get("EAGLED_RUN__STATE_DIR") or _at(tree, "run", "state_dir") or "state"
    own = _beside(file, state) / _SOCKET_NAME
    under_systemd = _RUNTIME_ROOT / file.stem / _SOCKET_NAME
    return under_systemd if under_systemd.exists() and not own.exists() else own


def client_state_dir(config_path: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the state directory of a configuration file, for reading the last snapshot."""
    environ = os.environ if environ is None else environ
    file = Path(config_path or environ.get("EAGLED_CONFIG") or "eagled.toml").absolute()
    file = file / "eagled.toml" if file.is_dir() else file
    tree = _tree(file) if file.is_file() else {}
    state = environ.get("EAGLED_RUN__STATE_DIR") or _at(tree, "run", "state_dir") or "state"
    return _beside(file, state)


def _tree(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}  # the daemon would not have started with it either


def _at(tree: Mapping[str, Any], section: str, name: str) -> str | None:
    table = tree.get(section)
    value = table.get(name) if isinstance(table, Mapping) else None
    return value if isinstance(value, str) else None


def _beside(file: Path, value: str) -> Path:
    return Path(os.path.abspath(file.parent / Path(value).expanduser()))  # noqa: PTH100 - no links
