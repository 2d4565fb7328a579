"""A small file system of its own for a state directory, in a mount namespace of its own.

Nothing outside the namespace sees it, so a test that dies leaves no mount behind. Where a test may
not mount it is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_WAIT_S = 60.0
_PIECE = b"x" * (1 << 16)
_HOLD = (
    'mount "$@" && cp -a "$KEPT/." "$FOLDER" && sync -f "$FOLDER" && echo mounted '
    "&& exec sleep infinity"
)


class SmallDisk:
    """A folder that is a file system of its own for whoever enters its namespace."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.folder = folder
        self._pid = pid

    @property
    def inside(self) -> Path:
        """The folder as the namespace sees it, for a process outside."""
        return Path(f"/proc/{self._pid}/root{self.folder}")

    def argv(self, *command: str) -> list[str]:
        """Return the command line that runs `command` inside."""
        return ["/usr/bin/nsenter", "-t", str(self._pid), "-m", "--", *command]

    def run(self, *command: str) -> None:
        """Run a command inside."""
        subprocess.run(self.argv(*command), check=True, timeout=_WAIT_S)

    def fill(self) -> None:
        """Write a file until nothing more fits."""
        with (self.inside / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(_PIECE)

    def free(self) -> None:
        """Take that file away again."""
        (self.inside / "filler").unlink()

    def bring_out(self) -> None:
        """Copy what is inside to where the folder is outside."""
        shutil.copytree(self.inside, self.folder, dirs_exist_ok=True, ignore=_not_files)


def _not_files(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if n == "lost+found" or (Path(folder) / n).is_socket()]


@contextmanager
def small_disk(folder: Path, *mount: str) -> Iterator[SmallDisk]:
    """Mount `mount ARGUMENTS` over `folder`, with what was in the folder."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    kept = folder.with_name(folder.name + ".kept")
    folder.rename(kept)
    folder.mkdir()
    try:
        holder = subprocess.Popen(
            ["/usr/bin/unshare", "-m", "/bin/sh", "-c", _HOLD, "sh", *mount, str(folder)],
            env={**os.environ, "KEPT": str(kept), "FOLDER": str(folder)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("unshare is not there")
    assert holder.stdout is not None
    try:
        said = holder.stdout.readline()
        if said != "mounted\n":
            pytest.skip(f"this machine does not let a test mount: {said.strip()}")
        yield SmallDisk(folder, holder.pid)
    finally:
        holder.kill()
        holder.communicate()
