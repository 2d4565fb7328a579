"""A real systemd as process 1 of its own namespaces, for tests of the units.

It sees this machine's programs, but its own process ids, mounts, host name and control groups;
what is written below /etc, /run, /var/lib and /var/log is gone when it ends. Its units are those
that the test installs, the journal, and the few empty targets that a boot asks for. Needs root,
cgroup2 and systemd; `why_not` says what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SYSTEMD = Path("/lib/systemd/systemd")
DEADLINE_S = 180.0
_TOOLS = (
    "unshare", "nsenter", "systemctl", "journalctl", "systemd-sysusers", "systemd-tmpfiles",
)  # fmt: skip
_UNIT_PATH = "/etc/systemd/system:/run/units"
_JOURNAL = ("systemd-journald.service", "systemd-journald.socket")
_STUBS = ("basic", "sysinit", "shutdown", "multi-user", "network-online")
_OTHERS_X = 0o001
_PROBE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/up /run/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/up,workdir=/run/work /etc
mount -t cgroup2 none /mnt
"""
_NAMESPACES = ("-m", "-p", "-u", "-i", "-C", "--fork", "--mount-proc")
_BOOT = """
set -e
mount --make-rprivate /
cgroups=$(awk '$2 ~ "^/sys/fs/cgroup"' /proc/mounts)
[ -z "$cgroups" ] || umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/units /run/o/etc.up /run/o/etc.work /run/lock
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/o/etc.up,workdir=/run/o/etc.work /etc
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=755 tmpfs /var/log
for folder in {closed}; do
    over=/run/o/$(echo $folder | tr / _)
    mkdir $over.up $over.work
    mount -t overlay overlay -o lowerdir=$folder,upperdir=$over.up,workdir=$over.work $folder
    chmod o+x $folder
done
for name in {stubs}; do
    printf '[Unit]\\nDefaultDependencies=no\\n' > /run/units/$name.target
done
for name in {journal}; do
    ln -s /lib/systemd/system/$name /run/units/
done
rm -rf /etc/systemd/system/*.wants /etc/machine-id
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\\nReadKMsg=no\\n' > /etc/systemd/journald.conf.d/test.conf
mount --make-rshared /  # what a boot does; credentials are mounted through it
exec env -i container=other PATH="$PATH" SYSTEMD_UNIT_PATH={units} {systemd} --system \
    --unit=basic.target --log-target=console --show-status=no
"""


@cache
def why_not() -> str:
    """Return why no systemd can be started here; empty if one can, as far as can be told."""
    if os.geteuid() != 0:
        return "namespaces and control groups need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or not SYSTEMD.exists():
        return f"not installed: {' '.join(missing) or SYSTEMD}"
    if _cgroup2() is None:
        return "no writable cgroup2 file system is mounted"
    probe = ["unshare", *_NAMESPACES, "sh", "-c", _PROBE]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"namespaces or mounts are not allowed here: {done.stderr}" if done.returncode else ""


def _closed() -> list[str]:
    """Return the folders above Python and this checkout that a user of a service cannot enter."""
    needed = (Path(sys.prefix), Path(sys.base_prefix), ROOT)
    above = {parent for path in needed for parent in (path, *path.parents)}
    return sorted(str(path) for path in above if not path.stat().st_mode & _OTHERS_X)


def _cgroup2() -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(where)
    return None


class Systemd:
    """The running one; `pid` is that of its process 1 seen from here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, *command: str, text: str | None = None) -> str:
        """Run a command inside and return what it printed."""
        done = subprocess.run(
            [  # noqa: S607 - found on PATH, as `why_not` made sure
                "nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-C",
                "env", f"SYSTEMD_UNIT_PATH={_UNIT_PATH}", *command,
            ],
            input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        told = self.told() if done.returncode and command[0] != "journalctl" else ""
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{told}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file inside."""
        self.run("sh", "-c", f"mkdir -p $(dirname {path}); cat > {path}", text=text)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + DEADLINE_S
        while not ready():
            assert time.monotonic() < deadline, f"{what} did not come about:\n{self.told()}"
            time.sleep(0.05)

    def told(self) -> str:
        """Return what systemd and the services have said."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-a")

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """Return the journal's entries with these fields."""
        lines = self.run("journalctl", "--no-pager", "-o", "json", "-a", *matches).splitlines()
        return [json.loads(line) for line in lines]

    def path(self, inside: str) -> Path:
        """Return where a path of the inside is to be found from here."""
        return Path(f"/proc/{self.pid}/root{inside}")


@contextmanager
def booted(folder: Path) -> Iterator[Systemd]:
    """Boot one, and end everything in it when the block ends."""
    mounted = _cgroup2()
    assert mounted is not None
    group = mounted / f"eagled-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    script = _BOOT.format(
        stubs=" ".join(_STUBS), journal=" ".join(_JOURNAL), units=_UNIT_PATH, systemd=SYSTEMD,
        closed=" ".join(_closed()),
    )  # fmt: skip
    unshare_ = f"exec unshare {' '.join(_NAMESPACES)} --kill-child=KILL"
    enter = f"echo $$ > {group}/cgroup.procs && {unshare_}"
    with (folder / "boot.log").open("wb") as log:
        unshare = subprocess.Popen(
            ["/bin/sh", "-c", f'{enter} /bin/sh -c "$0"', script],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        system = _up(unshare, folder / "boot.log")
        system.run("systemctl", "start", _JOURNAL[0])
        yield system
    finally:
        unshare.kill()  # the kernel then kills process 1, and with it everything inside
        unshare.wait()
        _remove(group)


def _up(unshare: subprocess.Popen[bytes], log: Path) -> Systemd:
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and unshare.poll() is None:
        pids = children.read_text().split()
        if pids and Path(f"/proc/{pids[0]}/root/run/systemd/private").exists():
            return Systemd(int(pids[0]))
        time.sleep(0.05)
    pytest.skip(f"systemd did not come up here: {log.read_text(errors='replace')[-2000:]}")


def _remove(group: Path) -> None:
    """Remove a control group as soon as its processes are gone."""
    deadline = time.monotonic() + DEADLINE_S
    while group.exists() and time.monotonic() < deadline:
        for path in sorted(group.rglob("*"), reverse=True):
            if path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.01)
