"""The API key of a server: from systemd's credentials, or from a file that only its owner reads.

Guarantee: a key never stands in an environment variable, an argument or a message: text that holds
one is shown without it, even where a server sends it back (`printable.hide`). Under systemd the
unit's `LoadCredential=` hands the file over, so that the file itself can belong to root.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from eagled.errors import AuthError
from eagled.printable import hide

CREDENTIALS_ENV = "CREDENTIALS_DIRECTORY"
_OWNER_ONLY = 0o077
_DIGEST_CHARS = 12


def credential_name(path: Path) -> str:
    """Return the name under which the unit passes the key file at `path`."""
    return f"key-{hashlib.sha256(str(path).encode()).hexdigest()[:_DIGEST_CHARS]}"


def read_key(
    path: Path, environ: Mapping[str, str] | None = None, *, what: str = "servers.api_key_file"
) -> str:
    """Return the key of a file; systemd's copy of it where there is one.

    Args:
        path: the file.
        environ: the environment; None is the process's own.
        what: who named the file, for messages.

    Raises:
        AuthError: if the file is missing, empty, not one line of ASCII, or readable by others.
    """
    folder = (os.environ if environ is None else environ).get(CREDENTIALS_ENV)
    handed = Path(folder) / credential_name(path) if folder else None
    if handed is not None and handed.is_file():
        return _key(handed, what)  # its mode is systemd's business
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise AuthError(f"{what}: cannot read {path}: {exc.strerror}") from exc
    if stat.S_IMODE(mode) & _OWNER_ONLY:
        raise AuthError(f"{what}: {path} is readable by others; run chmod 600")
    return _key(path, what)


def _key(path: Path, what: str) -> str:
    try:
        key = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        raise AuthError(f"{what}: {path} holds something that is no key") from None
    except OSError as exc:
        raise AuthError(f"{what}: cannot read {path}: {exc.strerror}") from exc
    if not key.isprintable() or not key:
        raise AuthError(f"{what}: {path} must hold one line, the key")
    hide(key)
    return key
