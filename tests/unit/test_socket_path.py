"""Daemon and client agree on where the socket is."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.config_load import load_config
from eagled.errors import UnreachableError
from eagled.socket_path import client_socket, client_state_dir, daemon_socket

TARGET = '[target]\nmodel = "m"\n'
CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "nothing set": ("", {}, "state/control.sock"),
    "another state folder": ('[run]\nstate_dir = "s"\n', {}, "s/control.sock"),
    "a configured socket": ('[daemon]\nsocket = "x/c.sock"\n', {}, "x/c.sock"),
    "both": ('[run]\nstate_dir = "s"\n[daemon]\nsocket = "c.sock"\n', {}, "c.sock"),
}


@pytest.mark.parametrize(("text", "environ", "expected"), CASES.values(), ids=list(CASES))
def test_client_and_daemon_agree(
    tmp_path: Path, text: str, environ: dict[str, str], expected: str
) -> None:
    """The quick look of the client finds what the whole configuration says."""
    path = tmp_path / "eagled.toml"
    path.write_text(TARGET + text)
    config = load_config(path, environ=environ).config

    assert tmp_path / expected == client_socket(path, environ)
    assert tmp_path / expected == daemon_socket(config.daemon.socket, config.run.state_dir, environ)
    assert config.run.state_dir == client_state_dir(path, environ)


def test_the_environment_wins(tmp_path: Path) -> None:
    """EAGLED_SOCKET and the settings' own variables are read by both."""
    path = tmp_path / "eagled.toml"
    path.write_text(TARGET)

    assert Path("/a/b") == client_socket(path, {"EAGLED_SOCKET": "/a/b"})
    assert Path("/a/b") == daemon_socket(None, tmp_path, {"EAGLED_SOCKET": "/a/b"})
    assert Path("/s/control.sock") == client_socket(path, {"EAGLED_RUN__STATE_DIR": "/s"})
    assert Path("/run/eagled/x/control.sock") == daemon_socket(
        None, tmp_path, {"RUNTIME_DIRECTORY": "/run/eagled/x:/other"}
    )


def test_without_a_file_the_socket_is_not_known(tmp_path: Path) -> None:
    """A missing configuration is exit code 69 for a client, with both ways out."""
    with pytest.raises(UnreachableError, match="--config, or the socket with"):
        client_socket(tmp_path / "none.toml", {})
