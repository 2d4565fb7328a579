"""What this eagled is made of: the words after the version in `eagled --version` and in reports.

The commit comes from the built package (`hatch_build.py` puts it there), or from the
checkout that the code runs from. Standard library only.
"""

from __future__ import annotations

import platform
import sqlite3
from pathlib import Path

from eagled.control.protocol import API_VERSION

COMMIT_NAME = "_commit.txt"
_CHARS = 12
_PACKAGE = Path(__file__).parent


def commit(package: Path = _PACKAGE) -> str:
    """Return the commit that the package was built from, shortened; empty when unknown."""
    found = _read(package / COMMIT_NAME) or _head(package.parent / ".git")
    return found[:_CHARS]


def build_info() -> str:
    """Return what a report of a fault has to name beside the version."""
    made = commit()
    parts = [
        *([f"commit {made}"] if made else []),
        f"control API {API_VERSION}",
        f"Python {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
        f"{platform.system()} {platform.machine()}",
    ]
    return ", ".join(parts)


def _head(git: Path) -> str:
    """Return the commit that a checkout is at, without running git."""
    head = _read(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    packed = (line.split(" ") for line in _read(git / "packed-refs").splitlines())
    return _read(git / name) or next((line[0] for line in packed if line[-1] == name), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
