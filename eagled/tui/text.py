"""Numbers, bars and sparklines as text of a known width.

Guarantee: `fit` returns exactly the cells asked for, wide characters counted as two; a number that
is missing shows as `MISSING`. Nothing here knows Textual, so all of it is tested without a
terminal. Text from outside must have gone through `eagled.printable` before it comes here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

MISSING = "–"  # noqa: RUF001 - a dash as in tables
CUT = "…"
_SPARKS = "▁▂▃▄▅▆▇█"
_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86_400
_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_ASCII = dict(
    zip(
        "▁▂▃▄▅▆▇█░▒━─│▸●○✓◂·–…→×≥⸢⸥⟦⟧┃⏎⇥◦",  # noqa: RUF001 - signs on the screen
        "_.-:=+*#.==-|>*ov<.-~>x><>[]|$>o",
        strict=True,
    )
)
_SMALL = 10  # below this a rate shows one decimal


def cells_of(text: str) -> int:
    """Return how many cells printable text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` in exactly `width` cells: padded, or cut with a mark at its end."""
    if width <= 0:
        return ""
    cells = len(text) if text.isascii() else cell_len(text)
    if cells > width:
        return set_cell_size(text, width - 1) + CUT
    pad = " " * (width - cells)
    return pad + text if right else text + pad


def wrapped(text: str, width: int) -> tuple[str, str]:
    """Return the part of `text` that fits `width` cells, broken at a space, and the rest."""
    if cells_of(text) <= width:
        return text, ""
    head = set_cell_size(text, width)
    at = head.rfind(" ")
    cut = at if at > 0 else len(head.rstrip())
    return text[:cut], text[cut:].strip()


def to_ascii(text: str) -> str:
    """Return `text` with ASCII characters only, in the same number of cells."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _ASCII.get(c, "?" * cell_len(c)) for c in text)


def count(value: float | None) -> str:
    """Return a whole number with thousands apart: `31 204`."""
    return MISSING if value is None else f"{round(value):,}".replace(",", " ")


def rate(value: float | None) -> str:
    """Return a rate: `2 140`, or `9.4` below ten."""
    if value is None:
        return MISSING
    return f"{value:.1f}" if 0 < abs(value) < _SMALL else count(value)


def decimals(value: float | None) -> str:
    """Return a number with three decimals: `2.317`."""
    return MISSING if value is None else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Return a share of one as `71%`, or `0.4%` below one percent."""
    if share is None:
        return MISSING
    value = share * 100
    return f"{value:.1f}%" if 0 < value < 1 else f"{value:.0f}%"


def duration(seconds: float | None) -> str:
    """Return a length of time in at most six cells: `1.9s`, `38s`, `1m38`, `5h20`, `4d12h`."""
    if seconds is None or seconds < 0:
        return MISSING
    if seconds < _SMALL:
        return f"{seconds:.1f}s"
    if seconds < _MINUTE_S:
        return f"{int(seconds)}s"
    if seconds < _HOUR_S:
        return f"{int(seconds // _MINUTE_S)}m{int(seconds % _MINUTE_S):02d}"
    if seconds < _DAY_S:
        return f"{int(seconds // _HOUR_S)}h{int(seconds % _HOUR_S // _MINUTE_S):02d}"
    days = int(seconds // _DAY_S)
    return f"{days}d{int(seconds % _DAY_S // _HOUR_S):02d}h" if days < 1000 else "years"  # noqa: PLR2004 - width


def size(n_bytes: float | None) -> str:
    """Return bytes in decimal units with three digits: `9.24 TB`."""
    if n_bytes is None:
        return MISSING
    value, unit = float(n_bytes), 0
    while abs(value) >= 999.5 and unit < len(_SIZE_UNITS) - 1:  # noqa: PLR2004 - rounds to 1000
        value, unit = value / 1000, unit + 1
    if unit == 0 or abs(value) >= 100:  # noqa: PLR2004 - three digits
        return f"{value:.0f} {_SIZE_UNITS[unit]}"
    return (
        f"{value:.1f} {_SIZE_UNITS[unit]}"
        if abs(value) >= _SMALL
        else f"{value:.2f} {_SIZE_UNITS[unit]}"
    )


def bar(share: float | None, width: int) -> str:
    """Return a progress bar of `width` cells; a started one shows at least one heavy cell."""
    if share is None:
        return " " * width
    clamped = min(max(share, 0.0), 1.0)
    full = math.floor(clamped * width)
    if clamped > 0 and full == 0:
        full = 1
    return "━" * full + "─" * (width - full)


def disk_bar(used: float, planned: float, line: float, total: float, width: int) -> str:
    """Return `█` used, `▒` still planned, `·` free, with `│` where the reserve begins."""
    if total <= 0:
        return "·" * width
    n_used = min(width, round(used / total * width))
    n_plan = max(0, min(width, round((used + planned) / total * width)) - n_used)
    cells = list("█" * n_used + "▒" * n_plan + "·" * (width - n_used - n_plan))
    at = round(line / total * width)
    if 0 <= at < width:
        cells[at] = "│"
    return "".join(cells)


def _top(values: Sequence[float]) -> float:
    """The 99th percentile, so that one spike does not flatten the rest."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * 0.99) - 1]


def resample(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` means over equal parts of `values`, newest last."""
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def spark(values: Sequence[float], width: int) -> str:
    """Return a sparkline from zero to the 99th percentile, right-aligned in `width` cells.

    The full block is never used, so that sparklines above each other stay apart.
    """
    return _spark(tuple(values), width)


@lru_cache(maxsize=128)  # a history changes every fifth second, the screen is drawn several times
def _spark(values: tuple[float, ...], width: int) -> str:
    points = resample(values, width)
    if not points:
        return " " * width
    top = _top(values)  # not of the means: they hide how short a spike was
    levels = [
        _SPARKS[0] if top <= 0 else _SPARKS[min(6, max(0, math.ceil(v / top * 7) - 1))]
        for v in points
    ]
    return "".join(levels).rjust(width)


def chart(values: Sequence[float], width: int, height: int, top: float) -> list[str]:
    """Return a block chart from zero to `top` in `height` rows of `width` cells, newest right."""
    return list(_chart(tuple(values), width, height, top))


@lru_cache(maxsize=16)
def _chart(values: tuple[float, ...], width: int, height: int, top: float) -> tuple[str, ...]:
    points = resample(values, width)
    eighths = [0 if top <= 0 else round(min(v, top) / top * height * 8) for v in points]
    rows = []
    for row in range(height - 1, -1, -1):
        cells = [e - row * 8 for e in eighths]
        line = "".join(" " if c <= 0 else _SPARKS[min(c, 8) - 1] for c in cells)
        rows.append(line.rjust(width))
    return tuple(rows)


def nice_top(values: Sequence[float]) -> float:
    """Return the round number at or above the largest value that a chart's axis ends at."""
    peak = max(values, default=0.0)
    if peak <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(peak))
    return next(step * unit for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * unit >= peak)
