"""What `eagled prep --inspect` shows: one JSON object a row, or a table with the sum below."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagled.commands.common import load, say, warn
from eagled.errors import UsageError
from eagled.printable import printable

if TYPE_CHECKING:
    from eagled.config import Config
    from eagled.inspect import Inspection, RowView

_COLUMNS = (("row", 6), ("outcome", 8), ("reason or flags", 30), ("targets", 8), ("tokens", 8),
            ("lane", 8), ("who speaks", 0))  # fmt: skip
_RIGHT = frozenset({"row", "targets", "tokens"})
_DETAIL_CHARS = 70


def inspect_source(
    source: str,
    *,
    format_name: str | None,
    mode: str | None,
    most: int,
    config: Path | None,
    settings: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Print what becomes of each row of `source`, at most of the first `most` (0: all).

    Without a configuration file nothing is rendered or counted.

    Raises:
        UsageError: if `mode` is no mode.
    """
    from eagled.inspect import open_inspection
    from eagled.types import Mode

    if mode is not None and mode not in set(Mode):
        raise UsageError(f"--mode {mode}: must be one of {', '.join(Mode)}")
    loaded = _config(config, settings)
    inspection = open_inspection(
        source,
        format_name=format_name,
        mode=Mode(mode) if mode is not None else None,
        config=loaded,
    )
    rows = itertools.islice(inspection.rows(), most or None)
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row.to_json(), ensure_ascii=False) + "\n")
        return
    _say_table(inspection, rows)


def _config(path: Path | None, settings: Sequence[str] | None) -> Config | None:
    """Return the configuration; None where nobody named one and there is none."""
    from eagled.config import CONFIG_NAME
    from eagled.config_load import CONFIG_ENV

    if path is None and CONFIG_ENV not in os.environ and not Path(CONFIG_NAME).is_file():
        return None
    return load(path, settings).config


def _say_table(inspection: Inspection, rows: Iterable[RowView]) -> None:
    name = inspection.format.name if inspection.format is not None else "by each row's columns"
    say(f"format: {name}; mode: {inspection.mode.value}")
    say(_line([name for name, _ in _COLUMNS]))
    file = None
    for row in rows:
        if row.file != file:
            file = row.file
            say(printable(file))
        say(_line(_cells(row)))
    rejected = inspection.counts.total()
    say(f"{inspection.kept + rejected} rows = {inspection.kept} kept + {rejected} rejected")
    for reason, n in inspection.counts.most_common():
        say(f"  {n} rejected: {reason}")
    if inspection.config is None:
        warn("no configuration: nothing was rendered or counted in tokens (--config FILE does it)")


def _cells(row: RowView) -> list[str]:
    conversation = row.conversation
    if conversation is None:
        return [str(row.row), "reject", str(row.reason), "", "", "",
                printable(row.detail, _DETAIL_CHARS)]  # fmt: skip
    first = row.turns[0] if row.turns else None
    return [
        str(row.row),
        "ok",
        ", ".join(conversation.flags),
        str(len(conversation.targets)),
        f"{first.tokens:,}" if first is not None else "",
        (first.lane or "native") if first is not None else "",
        row.shape,
    ]


def _line(cells: Sequence[str]) -> str:
    parts = [
        cell.rjust(width) if name in _RIGHT else cell.ljust(width)
        for cell, (name, width) in zip(cells, _COLUMNS, strict=True)
    ]
    return "  ".join(parts).rstrip()
