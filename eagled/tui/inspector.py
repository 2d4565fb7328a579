"""A sample as rows of styled text: special tokens marked, trained text told from masked.

Guarantee: what trains is underlined and has `┃` before its line, a special id stands in `⟦⟧`: none
of it is told by colour alone. Text that only looks like a special token stays plain and is
counted. Only the rows that are seen are styled. Price: 300 KB are cut into rows in well under a
second.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import get_character_cell_size

from eagled.printable import printable
from eagled.tui.lines import Line, Span, Style
from eagled.tui.records import Piece, SampleText

GUTTER = 3
_LOOKS_SPECIAL = re.compile(r"<[|\uff5c][^<>\n]{1,60}[|\uff5c]>")
_MAX_MATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Doc:
    """A sample's text cut for one width.

    Attributes:
        starts: offsets in `text` at which `styles` begin; the last one is the end.
        trained: whether the run that begins there trains.
        rows: (first, end) offsets of each row.
        look_alikes: plain text that looks like a special token.
    """

    text: str
    starts: tuple[int, ...]
    styles: tuple[Style, ...]
    trained: tuple[bool, ...]
    rows: tuple[tuple[int, int], ...]
    width: int
    special: tuple[tuple[str, int], ...]
    look_alikes: int

    def line(self, row: int, match: tuple[int, int] | None = None) -> Line:
        """Return one row with its gutter."""
        first, end = self.rows[row]
        at = bisect_right(self.starts, first) - 1
        spans: list[Span] = []
        marked = False
        while at < len(self.styles) and self.starts[at] < end:
            a, b = max(first, self.starts[at]), min(end, self.starts[at + 1])
            spans += _with_match(self.text, a, b, self.styles[at], match)
            marked = marked or (self.trained[at] and b > a)
            at += 1
        return ((" ", "bold"), ("┃ " if marked else "  ", "bold"), *spans)

    def row_of(self, offset: int) -> int:
        """Return the row that an offset is in."""
        return max(0, bisect_right(self.rows, (offset, len(self.text) + 1)) - 1)

    def edges(self) -> list[int]:
        """Return the rows at which training begins or ends."""
        found = [s for s, (a, b) in zip(self.starts[1:], pairwise(self.trained), strict=False)
                 if a != b]  # fmt: skip
        return sorted({self.row_of(offset) for offset in found})

    def specials(self) -> list[int]:
        """Return the rows with a special token."""
        return sorted({
            self.row_of(s) for s, style in zip(self.starts, self.styles, strict=False)
            if style == "special"
        })  # fmt: skip

    def find(self, words: str) -> list[tuple[int, int]]:
        """Return where `words` stand, whatever their case."""
        if not words:
            return []
        found = re.finditer(re.escape(words), self.text, re.IGNORECASE)
        return [m.span() for m, _ in zip(found, range(_MAX_MATCHES), strict=False)]


def _with_match(
    text: str, a: int, b: int, style: Style, match: tuple[int, int] | None
) -> Iterator[Span]:
    if match is None or match[1] <= a or match[0] >= b:
        yield text[a:b], style
        return
    first, end = max(a, match[0]), min(b, match[1])
    yield from ((text[a:first], style), (text[first:end], "match"), (text[end:b], style))


def make_doc(found: SampleText, width: int, *, ids: bool) -> Doc:
    """Return a sample cut for `width` cells; as ids when asked or when there is no text."""
    runs = list(_id_runs(found) if ids or found.pieces is None else _text_runs(found.pieces))
    text = "".join(run[0] for run in runs)
    starts, at = [], 0
    for run in runs:
        starts.append(at)
        at += len(run[0])
    pieces = found.pieces or ()
    return Doc(
        text=text,
        starts=(*starts, at),
        styles=tuple(run[1] for run in runs),
        trained=tuple(run[2] for run in runs),
        rows=tuple(wrap(text, max(1, width - GUTTER))),
        width=width,
        special=tuple(Counter(shown(p.text) for p in pieces if p.special).most_common(8)),
        look_alikes=sum(len(_LOOKS_SPECIAL.findall(p.text)) for p in pieces if not p.special),
    )


def shown(text: str) -> str:
    """Return text that a terminal can be given; ends of lines and tabs are marked."""
    safe = printable(text, None, lines=True)
    return safe.replace("\t", "⇥").replace("\n", "⏎\n")


def _text_runs(pieces: Iterable[Piece]) -> Iterator[tuple[str, Style, bool]]:
    for piece in pieces:
        if piece.special:
            yield f"⟦{printable(piece.text, 60)}⟧", "special", piece.trained
        else:
            yield shown(piece.text), "trained" if piece.trained else "dim", piece.trained


def _id_runs(found: SampleText) -> Iterator[tuple[str, Style, bool]]:
    for ids, trained in ((found.prompt_ids, False), (found.output_ids, True)):
        if ids:
            text = " ".join(map(str, ids)) + "\n"
            yield text, "trained" if trained else "dim", trained


def wrap(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of rows of at most `width` cells; line feeds are left out."""
    at = 0
    for line in text.split("\n"):
        if line.isascii():
            cuts = range(0, max(len(line), 1), width)
            yield from ((at + c, at + min(len(line), c + width)) for c in cuts)
        else:
            yield from ((at + a, at + b) for a, b in _wide_rows(line, width))
        at += len(line) + 1


def _wide_rows(line: str, width: int) -> Iterator[tuple[int, int]]:
    first, cells = 0, 0
    for i, char in enumerate(line):
        size = 1 if char.isascii() else get_character_cell_size(char)
        if cells + size > width and i > first:
            yield first, i
            first, cells = i, 0
        cells += size
    yield first, len(line)
