"""What the units cannot do with a configuration on this machine, said before they are started."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from eagled.config import Config
from eagled.service_units import model_folders, package
from eagled.service_units import programs as own_programs

_USER = "eagled"  # as in the units and in eagled.sysusers
_STATE = Path("/var/lib/eagled")  # systemd gives the user what is below it (`StateDirectory=`)
_ENTER, _READ = stat.S_IXOTH, stat.S_IROTH
_PROGRAM_FOLDERS = (Path("/usr"), Path("/bin"))


def misfits(
    config: Config, programs: Iterable[Path] | None = None, file: Path | None = None
) -> list[str]:
    """Return what the daemon's unit cannot do as things are on this machine, and what instead.

    Args:
        config: what it is to run with.
        programs: the folders of Python and of eagled; by default those of this process.
        file: the configuration's file, if there is one.
    """
    pythons = (*own_programs(), package()) if programs is None else programs
    found = list(_closed_ways(config, pythons, file))
    if file is not None and file.is_file() and not _may(file.stat(), _READ):
        found.append(
            f"{file}: user {_USER}, as whom the units run, cannot read it; run "
            f"chgrp {_USER} {file} && chmod 640 {file}"
        )
    if any(server.launch for server in config.servers):
        found.append(
            "servers.launch: the daemon's unit sees no GPU; let `eagled service install --sglang` "
            "run the server in a unit of its own, and leave launch empty"
        )
    command = Path(config.daemon.on_alarm[0]) if config.daemon.on_alarm else None
    if command is not None and not any(command.is_relative_to(p) for p in _PROGRAM_FOLDERS):
        found.append(
            f"daemon.on_alarm: {command} must lie below /usr or /bin for the daemon's unit to run "
            "it; it has no network but the servers' addresses, so let it queue what it sends"
        )
    return found


def _closed_ways(config: Config, programs: Iterable[Path], file: Path | None) -> Iterator[str]:
    """Yield each folder that the units' user cannot enter on the way to what it needs."""
    needed = dict.fromkeys(programs, "eagled and its Python")
    if file is not None:
        needed[file.parent] = "the configuration"
    needed |= dict.fromkeys(model_folders(config), "the model")
    needed[config.run.state_dir] = "run.state_dir"
    if config.extract.spool is not None:
        needed[config.extract.spool] = "extract.spool"
    told: set[Path] = set()
    for path, what in needed.items():
        folder = None if path.is_relative_to(_STATE) else _closed_on_the_way(path)
        if folder is None or folder in told:
            continue
        told.add(folder)
        yield (
            f"{folder}: the units run as user {_USER}, who cannot enter this folder; {what} is in "
            f"{path}. Put it elsewhere (a venv below /opt, data below /var/lib or /data), or run "
            f"chmod o+x {folder}"
        )


def _closed_on_the_way(path: Path) -> Path | None:
    """Return the first folder of a path that the units' user cannot enter; None if there is none.

    Groups other than the user's own and access lists are not looked at.
    """
    real = path.resolve()
    for folder in (*reversed(real.parents), real):
        try:
            found = folder.stat()
        except OSError:
            return None  # not there yet, so it will be made
        if not stat.S_ISDIR(found.st_mode):
            return None
        if not _may(found, _ENTER):
            return folder
    return None


def _may(found: os.stat_result, bit: int) -> bool:
    """Return whether the mode gives the user, who may not exist yet, a right: `_ENTER`, `_READ`."""
    try:
        user = pwd.getpwnam(_USER)
    except KeyError:
        return bool(found.st_mode & bit)
    if found.st_uid == user.pw_uid:
        return bool(found.st_mode & bit << 6)
    return bool(found.st_mode & (bit << 3 if found.st_gid == user.pw_gid else bit))
