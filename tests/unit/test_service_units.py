"""The systemd units: accepted by systemd's own checks, and fitted to a configuration."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from eagled.config import Config
from eagled.config_load import load_config
from eagled.credentials import credential_name, read_key
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
from eagled.service_fit import _ENTER, _may, misfits
from eagled.service_units import (
    SGLANG_UNIT,
    UNITS,
    install_units,
    instances,
    uninstall_units,
    unit_files,
    units_of,
)

FOLDER = Path(__file__).parents[2] / "systemd"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not there")
EXPOSURE = "15"  # tenths: 1.5 of 10
SERVICES = [name for name in UNITS if name.endswith(".service")]


def _analyze(*args: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *args], capture_output=True, text=True, check=False)


@needs_systemd
@pytest.mark.parametrize("unit", [*UNITS, SGLANG_UNIT])
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
    written = install_units(unit_files(loaded, "r1", tmp_path / "root"))
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
    install_units(unit_files(loaded, "r1", tmp_path / "root"))
    done = _analyze("verify", "--man=no", f"--root={tmp_path}/root", "eagled@r1.service")
    own = [line for line in done.stderr.splitlines() if "eagled" in line and "Unknown" in line]

    assert [] == own


def test_a_server_by_name_opens_the_addresses_and_says_why(tmp_path: Path) -> None:
    """A host name cannot be in an address list: nothing is refused then."""
    (tmp_path / "eagled.toml").write_text(
        '[target]\nmodel = "m"\n[[servers]]\nurl = "http://gpu1.example:30000"\n'
    )
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    install_units(unit_files(loaded, "r1", tmp_path / "root"))
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
        install_units(unit_files(loaded, instance, tmp_path / "root"))

    assert not (tmp_path / "root").exists()


KEYED = """
[target]
model = "/models/m"
[[servers]]
url = "http://127.0.0.1:30000"
api_key_file = "/etc/eagled/r1.key"
"""


def _installed(tmp_path: Path, *names: str, sglang: bool = False) -> Path:
    (tmp_path / "eagled.toml").write_text(KEYED)
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    for name in names:
        install_units(unit_files(loaded, name, tmp_path / "root", sglang=sglang))
    return tmp_path / "root"


@needs_systemd
def test_the_unit_of_the_server_is_sandboxed_as_far_as_a_gpu_allows(tmp_path: Path) -> None:
    """SGLang's unit, with its drop-in, passes verify and an exposure of 3.0."""
    root = _installed(tmp_path, "r1", sglang=True)
    done = _analyze(
        "security", "--offline=yes", "--threshold=30", "--no-pager", str(FOLDER / SGLANG_UNIT)
    )
    checked = _analyze("verify", "--man=no", f"--root={root}", "eagled-sglang@r1.service")

    assert 0 == done.returncode, done.stdout[-300:]
    assert [] == [line for line in checked.stderr.splitlines() if "Unknown" in line]


def test_a_key_file_is_handed_over_by_systemd(tmp_path: Path) -> None:
    """The drop-in names the credential that the daemon looks for, and no other unit has it."""
    root = _installed(tmp_path, "r1")
    key = Path("/etc/eagled/r1.key")
    line = f"LoadCredential={credential_name(key)}:{key}"
    having = [path.parent.name for path in root.rglob("10-eagled.conf") if line in path.read_text()]
    (tmp_path / credential_name(key)).write_text("secret\n")

    assert ["eagled@r1.service.d"] == having
    assert "secret" == read_key(key, {"CREDENTIALS_DIRECTORY": str(tmp_path)})


def test_uninstalling_takes_what_installing_brought(tmp_path: Path) -> None:
    """The units stay while another instance needs them; an administrator's drop-in stays always."""
    root = _installed(tmp_path, "r1", "r2", sglang=True)
    system = root / "etc/systemd/system"
    mine = system / "eagled@r1.service.d/20-mine.conf"
    mine.write_text("[Service]\n")

    assert ["r1", "r2"] == instances(root)
    assert "eagled@r1.service" in units_of("r1", root)
    uninstall_units("r1", root)
    assert (["r2"], True) == (instances(root), (system / "eagled@.service").is_file())
    uninstall_units("r2", root)
    assert [mine] == [path for path in system.rglob("*") if path.is_file()]
    with pytest.raises(UsageError, match="r2"):
        uninstall_units("r2", root)


def test_a_group_at_the_socket_is_let_through(tmp_path: Path) -> None:
    """The daemon is in the group, sees it, and the socket's folder can be passed."""
    (tmp_path / "eagled.toml").write_text(
        '[target]\nmodel = "/models/m"\n[daemon]\ngroup = "ops"\n'
    )
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    files = unit_files(loaded, "r1", tmp_path / "root")
    system = tmp_path / "root/etc/systemd/system"
    lines = files[system / "eagled@r1.service.d/10-eagled.conf"].splitlines()

    assert {"SupplementaryGroups=ops", "PrivateUsers=no", "RuntimeDirectoryMode=0751"} <= set(lines)


