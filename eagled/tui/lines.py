"""Lines of styled text, independent of Textual, and the tables made of them.

A `Line` is a tuple of (text, style name) spans. Style names are few and fixed (`STYLES`), so that
colour, no colour and plain text are one decision made in one place. Tables have fixed widths:
a column is dropped when it does not fit, never squeezed, and no width depends on the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from eagled.tui.text import cells_of, fit

Style = Literal[
    "", "dim", "bold", "title", "ok", "warn", "bad", "spark", "bar", "trained", "special", "match"
]
STYLES: tuple[Style, ...] = (
    "", "dim", "bold", "title", "ok", "warn", "bad", "spark", "bar", "trained", "special", "match",
)  # fmt: skip
Span = tuple[str, Style]
Line = tuple[Span, ...]
Row = TypeVar("Row")


def plain(line: Line) -> str:
    """Return the characters of a line."""
    return "".join(text for text, _ in line)


def clip(line: Line, width: int) -> Line:
    """Return the line in exactly `width` cells: padded, or cut with a mark."""
    left = width
    for i, (text, style) in enumerate(line):
        cells = len(text) if text.isascii() else cells_of(text)  # a call a span would be felt
        if cells > left:
            return tuple(s for s in (*line[:i], (fit(text, left), style)) if s[0])
        left -= cells
    return (*line, (" " * left, "")) if left else line


def rule(title: str, width: int, right: str = "", *, focused: bool = False) -> Line:
    """Return a section's head: `─ TITLE ───────── right ─`."""
    head: Span = (f" {title} ", "title" if focused else "bold")
    tail = f" {right} ─" if right else ""
    dashes = max(0, width - 1 - cells_of(head[0]) - cells_of(tail))
    return clip((("─", "dim"), head, ("─" * dashes + tail, "dim")), width)


def spread(left: Line, right: Line, width: int) -> Line:
    """Return `left` and `right` at the two ends of `width` cells; `right` is never cut first."""
    room = max(0, width - cells_of(plain(right)))
    return clip((*clip(left, room), *right), width)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table.

    Attributes:
        title: head, drawn as wide as the column.
        width: cells.
        cell: what a row shows here.
        rank: 0 stays at every width; of the others the highest goes first.
        grow: cells that it may take beyond `width` when there is room.
        right: aligned to the right.
    """

    title: str
    width: int
    cell: Callable[[Row, int], Span]
    rank: int = 0
    grow: int = 0
    right: bool = True


def choose(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    """Return the columns that fit `width` cells, with the width of each."""
    kept = list(columns)
    while sum(c.width + 1 for c in kept) > width and any(c.rank for c in kept):
        kept.remove(max(kept, key=lambda c: c.rank))
    spare = width - sum(c.width + 1 for c in kept)
    sized = []
    for column in kept:
        extra = max(0, min(column.grow, spare))
        spare -= extra
        sized.append((column, column.width + extra))
    return sized


def head_line(sized: Sequence[tuple[Column[Row], int]]) -> Line:
    """Return the titles of a table."""
    cells = " ".join(fit(c.title, w, right=c.right) for c, w in sized)
    return ((f" {cells}", "dim"),)


def row_line(sized: Sequence[tuple[Column[Row], int]], row: Row) -> Line:
    """Return one row; its first span is one cell, for the cursor's mark."""
    spans: list[Span] = [(" ", "bold")]
    gap = ""
    for column, width in sized:
        text, style = column.cell(row, width)
        if text.isascii() and len(text) <= width:
            text = text.rjust(width) if column.right else text.ljust(width)
        else:
            text = fit(text, width, right=column.right)
        spans.append((gap + text, style))
        gap = " "
    return tuple(spans)
