"""The screens that lie over the first one: a number to set, and the help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar
from uuid import uuid4

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagled.tui.state import Target

MAX_LIMIT = 100_000  # more than any server takes; a typing error should not get through
MAX_PRIORITY = 1000  # as in the configuration

DIALOG_CSS = """
{name} {{ align: center middle; background: transparent; }}
{name} > * {{
    width: {width}; max-width: 96%; height: auto; max-height: 90%;
    border: round ansi_default; padding: 0 1; background: ansi_default;
}}
"""
FIELD_CSS = """
NumberDialog Static { height: auto; }
NumberDialog Input, NumberDialog Input:focus {
    border: none; height: 1; width: 14; padding: 0 1; margin: 1 0; text-style: bold;
    background: ansi_blue; color: ansi_bright_white;
}
NumberDialog Input:nocolor { text-style: bold underline; }
"""


Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A question that is answered once: a second Enter, however quick, finds it closed.

    `key` names what comes of the answer, so that the daemon counts it once as well.
    """

    ENABLE_COMMAND_PALETTE = False

    def __init__(self) -> None:
        super().__init__()
        self.key = uuid4().hex
        self._answered = False

    def settle(self, answer: Answer) -> None:
        """Close with an answer, unless there was one already."""
        if not self._answered:
            self._answered = True
            self.dismiss(answer)


class NumberDialog(Dialog[int | None]):
    """Ask for a lane's limit or a dataset's priority; the target does not move meanwhile."""

    CSS = DIALOG_CSS.format(name="NumberDialog", width=58) + FIELD_CSS
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "leave it as it is")]

    def __init__(self, target: Target, *, ascii_only: bool = False) -> None:
        super().__init__()
        self.target = target
        self._ascii = ascii_only

    def compose(self) -> ComposeResult:
        """Lay out what is set, the number, and what is wrong with it."""
        target = self.target
        now = "" if target.number is None else f"{target.number:.0f}"
        field = Input(now, id="number", select_on_focus=True)
        field.cursor_blink = False  # a blink is bytes for nothing over ssh
        with Vertical() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_default")
            yield Static(Content(f"{target.field.upper()} of {target.kind} {target.label}"))
            yield Static(Content(_MEANING[target.kind]))
            yield field
            yield Static(Content("Enter sets it, Esc leaves it; u undoes"), id="message")

    def on_mount(self) -> None:
        """Begin in the number."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the number, or say what is wrong with it."""
        number, problem = checked(self.target, event.value)
        if problem:
            self.query_one("#message", Static).update(Content(problem))
        else:
            self.settle(number)

    def action_cancel(self) -> None:
        """Close and change nothing."""
        self.settle(None)


_MEANING = {
    "lane": "requests at once; 0 = the server's own maximum",
    "dataset": "a higher priority is generated first; the default is 0",
}


def checked(target: Target, text: str) -> tuple[int | None, str]:
    """Return the number in `text`, or None and what is wrong with it."""
    low, high = (0, MAX_LIMIT) if target.kind == "lane" else (-MAX_PRIORITY, MAX_PRIORITY)
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:  # noqa: PLR2004 - int, no huge ones
        return None, f"needs a whole number from {low} to {high}"
    number = int(stripped)
    if not low <= number <= high:
        return None, f"needs {low} to {high}, not {number}"
    return number, ""


class HelpScreen(ModalScreen[None]):
    """Every key and what it does, made from the bindings themselves."""

    CSS = DIALOG_CSS.format(name="HelpScreen", width=70) + "HelpScreen Static { height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "close", "close the help")
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, keys: Sequence[tuple[str, str]], *, ascii_only: bool = False) -> None:
        super().__init__()
        self._keys = keys
        self._ascii = ascii_only

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        lines = [f"{key:<16} {text}" for key, text in self._keys]
        text = "\n".join(["KEYS", "", *lines, "", *_HELP])
        with VerticalScroll() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_default")
            yield Static(Content(text))

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)


class LineDialog(Dialog[str | None]):
    """Ask for one line of text: a filter, words to find, a command."""

    CSS = DIALOG_CSS.format(name="LineDialog", width=72) + FIELD_CSS.replace(
        "NumberDialog", "LineDialog"
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "leave it as it is")]

    def __init__(
        self, title: str, about: Sequence[str], text: str = "", *, ascii_only: bool = False
    ) -> None:
        super().__init__()
        self._title, self._about, self._text = title, about, text
        self._ascii = ascii_only

    def compose(self) -> ComposeResult:
        """Lay out the question, the line and what it takes."""
        line = Input(self._text, id="line", select_on_focus=True)
        line.cursor_blink = False
        line.styles.width = "100%"
        with Vertical() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_default")
            yield Static(Content(self._title))
            yield line
            yield Static(Content("\n".join(self._about)))

    def on_mount(self) -> None:
        """Begin in the line."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the text."""
        self.settle(event.value.strip())

    def action_cancel(self) -> None:
        """Close and change nothing."""
        self.settle(None)


class ConfirmDialog(Dialog[bool]):
    """Say what would be done, and ask; Enter and Esc leave everything as it is.

    `word` is what has to be typed for a change that takes data away; empty: the key y does.
    """

    CSS = DIALOG_CSS.format(name="ConfirmDialog", width=72) + FIELD_CSS.replace(
        "NumberDialog", "ConfirmDialog"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,enter", "answer(False)", "leave it as it is"),
        Binding("y", "yes", "do it"),
    ]

    def __init__(self, lines: Sequence[str], *, word: str = "", ascii_only: bool = False) -> None:
        super().__init__()
        self._lines, self._word, self._ascii = lines, word, ascii_only

    def compose(self) -> ComposeResult:
        """Lay out what would be done and how to say yes."""
        with Vertical() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_default")
            yield Static(Content("\n".join(self._lines)))
            if self._word:
                field = Input("", id="word")
                field.cursor_blink = False
                yield Static(Content(f"\ntype  {self._word}  and Enter to confirm; Esc cancels"))
                yield field
            else:
                yield Static(Content("\n[ Cancel ]      y does it"))

    def on_mount(self) -> None:
        """Begin in the field, if there is one."""
        if self._word:
            self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do it only if the word is right."""
        self.settle(event.value.strip() == self._word)

    def action_yes(self) -> None:
        """Do it, unless a word is asked for."""
        if not self._word:
            self.settle(True)  # noqa: FBT003 - the dialog's answer

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - the binding's argument
        """Close with an answer."""
        self.settle(answer)


_HELP = (
    "p, c, + and - act on the row under the cursor, in the table whose",
    "title is lit. Everything they do can be undone with u.",
    "Quitting leaves the daemon and its work as they are.",
)