CAPTURING = """
[target]
model = "/models/m"
[extract]
backend = "sglang"
spool = "/data/spool"
[[servers]]
url = "http://10.0.0.7:30000"
api_key_file = "/etc/eagled/r1.key"
launch = ["serve"]
[daemon]
on_alarm = ["/home/me/mail"]
"""


def test_states_from_the_servers_reach_the_extraction_worker(tmp_path: Path) -> None:
    """With SGLang as back end the worker may talk to the servers, has the key, writes the spool."""
    (tmp_path / "eagled.toml").write_text(CAPTURING)
    loaded = load_config(tmp_path / "eagled.toml", environ={})
    files = unit_files(loaded, "r1", tmp_path / "root", sglang=True)
    system = tmp_path / "root/etc/systemd/system"
    lines = {
        unit: files[system / f"{unit}@r1.service.d/10-eagled.conf"].splitlines()
        for unit in ("eagled", "eagled-text", "eagled-extract", "eagled-sglang")
    }
    key = f"LoadCredential={credential_name(Path('/etc/eagled/r1.key'))}:/etc/eagled/r1.key"

    assert {"PrivateNetwork=no", "IPAddressAllow=10.0.0.7", key} <= set(lines["eagled-extract"])
    assert [True] * 4 == ["/data/spool" in " ".join(x) for x in lines.values()]
    assert not {"PrivateNetwork=no", key} & set(lines["eagled-text"])
    assert key in lines["eagled-sglang"]


def _config(folder: Path, text: str) -> Config:
    (folder / "eagled.toml").write_text(text)
    return load_config(folder / "eagled.toml", environ={}).config


def test_what_the_sandbox_does_not_allow_is_said(tmp_path: Path) -> None:
    """A launched server and a command in a home folder are named with the way round."""
    plain = '[target]\nmodel = "/models/m"\n[run]\nstate_dir = "/var/lib/eagled/r1"\n'
    capturing = f'{CAPTURING}[run]\nstate_dir = "/var/lib/eagled/r1"\n'
    told = misfits(_config(tmp_path, capturing), programs=[])

    assert [True, True] == ["--sglang" in told[0], "/home/me/mail" in told[1]]
    assert [] == misfits(_config(tmp_path, plain), programs=[])


def test_a_folder_that_the_units_user_cannot_enter_is_said(tmp_path: Path) -> None:
    """Python, model or data behind a closed folder: named once each, with what to do."""
    config = _config(tmp_path, '[target]\nmodel = "/models/m"\n[run]\nstate_dir = "/var/lib/x"\n')
    closed = tmp_path / "closed"
    (closed / "venv/bin").mkdir(parents=True)
    closed.chmod(0o700)
    on_the_way = [p for p in reversed(closed.parents) if not p.stat().st_mode & 0o001]
    told = misfits(config, programs=[closed / "venv", closed / "venv/bin", Path("/usr")])

    first = on_the_way[0] if on_the_way else closed  # pytest's own folder is closed, too
    assert 1 == len(told)
    assert told[0].startswith(f"{first}: ")
    assert f"chmod o+x {first}" in told[0]
    assert str(closed / "venv") in told[0]


def test_a_configuration_that_the_units_user_cannot_read_is_said(tmp_path: Path) -> None:
    """A key of mode 600 is right, a configuration of mode 600 is a daemon that does not start."""
    config = _config(tmp_path, '[target]\nmodel = "/models/m"\n[run]\nstate_dir = "/var/lib/x"\n')
    file = tmp_path / "eagled.toml"
    file.chmod(0o600)
    told = misfits(config, programs=[], file=file)
    file.chmod(0o644)
    after = misfits(config, programs=[], file=file)

    assert f"chmod 640 {file}" in told[-1]
    assert told[:-1] == after


@pytest.mark.parametrize(
    ("mode", "owner", "group", "may"),
    [
        (0o755, 0, 0, True),
        (0o700, 0, 0, False),
        (0o700, 70, 0, True),
        (0o070, 70, 7, False),  # the owner's bits count for the owner, whatever the group has
        (0o750, 0, 7, True),
        (0o701, 0, 7, False),
    ],
)
def test_who_may_enter_is_what_the_mode_says(
    monkeypatch: pytest.MonkeyPatch, *, mode: int, owner: int, group: int, may: bool
) -> None:
    """Owner, group and others are told apart as the kernel does."""
    user = pwd.struct_passwd(("eagled", "x", 70, 7, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: user)

    assert may == _may(os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0)), _ENTER)
