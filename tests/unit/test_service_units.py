"""The systemd units: accepted by systemd's own checks, and fitted to a configuration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from eagled.config_load import load_config
from eagled.errors import (
    ArtifactError,
    AuthError,
    ConfigError,
    DiskError,
    FingerprintError,
    LockedError,
    StoreError,
    UsageError,
)
from eagled.service_units import UNITS, install_units

FOLDER = Path(__file__).parents[2] / "systemd"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not there")
EXPOSURE = "15"  # tenths: 1.5 of 10
SERVICES = [name for name in UNITS if name.endswith(".service")]


def _analyze(*args: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *args], capture_output=True, text=True, check=False)


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_passes_verify(unit: str) -> None:
    """The unit as it is gives systemd nothing to complain about."""
    done = _analyze("verify", "--man=no", str(FOLDER / unit))

    assert (0, "") == (done.returncode, done.stderr)


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_is_well_sandboxed(unit: str) -> None:
    """The exposure level is at most 1.5, with and without a GPU."""
    done = _analyze(
        "security", "--offline=yes", f"--threshold={EXPOSURE}", "--no-pager", str(FOLDER / unit)
    )

    assert 0 == done.returncode, done.stdout[-300:]


@needs_systemd
def test_the_check_of_the_sandbox_can_fail(tmp_path: Path) -> None:
    """A unit without its system call filter is over the threshold."""
    text = (FOLDER / "eagled@.service").read_text()
    bare = "\n".join(
        line for line in text.splitlines() if not line.startswith(("SystemCall", "Capability"))
    )
    (tmp_path / "eagled@.service").write_text(bare)
    done = _analyze(
        "security", "--offline=yes", f"--threshold={EXPOSURE}", "--no-pager",
        str(tmp_path / "eagled@.service"),
    )  # fmt: skip

    assert 0 != done.returncode


def _setting(unit: str, name: str) -> list[str]:
    text = (FOLDER / unit).read_text()
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]


def test_a_restart_is_not_tried_where_it_cannot_help() -> None:
    """The unit lists the exit codes of the errors that only a person can mend; not a full disk."""
    listed = {
        int(code) for code in _setting("eagled@.service", "RestartPreventExitStatus")[0].split()
    }
    hopeless = (UsageError, ConfigError, FingerprintError, AuthError, LockedError, StoreError)

    assert {error.exit_code for error in hopeless} <= listed
    assert not {DiskError.exit_code, ArtifactError.exit_code, 0} & listed


def test_installing_writes_units_and_a_drop_in_that_fits(tmp_path: Path) -> None:
    """Data, model and program folders and server addresses of the configuration are let through."""
    (tmp_path / "eagled.toml").write_text(
        """
        [run]
        state_dir = "/data/run1"
        [target]
        model = "/models/kimi"
        [[servers]]
        url = "http://10.0.0.7:30000"
        [[servers]]
        url = "http://127.0.0.1:30001"
        """
    )
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    written = install_units(loaded, "r1", tmp_path / "root")
    system = tmp_path / "root/etc/systemd/system"
    lines = (system / "eagled@r1.service.d/10-eagled.conf").read_text().splitlines()

    assert set(UNITS) <= {path.name for path in written}
    assert "ReadWritePaths=/data/run1" in lines
    assert "IPAddressAllow=10.0.0.7" in lines
    assert f"ExecStart=/usr/bin/env eagled run --config {tmp_path}/eagled.toml" in lines
    assert any("-/models/kimi" in line for line in lines if line.startswith("ReadOnlyPaths="))
    assert not any("127.0.0.1" in line for line in lines)
    assert (FOLDER / "eagled@.service").read_text() == (system / "eagled@.service").read_text()


@needs_systemd
def test_the_installed_units_pass_verify_with_their_drop_ins(tmp_path: Path) -> None:
    """The instance with its drop-in is accepted as a whole."""
    (tmp_path / "eagled.toml").write_text('[target]\nmodel = "/models/m"\n')
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    install_units(loaded, "r1", tmp_path / "root")
    done = _analyze("verify", "--man=no", f"--root={tmp_path}/root", "eagled@r1.service")
    own = [line for line in done.stderr.splitlines() if "eagled" in line and "Unknown" in line]

    assert [] == own


def test_a_server_by_name_opens_the_addresses_and_says_why(tmp_path: Path) -> None:
    """A host name cannot be in an address list: nothing is refused then."""
    (tmp_path / "eagled.toml").write_text(
        '[target]\nmodel = "m"\n[[servers]]\nurl = "http://gpu1.example:30000"\n'
    )
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    install_units(loaded, "r1", tmp_path / "root")
    text = (tmp_path / "root/etc/systemd/system/eagled@r1.service.d/10-eagled.conf").read_text()

    assert (
        "# gpu1.example is a name: its address may change, so none is refused\nIPAddressDeny="
        in text
    )


@pytest.mark.parametrize(
    ("instance", "state", "error"),
    [("a/b", "/data", UsageError), ("a b", "/data", UsageError), ("a", "/my data", ConfigError)],
)
def test_what_cannot_stand_in_a_unit_is_refused(
    tmp_path: Path, instance: str, state: str, error: type[Exception]
) -> None:
    """Names and paths that systemd would read otherwise are refused before anything is written."""
    (tmp_path / "eagled.toml").write_text(f'[target]\nmodel = "m"\n[run]\nstate_dir = "{state}"\n')
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    with pytest.raises(error):
        install_units(loaded, instance, tmp_path / "root")

    assert not (tmp_path / "root").exists()
