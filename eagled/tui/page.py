"""The widget of every view but the first: a head, rows with a cursor, and what they mean below.

The lines come from a pure function of the view, the size and the selected row, so a view is tested
without a terminal. Only the rows that are seen are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from textual import events
from textual.message import Message

from eagled.tui.lines import Line, clip, rule
from eagled.tui.panels import View
from eagled.tui.tables import TableText
from eagled.tui.widgets import Drawn, Look, Table


@dataclass(frozen=True, slots=True)
class PageText:
    """One view as lines; `row` makes the line of a key when it is seen."""

    title: str
    keys: Sequence[str] = ()
    row: Callable[[int], Line] = lambda _: ()
    top: Sequence[Line] = ()
    head: Line = ()
    bottom: Sequence[Line] = ()
    empty: str = "none"
    right: str = ""
    marks: frozenset[str] = field(default_factory=frozenset)


BuildPage = Callable[[View, int, int, str | None], PageText]


class Page(Table):
    """A view with a cursor; `follow` keeps it on the last row."""

    class Past(Message):
        """The cursor was moved beyond an end of the rows."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Chosen(Message):
        """A row was clicked a second time."""

    class Sized(Message):
        """The page was given a size."""

    def __init__(self, build: BuildPage, look: Look, *, widget_id: str) -> None:
        super().__init__("", lambda *_: _NOTHING, look, widget_id=widget_id)
        self._build_page = build
        self._first_row = 0
        self.follow = False

    def draw(self, view: View, width: int, height: int) -> list[Drawn]:
        """Return the lines; what is below the rows gives way before they do."""
        page = self._build_page(view, width, height, self._cursor.key)
        before = self._cursor.key
        self._cursor.follow(list(page.keys))
        if self.follow:
            self._cursor.move(len(page.keys) - 1)
        if self._cursor.key != before:
            page = self._build_page(view, width, height, self._cursor.key)
        top = list(page.top)[: max(0, height - 4)]
        fixed = len(top) + 1 + bool(page.head)
        wanted = max(1, len(page.keys))
        bottom = list(page.bottom)[: max(0, height - fixed - min(wanted, max(3, height // 3)))]
        self._room = max(1, height - fixed - len(bottom))
        self._first_row = fixed
        first = self._cursor.scroll(self._room)
        seen = range(first, min(first + self._room, len(page.keys)))
        rows = [self._marked_row(page, i, width) for i in seen]
        if not rows:
            rows = [Drawn(clip((("  " + page.empty, "dim"),), width))]
        rows += [Drawn(clip((), width))] * (self._room - len(rows))
        place = page.right or self._place(len(page.keys), first, len(seen))
        heads = [*top, rule(page.title, width, place, focused=self.has_focus)]
        heads += [page.head] if page.head else []
        return [*_plain(heads, width), *rows, *_plain(bottom, width)]

    def _marked_row(self, page: PageText, i: int, width: int) -> Drawn:
        drawn = self._row(page.keys[i], page.row(i), width)
        if page.keys[i] not in page.marks:
            return drawn
        return Drawn(clip((("*", "bold"), *drawn.line[1:]), width), drawn.cursor)

    def action_move(self, by: int) -> None:
        """Move by rows; beyond an end the app is told."""
        at, n = self._cursor.index + by, len(self._cursor.keys)
        if by < 0:
            self.follow = False
        if n and not 0 <= at < n and (self._cursor.index in (0, n - 1)):
            self.post_message(self.Past(by))
        super().action_move(by)

    def action_jump(self, to: int) -> None:
        """Go to a row by place."""
        self.follow = self.follow and to < 0
        super().action_jump(to)

    def on_resize(self, _: events.Resize) -> None:
        """Tell the app, which may hold things made for a width."""
        self.post_message(self.Sized())

    def select(self, key: str) -> None:
        """Put the cursor on a row."""
        self._cursor.key = key

    def on_click(self, event: events.Click) -> None:
        """Go to the row that was clicked; clicked again, it opens."""
        place = self._cursor.top + event.y - self._first_row
        if event.y >= self._first_row and place < len(self._cursor.keys):
            again = place == self._cursor.index
            self.action_jump(place)
            if again:
                self.post_message(self.Chosen())


def _plain(lines: Sequence[Line], width: int) -> list[Drawn]:
    return [Drawn(clip(line, width)) for line in lines]


_NOTHING = TableText((), ())
