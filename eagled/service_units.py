"""Install the systemd units with drop-ins for a configuration, and take them away again.

Guarantee: the units are the files of `systemd/`, unchanged; what differs on this machine (program
folder, data folder, model folder, addresses, key files) is in one drop-in a unit, so that an update
replaces the units and keeps the drop-ins readable. Nothing is started, enabled or stopped, and no
data is ever removed.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from eagled.artifacts import write_bytes
from eagled.config import Config
from eagled.config_load import LoadedConfig
from eagled.credentials import credential_name
from eagled.errors import ConfigError, UsageError

UNITS = ("eagled@.service", "eagled-text@.service", "eagled-extract@.service", "eagled.slice")
SGLANG_UNIT = "eagled-sglang@.service"
DROP_IN = "10-eagled.conf"
_COMMANDS = {
    "eagled@.service": "run",
    "eagled-text@.service": "worker text",
    "eagled-extract@.service": "worker extract",
    SGLANG_UNIT: "serve",
}
_DAEMON, _EXTRACT = "eagled@.service", "eagled-extract@.service"
_OTHER = {"eagled.sysusers": "sysusers.d/eagled.conf", "eagled.tmpfiles": "tmpfiles.d/eagled.conf"}
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_UNSAFE = re.compile(r"[\s\"'\\%$]")


def unit_files(
    loaded: LoadedConfig, instance: str, root: Path, *, sglang: bool = False
) -> dict[Path, str]:
    """Return every file of an installation below `root`/etc with its text; writes nothing.

    Raises:
        UsageError: if the instance's name cannot be one.
        ConfigError: if a path of the configuration cannot stand in a unit file.
    """
    _check_instance(instance)
    names = (*UNITS, SGLANG_UNIT) if sglang else UNITS
    files = {_system(root) / name: _source(name) for name in names}
    files |= {root / "etc" / target: _source(name) for name, target in _OTHER.items()}
    for unit in (name for name in names if name in _COMMANDS):
        text = "\n".join(drop_in(loaded, unit, instance)) + "\n"
        files[_drop_in_path(root, unit, instance)] = text
    return files


def install_units(files: Mapping[Path, str]) -> list[Path]:
    """Write the files and return their paths.

    Raises:
        DiskError: if a folder cannot be written (run it as root).
    """
    for path, text in files.items():
        write_bytes(path, text.encode())
        path.chmod(0o644)
    return list(files)


def uninstall_units(instance: str, root: Path) -> list[Path]:
    """Remove an instance's drop-ins, and the units when it was the last instance.

    Returns:
        What was removed. State, configuration, user and folders stay.

    Raises:
        UsageError: if nothing of that name is installed.
    """
    _check_instance(instance)
    found = [_drop_in_path(root, unit, instance) for unit in _COMMANDS]
    gone = [path for path in found if path.is_file()]
    if not gone:
        raise UsageError(f"no units of an instance {instance!r} below {_system(root)}")
    for path in gone:
        path.unlink()
        if not any(path.parent.iterdir()):  # a drop-in of the administrator's own stays
            path.parent.rmdir()
    if not instances(root):
        units = [_system(root) / name for name in (*UNITS, SGLANG_UNIT)]
        for path in (p for p in units if p.is_file()):
            path.unlink()
            gone.append(path)
    return gone


def instances(root: Path) -> list[str]:
    """Return the names of the instances that are installed below `root`."""
    found = _system(root).glob(f"eagled@*.service.d/{DROP_IN}")
    return sorted(p.parent.name.removeprefix("eagled@").removesuffix(".service.d") for p in found)


def units_of(instance: str, root: Path) -> list[str]:
    """Return the installed units of an instance."""
    _check_instance(instance)
    return [
        unit.replace("@", f"@{instance}")
        for unit in _COMMANDS
        if _drop_in_path(root, unit, instance).is_file()
    ]


def _check_instance(instance: str) -> None:
    if not _INSTANCE.fullmatch(instance):
        raise UsageError(f"{instance!r} cannot be an instance: letters, digits, '_' and '.'")


def _system(root: Path) -> Path:
    return root / "etc/systemd/system"


def _drop_in_path(root: Path, unit: str, instance: str) -> Path:
    return _system(root) / f"{unit.replace('@', f'@{instance}')}.d" / DROP_IN


def drop_in(loaded: LoadedConfig, unit: str, instance: str) -> Iterator[str]:
    """Yield the lines that a unit needs on this machine for this configuration."""
    config = loaded.config
    yield f"# from {loaded.path} by `eagled service install {instance}`; install again to renew"
    yield "[Service]"
    bin_dir = Path(sys.executable).parent
    yield f"Environment=PATH={_safe(bin_dir)}:/usr/local/bin:/usr/bin:/bin"
    if loaded.path != Path(f"/etc/eagled/{instance}.toml"):
        yield "ExecStart="
        command = _COMMANDS[unit]
        yield f"ExecStart=/usr/bin/env eagled {command} --config {_safe(loaded.path)}"
    writes = [config.run.state_dir]
    yield f"ReadWritePaths={_safe(config.run.state_dir)}"
    if (spool := config.extract.spool) is not None:
        writes.append(spool)
        yield f"ReadWritePaths=-{_safe(spool)}"
    reads = [loaded.path.parent, *_read_folders(config)]
    yield "ReadOnlyPaths=" + " ".join(f"-{_safe(p)}" for p in dict.fromkeys(reads))
    pythons = dict.fromkeys(programs())
    yield "ExecPaths=" + " ".join(f"-{_safe(p)}" for p in pythons)
    touched = [*writes, *reads, *pythons, package()]
    if any(path.is_relative_to(home) for path in touched for home in _HOMES):
        yield "# something of it lies in a home folder"
        yield "ProtectHome=read-only"
    asks_servers = unit == _EXTRACT and config.extract.backend == "sglang"
    if asks_servers:
        yield "# the servers compute the hidden states: this worker has to reach them"
        yield "PrivateNetwork=no"
        yield "RestrictAddressFamilies=AF_INET AF_INET6"
        yield "IPAddressAllow=localhost"
    if unit == _DAEMON:
        yield from _group(config)
    if unit == _DAEMON or asks_servers:
        yield from _addresses(config)
    if unit in (_DAEMON, SGLANG_UNIT) or asks_servers:
        yield from _credentials(config)


def programs() -> tuple[Path, Path]:
    """Return the folders of the environment and of the Python that this process runs."""
    return Path(sys.prefix), Path(sys.base_prefix)


def package() -> Path:
    """Return the folder that Python imports eagled from; a checkout's, if it was installed so."""
    return Path(__file__).resolve().parents[1]


