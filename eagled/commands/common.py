"""What the commands share: options, output, and where the daemon is.

Nothing heavy is imported here: each command imports what it needs inside its own function.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagled.errors import UsageError
from eagled.printable import printable

if TYPE_CHECKING:
    from eagled.config_load import LoadedConfig

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; else $EAGLED_CONFIG, eagled.toml."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, such as run.seed=1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_CELL_CHARS = 60


def load(config: Path | None, settings: Sequence[str] | None = None) -> LoadedConfig:
    """Return the checked configuration with the overrides of `--set`.

    Raises:
        ConfigError: with every problem found.
        UsageError: if an override is not PATH=VALUE.
    """
    from eagled.config_load import FLAGS_ENV, load_config

    overrides: dict[str, str] = {}
    for item in settings or ():
        path, mark, value = item.partition("=")
        if not mark or not path:
            raise UsageError(f"--set {item}: must be PATH=VALUE, such as run.seed=1")
        overrides[path.strip()] = value
    if overrides:
        os.environ[FLAGS_ENV] = json.dumps(overrides)  # for the processes that a command starts
    return load_config(config, overrides)


def call_get(config: Path | None, path: str, **query: str | int) -> Any:  # noqa: ANN401 - JSON
    """Return the daemon's answer to a read-only call."""
    from eagled.control import call
    from eagled.socket_path import client_socket

    return call.get(client_socket(config), path, **query)


def call_post(
    config: Path | None,
    path: str,
    body: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """Return the daemon's answer to a call that changes something."""
    from eagled.control import call
    from eagled.control.protocol import CALL_TIMEOUT_S
    from eagled.socket_path import client_socket

    return call.post(client_socket(config), path, body, timeout_s=timeout_s or CALL_TIMEOUT_S)


def say(text: str) -> None:
    """Print one line of result."""
    typer.echo(text)


def warn(text: str) -> None:
    """Print one line about progress or trouble to stderr."""
    typer.echo(text, err=True)


def progress_line(text: str) -> None:
    """Show where long work stands on one line of a terminal; a log gets nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(text, _CELL_CHARS + 20)}")
        sys.stderr.flush()


def say_json(value: object) -> None:
    """Print a value as indented JSON."""
    import orjson

    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def say_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns as wide as their longest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(headers))]
    for row in [list(headers), *cells]:
        parts = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        typer.echo("  ".join(parts).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "–"  # noqa: RUF001 - the sign for unknown, as in the terminal UI
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else printable(value, _CELL_CHARS)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def human_bytes(value: float | None) -> str:
    """Return a byte count in GiB or MiB, a dash when unknown."""
    if value is None:
        return "–"  # noqa: RUF001 - the sign for unknown, as in the terminal UI
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(value) >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value / 1024:,.1f} KiB"


def human_seconds(value: float | None) -> str:
    """Return a duration such as 2 h 05 min, a dash when unknown."""
    if value is None:
        return "–"  # noqa: RUF001 - the sign for unknown, as in the terminal UI
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
