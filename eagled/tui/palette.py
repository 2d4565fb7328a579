"""Everything that can be done, found by typing: the commands of `:` and every key's action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from eagled.tui.dialogs import DIALOG_CSS, FIELD_CSS, Dialog

SHOWN = 11  # entries at once; a small terminal has room for them
_ACTION = "!"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to do.

    `does` is a command, the beginning of one (it ends in a space), or an action after `!`.
    """

    words: str
    what: str
    does: str


def matching(entries: Sequence[Entry], typed: str) -> list[Entry]:
    """Return the entries that hold every typed word, whatever its case; those that begin so first.

    Once the words of an entry's command are typed, its arguments are no longer looked for.
    """
    words = typed.lower().split()
    found = [e for e in entries if all(w in f"{e.words} {e.what}".lower() for w in words)]
    if not found and words:
        found = [e for e in entries if e.words.split()[0].lower() == words[0]]
    return sorted(found, key=lambda e: not e.words.lower().startswith(typed.strip().lower()))


def action_of(answer: str) -> str | None:
    """Return the action that an answer of the palette means; None when it is a command."""
    return answer.removeprefix(_ACTION) if answer.startswith(_ACTION) else None


def action_entry(words: str, what: str, action: str) -> Entry:
    """Return the entry of a key."""
    return Entry(words, what, _ACTION + action)


class Palette(Dialog[str | None]):
    """A line with a list below; up and down choose of the list, else the line itself is meant."""

    CSS = DIALOG_CSS.format(name="Palette", width=76) + FIELD_CSS.replace("NumberDialog", "Palette")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "leave"),
        Binding("down", "move(1)", "next"),
        Binding("up", "move(-1)", "previous"),
    ]

    def __init__(self, entries: Sequence[Entry], *, ascii_only: bool = False) -> None:
        super().__init__()
        self._entries = entries
        self._ascii = ascii_only
        self._found = list(entries)
        self._at = -1

    def compose(self) -> ComposeResult:
        """Lay out the line and the list."""
        line = Input("", id="line")
        line.cursor_blink = False
        line.styles.width = "100%"
        with Vertical() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_default")
            yield Static(Content("COMMAND"))
            yield line
            yield Static(self._list(), id="list")

    def on_mount(self) -> None:
        """Begin in the line."""
        self.query_one(Input).focus()

    def _list(self) -> Content:
        first = max(0, min(self._at - SHOWN // 2, len(self._found) - SHOWN))
        mark = ">" if self._ascii else "▸"
        lines = [
            f"{mark if i == self._at else ' '}{entry.words:<24} {entry.what}"
            for i, entry in enumerate(self._found)
        ][first : first + SHOWN]
        return Content("\n".join([*lines, *[""] * (SHOWN - len(lines))]))

    def on_input_changed(self, event: Input.Changed) -> None:
        """List what matches."""
        self._found, self._at = matching(self._entries, event.value), -1
        self.query_one("#list", Static).update(self._list())

    def action_move(self, by: int) -> None:
        """Choose of the list; above its first entry the line itself is meant again."""
        self._at = min(max(self._at + by, -1), len(self._found) - 1)
        self.query_one("#list", Static).update(self._list())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with what was chosen or typed; a command that needs more stays in the line."""
        does = self._found[self._at].does if self._at >= 0 else event.value.strip()
        if does.endswith(" "):
            line = self.query_one(Input)
            line.value, line.cursor_position = does, len(does)
        else:
            self.settle(does)

    def action_cancel(self) -> None:
        """Close and do nothing."""
        self.settle(None)
