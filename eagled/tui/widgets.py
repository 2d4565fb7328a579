"""The two widgets of the screen: a panel of lines, and a table with a cursor.

Both draw by Textual's Line API and send only the cells that changed: a stock DataTable repaints
whole for one changed cell (about 14 KB a tick at 160x50 against 3 KB), which matters over ssh.
A line is turned into a strip once, when it has changed; a panel has no border, padding or tint that
Textual would have to add, so its strips are handed over as they are.
A panel that cannot be built says so in its own place; the rest of the screen goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.errors import NoWidget
from textual.geometry import Offset, Region
from textual.strip import Strip
from textual.widget import Widget

from eagled.printable import printable
from eagled.tui.lines import Line, Style, clip, rule
from eagled.tui.panels import View
from eagled.tui.patch import Patch
from eagled.tui.tables import TableText
from eagled.tui.text import cells_of, to_ascii

_COLOUR: dict[Style, RichStyle] = {
    "": RichStyle(),
    "dim": RichStyle(dim=True),
    "bold": RichStyle(bold=True),
    "title": RichStyle(bold=True, color="cyan"),
    "ok": RichStyle(bold=True, color="green"),
    "warn": RichStyle(bold=True, color="yellow"),
    "bad": RichStyle(bold=True, color="red"),
    "spark": RichStyle(color="cyan"),
    "bar": RichStyle(color="blue"),
    "trained": RichStyle(underline=True),
    "special": RichStyle(bold=True, color="magenta"),
    "match": RichStyle(reverse=True, bold=True),
}
_NO_COLOUR: dict[Style, RichStyle] = {
    "": RichStyle(),
    "dim": RichStyle(dim=True),
    "bold": RichStyle(bold=True),
    "title": RichStyle(bold=True, underline=True),
    "ok": RichStyle(bold=True),
    "warn": RichStyle(bold=True),
    "bad": RichStyle(bold=True, reverse=True),
    "spark": RichStyle(),
    "bar": RichStyle(),
    "trained": RichStyle(underline=True),
    "special": RichStyle(bold=True),
    "match": RichStyle(reverse=True, bold=True),
}
_LIGHT: dict[Style, RichStyle] = {  # yellow and cyan can hardly be read on white
    **_COLOUR,
    "title": RichStyle(bold=True, color="blue"),
    "warn": RichStyle(bold=True, color="magenta"),
    "spark": RichStyle(color="blue"),
}
_CURSOR = RichStyle(reverse=True, bold=True)  # one style: colours under reverse are hard to read


@dataclass(frozen=True)
class Look:
    """How style names become terminal styles; `light` is for a light background."""

    colour: bool = True
    ascii_only: bool = False
    light: bool = False

    def strip(self, drawn: Drawn, width: int, *, dimmed: bool) -> Strip:
        """Return a line of `width` cells as a strip."""
        styles = (_LIGHT if self.light else _COLOUR) if self.colour else _NO_COLOUR
        line = drawn.line
        if self.ascii_only:
            line = tuple((to_ascii(text), name) for text, name in line)
        if dimmed:
            styles = dict.fromkeys(styles, styles["dim"])
        if drawn.cursor:  # blocks in reverse would show the opposite
            styles = {**dict.fromkeys(styles, _CURSOR), "spark": styles["spark"]}
        return Strip([Segment(text, styles[name]) for text, name in line], width)


@dataclass(frozen=True)
class Drawn:
    """A line as it stands on the screen, in exactly its width; `cursor` draws it in reverse."""

    line: Line
    cursor: bool = False


_BLANK = Drawn(())
_Change = tuple[int, Drawn, Drawn]  # line, what stood there, what stands there now


def changed_cells(old: Drawn, new: Drawn) -> tuple[int, int]:
    """Return (first, end) of the cells in which two lines differ; empty when they do not."""
    if old == new:
        return (0, 0)
    head, tail = _same_ends(old, new)
    before, after = old.line, new.line
    first = _cells(before[:head])
    was, now = (_cells(spans[head : len(spans) - tail]) for spans in (before, after))
    if was == now:
        return (first, first + now)
    return (first, first + max(was, now) + _cells(before[len(before) - tail :]))


def _same_ends(old: Drawn, new: Drawn) -> tuple[int, int]:
    """Return how many spans two lines have in common at their beginning and at their end."""
    before, after = old.line, new.line
    if old.cursor != new.cursor:
        return 0, 0
    least = min(len(before), len(after))
    head = 0
    while head < least and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < least - head and before[~tail] == after[~tail]:
        tail += 1
    return head, tail


def _piece(old: Drawn, new: Drawn) -> tuple[int, Drawn]:
    """Return where two lines of one width begin to differ, and what stands there now."""
    head, tail = _same_ends(old, new)
    line = new.line
    return _cells(line[:head]), Drawn(line[head : len(line) - tail], new.cursor)


def _cells(line: Line) -> int:
    cells = 0
    for text, _ in line:
        cells += len(text) if text.isascii() else cells_of(text)
    return cells


Build = Callable[[View, int, int], Sequence[Line]]


class Panel(Widget):
    """Lines made from the view; `own_height` makes it as tall as they are many."""

    DEFAULT_CSS = "Panel { height: 1fr; width: 1fr; }"

    def __init__(
        self, build: Build, look: Look, *, own_height: bool = False, widget_id: str | None = None
    ) -> None:
        super().__init__(id=widget_id)
        self._build = build
        self._look = look
        self._own_height = own_height
        self._view: View | None = None
        self._drawn: list[Drawn] = []
        self._drawn_width = 0
        self._strips: dict[int, tuple[Drawn, Strip]] = {}  # by line, with what each was made of
        self._strips_for = (0, False)  # width, dimmed
        self._dimmed = False
        self._height = -1  # not set yet

    def show(self, view: View, patch: Patch | None = None) -> None:
        """Draw a new view; only what differs goes to the terminal, by `patch` if there is one."""
        self._view = view
        dimmed = self.dims and view.link.kind in {"STALE", "CONNECTING", "DENIED", "VERSION"}
        if dimmed != self._dimmed:
            self._dimmed = dimmed
            self.refresh()
        if self._is_laid_out():
            self.rebuild(patch)

    def _is_laid_out(self) -> bool:
        """Whether the panel has a place on the screen; else it is built when it gets one."""
        side = self.parent
        return self.display and (not isinstance(side, Widget) or side.display)

    @property
    def dims(self) -> bool:
        """Whether the panel goes dim when its numbers are old."""
        return True

    def rebuild(self, patch: Patch | None = None) -> None:
        """Make the lines anew from the view that is shown."""
        if self._view is None:
            return
        width, height = self.outer_size
        try:
            drawn = self.draw(self._view, width, height)
        except Exception as error:  # noqa: BLE001 - one panel's bug must not end the screen
            text = printable(f" cannot show this: {type(error).__name__}: {error}", 200)
            drawn = [Drawn(clip(((text, "bad"),), width))]
        place = self._place_on_screen() if patch is not None else None
        self._drawn_width = width
        old, self._drawn = self._drawn, drawn
        if self._own_height and len(drawn) != self._height:
            self.styles.height = self._height = len(drawn)
        changed = []
        for y, (before, after) in enumerate(zip_longest(old, drawn, fillvalue=_BLANK)):
            if before == after:
                drawn[y : y + 1] = [before]  # its strip is kept
            elif y < height:
                changed.append((y, before, after))
        if patch is not None and place is not None:
            self._send(changed, place, patch)
        else:
            self._refresh_lines(changed)

    def _place_on_screen(self) -> Offset | None:
        """Return where the panel's cells can be sent to; None: Textual has to draw them."""
        try:
            found = self.screen.find_widget(self)
        except NoWidget:
            return None
        size = found.region.size
        as_drawn = size == self.outer_size and size.width == self._drawn_width
        return (
            found.region.offset if as_drawn and found.clip.contains_region(found.region) else None
        )

    def _send(self, changed: list[_Change], place: Offset, patch: Patch) -> None:
        for y, before, after in changed:
            x, piece = _piece(before, after if after is not _BLANK else self._blank())
            cells = _cells(piece.line)
            if cells:
                strip = self._look.strip(piece, cells, dimmed=self._dimmed)
                patch.pieces.append((place.x + x, place.y + y, strip))

    def _blank(self) -> Drawn:
        return Drawn(clip((), self._drawn_width))

    def _refresh_lines(self, changed: list[_Change]) -> None:
        spans = ((y, *changed_cells(before, after)) for y, before, after in changed)
        regions = [Region(first, y, end - first, 1) for y, first, end in spans if end > first]
        if regions:
            self.refresh(*regions)

    def draw(self, view: View, width: int, height: int) -> list[Drawn]:
        """Return the lines for a size in cells."""
        return [Drawn(clip(line, width)) for line in self._build(view, width, height)]

    def render_line(self, y: int) -> Strip:
        """Return one line of the panel."""
        width = self.outer_size.width
        if self._strips_for != (width, self._dimmed):
            self._strips.clear()
            self._strips_for = (width, self._dimmed)
        drawn = self._drawn[y] if y < len(self._drawn) else _BLANK
        kept = self._strips.get(y)
        if kept is not None and kept[0] is drawn:
            return kept[1]
        fits = drawn
        if width != self._drawn_width or drawn is _BLANK:
            fits = Drawn(clip(drawn.line, width), drawn.cursor)
        strip = self._look.strip(fits, width, dimmed=self._dimmed)
        self._strips[y] = (drawn, strip)
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a region: those of `render_line`, without what styles could add."""
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            background = self.background_colors[1]
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        if crop.column_span != (0, self.outer_size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def on_resize(self, _: events.Resize) -> None:
        """Make the lines for the new size."""
        self.rebuild()

    def on_show(self, _: events.Show) -> None:
        """Make the lines that were not needed while the panel was hidden."""
        self.rebuild()


class Header(Panel):
    """The panel that never goes dim: it says why the others did."""

    @property
    def dims(self) -> bool:
        """Never."""
        return False


BuildTable = Callable[[View, int], TableText]


@dataclass
class _Cursor:
    """The row that keys act on: its key, and where it stood, for when the key goes away."""

    key: str | None = None
    index: int = 0
    top: int = 0
    keys: list[str] = field(default_factory=list)

    def follow(self, keys: list[str]) -> None:
        """Keep to the key; when it is gone, to the row now in its place."""
        self.keys = keys
        if self.key in keys:
            self.index = keys.index(self.key)
        elif keys:
            self.index = min(self.index, len(keys) - 1)
            self.key = keys[self.index]
        else:
            self.key, self.index = None, 0

    def move(self, to: int) -> None:
        """Go to a row by place, held inside the table."""
        if self.keys:
            self.index = min(max(0, to), len(self.keys) - 1)
            self.key = self.keys[self.index]

    def scroll(self, room: int) -> int:
        """Return the first row shown so that the cursor is among `room` rows."""
        self.top = min(max(self.top, self.index - room + 1), self.index)
        self.top = max(0, min(self.top, len(self.keys) - room))
        return self.top


class Table(Panel, can_focus=True):
    """A table whose cursor follows the row's key, not its place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "row up", id="row.up"),
        Binding("down,j", "move(1)", "row down", id="row.down"),
        Binding("pageup", "page(-1)", "page up", id="row.page_up"),
        Binding("pagedown", "page(1)", "page down", id="row.page_down"),
        Binding("home,g", "jump(0)", "first row", id="row.first"),
        Binding("end,G", "jump(-1)", "last row", id="row.last"),
    ]

    def __init__(
        self, title: str, build: BuildTable, look: Look, *, widget_id: str | None = None
    ) -> None:
        super().__init__(lambda *_: (), look, widget_id=widget_id)
        self._title = title
        self._build_table = build
        self._cursor = _Cursor()
        self._room = 1
        self._wanted = 3

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        return self._cursor.key

    def draw(self, view: View, width: int, height: int) -> list[Drawn]:
        """Return title, heads, the rows that fit, and the sum."""
        table = self._build_table(view, width)
        self._cursor.follow([key for key, _ in table.rows])
        n_rows = len(table.rows)
        foot = [] if table.foot is None else [table.foot]
        self._wanted = n_rows + 2 + len(foot)
        if height and height < self._wanted:
            foot = []  # a row says more than the sum, which the header has
        self._room = max(1, (height or self._wanted) - 2 - len(foot))
        top = self._cursor.scroll(self._room)
        shown = table.rows[top : top + self._room]
        place = self._place(n_rows, top, len(shown))
        title = rule(self._title, width, place, focused=self.has_focus)
        rows = [self._row(key, line, width) for key, line in shown]
        ends = [Drawn(clip(line, width)) for line in (title, table.head, *foot)]
        return [*ends[:2], *rows, *ends[2:]]

    def _row(self, key: str, line: Line, width: int) -> Drawn:
        if key != self._cursor.key:
            return Drawn(clip(line, width))
        return Drawn(clip((("▸", "bold"), *line[1:]), width), cursor=self.has_focus)

    @property
    def wanted(self) -> int:
        """Lines that every row, the title and the sum would fill."""
        return self._wanted

    def set_height(self, lines: int) -> None:
        """Take this many lines of the screen."""
        if lines != self._height:
            self.styles.height = self._height = lines

    @staticmethod
    def _place(n_rows: int, top: int, n_shown: int) -> str:
        if n_shown == n_rows:
            return f"{n_rows}"
        return f"{top + 1}–{top + n_shown} of {n_rows}"  # noqa: RUF001 - a range

    def on_focus(self) -> None:
        """Show the cursor."""
        self.rebuild()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.rebuild()

    def on_click(self, event: events.Click) -> None:
        """Go to the row that was clicked."""
        place = self._cursor.top + event.y - 2
        if event.y >= 2 and place < len(self._cursor.keys):  # noqa: PLR2004 - below title and heads
            self.action_jump(place)

    def on_mouse_scroll_down(self, _: events.MouseScrollDown) -> None:
        """Go down."""
        self.action_move(1)

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        """Go up."""
        self.action_move(-1)

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._cursor.move(self._cursor.index + by)
        self.rebuild()

    def action_page(self, by: int) -> None:
        """Move the cursor by a page."""
        self.action_move(by * max(1, self._room - 1))

    def action_jump(self, to: int) -> None:
        """Go to a row by place; -1 is the last."""
        self._cursor.move(to if to >= 0 else len(self._cursor.keys) - 1)
        self.rebuild()
