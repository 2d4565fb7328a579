"""Make an exported screen picture look the same everywhere.

Textual's export names a web font and leaves the drawing of blocks and lines to whatever font the
reader has, with gaps between rows. Here blocks and lines become rectangles, every word stands at
its own cell, and nothing is fetched from the network. Coupled to the export's form (cells of
12.2 x 24.4, `<text class x y textLength clip-path>`); a test draws a picture and reads it back.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import groupby

from rich.cells import cell_len

CELL = 12.2
ROW = 24.4
_ASCENT = 18.5  # from a row's top to its base line
_TEXT = re.compile(
    r'<text class="(?P<css>[^"]+)" x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="[\d.]+" '
    r'clip-path="(?P<clip>[^"]+)">(?P<text>[^<]*)</text>'
)
_FONT_FACE = re.compile(r"@font-face \{.*?\n    \}\n", re.DOTALL)
_FONTS = '"DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'
_EIGHTHS = {char: i / 8 for i, char in enumerate("▁▂▃▄▅▆▇█", start=1)}
_SHADES = {"░": 0.25, "▒": 0.45, "▓": 0.75}
_STROKES = {"─": 1.6, "━": 6.0, "│": 1.6}
_COLOURS = {"#292929": "#181b21", "#c5c8c6": "#cdd1d8"}  # of the export's theme → of ours


def tidy(svg: str) -> str:
    """Return the picture with blocks drawn, words placed and no outside references."""
    svg = _FONT_FACE.sub("", svg).replace("Fira Code, monospace", _FONTS)
    for theirs, ours in _COLOURS.items():
        svg = svg.replace(theirs, ours)
    svg = _TEXT.sub(lambda m: "".join(_pieces(m)), svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def _kind(char: str) -> str:
    """Characters of one kind are drawn together; a drawn one only with its likes."""
    if char in "\u00a0 ":
        return " "
    return char if char in _EIGHTHS or char in _SHADES or char in _STROKES else "word"


def _pieces(found: re.Match[str]) -> Iterator[str]:
    x, y = float(found["x"]), float(found["y"])
    for kind, group in groupby(html.unescape(found["text"]), _kind):
        text = "".join(group)
        width = cell_len(text) * CELL
        if kind == "word":
            yield (
                f'<text class="{found["css"]}" x="{x:.1f}" y="{y:g}" textLength="{width:.1f}" '
                f'clip-path="{found["clip"]}">{html.escape(text)}</text>'
            )
        elif kind != " ":
            yield _rectangle(found["css"], kind, x, y - _ASCENT, width)
        x += width


def _rectangle(css: str, kind: str, x: float, top: float, width: float) -> str:
    stroke = _STROKES.get(kind)
    share = _EIGHTHS.get(kind, 1.0)
    left, wide, upper, tall = x, width, top + ROW * (1 - share), ROW * share
    if kind == "│":
        left, wide = x + (CELL - (stroke or 0)) / 2, stroke or 0
    elif stroke is not None:
        upper, tall = top + (ROW - stroke) / 2, stroke
    shade = f' opacity="{_SHADES[kind]}"' if kind in _SHADES else ""
    return (
        f'<rect class="{css}" x="{left:.1f}" y="{upper:.2f}" width="{wide:.1f}" '
        f'height="{tall:.2f}"{shade}/>'
    )
