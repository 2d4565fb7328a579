"""The reference of bench/tui.py: the same numbers in Textual's own DataTable.

`python -m bench.tui_table --socket S --hz 4 [--list]` asks the same daemon as `eagled top`, at the
same rate, and writes the cells that changed by `update_cell` into tables of fixed widths: what one
would write first. `--list` shows 200 samples instead of lanes and datasets.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("TEXTUAL_FPS", "15")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

from pathlib import Path

from textual.app import App, ComposeResult
from textual.widgets import DataTable, Static

from eagled.tui.lines import Column
from eagled.tui.model import parse_status
from eagled.tui.records import parse_samples
from eagled.tui.source import SocketSource
from eagled.tui.tables import DATASET_COLUMNS, LANE_COLUMNS, DatasetRow, LaneRow
from eagled.tui.views import _SAMPLE_COLUMNS

LIST_EVERY = 8  # requests between two lists, as `eagled top` at 4 Hz


class TableApp(App[int]):
    """Lanes and datasets, or a list of samples, in stock tables."""

    def __init__(self, socket: Path, hz: float, *, listed: bool) -> None:
        super().__init__()
        self._source = SocketSource(socket)
        self._hz, self._listed = hz, listed
        self._asked = 0
        self._shown: dict[tuple[str, str, str], str] = {}

    def compose(self) -> ComposeResult:
        """Lay out a line and the tables."""
        yield Static("", id="head")
        for name in ("samples",) if self._listed else ("lanes", "datasets"):
            yield DataTable(id=name)

    def on_mount(self) -> None:
        """Give the tables their columns, begin to ask."""
        columns: dict[str, tuple[Column[Any], ...]]
        columns = {"samples": _SAMPLE_COLUMNS, "lanes": LANE_COLUMNS, "datasets": DATASET_COLUMNS}
        for table in self.query(DataTable):
            for column in columns[table.id or ""]:
                table.add_column(column.title, width=column.width, key=column.title)
        self.set_interval(1 / self._hz, self._tick)

    async def _tick(self) -> None:
        document = await self._source.status()
        shot = parse_status(document)
        totals = shot.totals
        self.query_one("#head", Static).update(f"LIVE  {totals.done:.0f} {totals.queued:.0f}")
        if not self._listed:
            self._fill("lanes", {x.key: _cells(LANE_COLUMNS, LaneRow(x, x.history))
                                 for x in shot.lanes})  # fmt: skip
            self._fill("datasets", {x.key: _cells(DATASET_COLUMNS, DatasetRow(x))
                                    for x in shot.datasets})  # fmt: skip
        elif self._asked % LIST_EVERY == 0:
            rows = parse_samples(await self._source.get("/v1/samples", {"limit": 200}))
            now = int(shot.at_ms or 0)
            self._fill("samples", {s.uid: _cells(_SAMPLE_COLUMNS, (s, now)) for s in rows})
        self._asked += 1

    def _fill(self, name: str, rows: Mapping[str, Iterator[tuple[str, str]]]) -> None:
        table = self.query_one(f"#{name}", DataTable)
        for key, cells in rows.items():
            if key not in table.rows:
                table.add_row(*[""] * len(table.columns), key=key)
            for title, text in cells:
                if self._shown.get((name, key, title)) != text:
                    self._shown[name, key, title] = text
                    table.update_cell(key, title, text)


def _cells(columns: tuple[Column[Any], ...], row: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any row
    for column in columns:
        yield column.title, column.cell(row, column.width)[0]


def main() -> None:
    """Read the arguments, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--hz", type=float, default=4.0)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    TableApp(options.socket, options.hz, listed=options.list).run()


if __name__ == "__main__":
    main()
