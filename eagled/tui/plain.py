"""The same facts as plain text, for terminals that cannot draw and for pipes."""

from __future__ import annotations

from collections.abc import Iterator

from eagled.tui import panels
from eagled.tui.lines import Line, plain
from eagled.tui.panels import View
from eagled.tui.tables import dataset_table, lane_table
from eagled.tui.text import to_ascii

WIDTH = 100


def plain_text(view: View, *, ascii_only: bool) -> str:
    """Return the first screen as text without any control sequence, a line feed at its end."""
    lines = [plain(line).rstrip() for line in _all(view)]
    text = "\n".join(lines) + "\n"
    return "\n".join(map(to_ascii, text.split("\n"))) if ascii_only else text


def _all(view: View) -> Iterator[Line]:
    yield from panels.header(view, WIDTH)
    for title, table in (
        ("LANES", lane_table(view.lanes, WIDTH)),
        ("DATASETS", dataset_table(view.datasets, WIDTH)),
    ):
        yield ((title, "bold"),)
        yield table.head
        yield from (line for _, line in table.rows)
        if table.foot:
            yield table.foot
    for build in (panels.servers, panels.extraction, panels.disk):
        yield from build(view, WIDTH)
    yield from panels.alarms(view, WIDTH, 1000)
