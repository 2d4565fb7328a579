"""Changed cells on their way to the terminal, past Textual's compositor.

Textual composes a line from every widget on it and sends a widget's line from its left edge on;
at 4 Hz that was a third of what the screen cost. Where nothing lies over the panels, the cells that
differ are sent as they are. Textual is not told: whatever it draws later comes from the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from textual._compositor import CompositorUpdate
from textual.strip import Strip


@dataclass
class Patch(CompositorUpdate):
    """Pieces of lines with their places on the screen, from 0."""

    pieces: list[tuple[int, int, Strip]] = field(default_factory=list)

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        """Yield the pieces without their places."""
        for _x, _y, strip in self.pieces:
            yield from strip

    def render_segments(self, console: Console) -> str:
        """Return the pieces as they are sent, each behind a move of the cursor."""
        return "".join(
            f"\x1b[{y + 1};{x + 1}H{strip.render(console)}" for x, y, strip in self.pieces
        )
