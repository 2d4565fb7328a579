"""Whether a shard file has the bytes that it had when it was written: its name says so."""

from __future__ import annotations

import re
from pathlib import Path

from eagled.artifacts import sha256_file
from eagled.errors import ArtifactError

_NAME = re.compile(r"^shard-([0-9a-f]{24})\.")


def check_name(path: Path) -> None:
    """Read `path` whole and compare its SHA-256 with the digits in its name.

    Raises:
        ArtifactError: if they differ, or the name carries none.
    """
    match = _NAME.match(path.name)
    if match is None:
        raise ArtifactError(f"{path}: the name carries no checksum; it is not a shard of eagled")
    found = sha256_file(path)
    if not found.startswith(match[1]):
        raise ArtifactError(
            f"{path}: altered: its SHA-256 is {found[:24]}, its name says {match[1]}"
        )
