"""The one place where text from outside becomes safe to print.

Guarantee: the result holds no control, escape, bidirectional-override, zero-width or surrogate
character that a terminal or a log reader could act upon; each is shown as a visible sign. Line
feeds and tabs stay only when asked for. Every terminal, log line and error message that carries
dataset, model or server text goes through `printable`; so a secret that `hide` was told of cannot
come back out of a server's error page either.
"""

from __future__ import annotations

import re

_PICTURE_BASE = 0x2400  # U+2400.. are the visible pictures of U+0000..U+001F
_DELETE_PICTURE = "\u2421"
_NAMED = {
    0x200B: "ZWSP", 0x200C: "ZWNJ", 0x200D: "ZWJ", 0x200E: "LRM", 0x200F: "RLM",
    0x2028: "LSEP", 0x2029: "PSEP", 0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO",
    0x202E: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
    0xFEFF: "BOM",
}  # fmt: skip
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_CUT_MARK = "…"
_HIDDEN_MARK = "⸢SECRET⸥"
_MIN_SECRET = 8  # shorter ones would garble ordinary text
_hidden: set[str] = set()


def _sign(char: str) -> str:
    code = ord(char)
    if code < 0x20:  # noqa: PLR2004 - end of the C0 block
        return chr(_PICTURE_BASE + code)
    if code == 0x7F:  # noqa: PLR2004 - DEL
        return _DELETE_PICTURE
    return f"⸢{_NAMED.get(code, f'{code:04X}')}⸥"


def printable(text: object, limit: int | None = 500, *, lines: bool = False) -> str:
    """Return `text` with every unsafe character visible.

    Args:
        text: anything; `str()` of it is shown.
        limit: characters kept; a longer text ends in a cut mark. None keeps all.
        lines: keep line feeds and tabs as they are (for multi-line views).
    """
    raw = str(text)
    for secret in _hidden:
        raw = raw.replace(secret, _HIDDEN_MARK)
    if limit is not None and len(raw) > limit:
        raw = raw[: limit - 1] + _CUT_MARK
    keep = "\n\t" if lines else ""
    return _UNSAFE.sub(lambda m: m[0] if m[0] in keep else _sign(m[0]), raw)


def hide(secret: str) -> None:
    """Never show `secret` again in this process: whoever reads a key calls this once.

    A secret of fewer than 8 characters is ordinary text and cannot be hidden.
    """
    if len(secret) >= _MIN_SECRET:
        _hidden.add(secret)