def model_folders(config: Config) -> Iterator[Path]:
    """Yield the local folders of a configuration's model, tokenizer and template."""
    for value in (config.target.model, config.target.tokenizer):
        if value is not None and Path(value).is_absolute():
            yield Path(value)
    if config.target.chat_template is not None:
        yield config.target.chat_template.parent


def _read_folders(config: Config) -> Iterator[Path]:
    yield from model_folders(config)
    for server in config.servers:
        if server.api_key_file is not None:
            yield server.api_key_file.parent


def _group(config: Config) -> Iterator[str]:
    """Yield what lets a group reach the socket; a private user table would hide the group."""
    if config.daemon.group:
        yield f"SupplementaryGroups={config.daemon.group}"
        yield "PrivateUsers=no"
        yield "RuntimeDirectoryMode=0751"


def _credentials(config: Config) -> Iterator[str]:
    """Yield what hands key files over, so that they can belong to root."""
    for path in dict.fromkeys(server.api_key_file for server in config.servers):
        if path is not None:
            yield f"LoadCredential={credential_name(path)}:{_safe(path)}"


def _addresses(config: Config) -> Iterator[str]:
    """Yield what lets the daemon reach its servers; localhost is open already."""
    for host in dict.fromkeys(urlsplit(server.url).hostname or "" for server in config.servers):
        if host == "localhost":
            continue
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            yield f"# {host} is a name: its address may change, so none is refused"
            yield "IPAddressDeny="
            return
        if not address.is_loopback:
            yield f"IPAddressAllow={address}"


def _safe(path: Path) -> str:
    if _UNSAFE.search(str(path)):
        raise ConfigError(
            f"{path} cannot stand in a systemd unit: use a path without spaces, quotes, % and $"
        )
    return str(path)


def _source(name: str) -> str:
    """Return a file of `systemd/`, from the installed package or from the checkout."""
    here = Path(__file__).parent
    for folder in (here / "systemd", here.parent / "systemd"):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise ConfigError(f"this installation of eagled has no {name}; install it again")
