"""Dataset formats, one module each: a new format is a new file here with a `FORMAT`."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from eagled.errors import ConfigError, RowRejectedError
from eagled.readers.base import Format, RawRow, Row
from eagled.types import RowReason

AUTO = "auto"


@functools.cache
def formats() -> tuple[Format, ...]:
    """Return every known format in the order in which `auto` asks them."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return tuple(sorted(found, key=lambda item: (item.rank, item.name)))


def format_named(name: str) -> Format | None:
    """Return the format called `name`; None for auto.

    Raises:
        ConfigError: if there is no such format; the message lists them.
    """
    if name == AUTO:
        return None
    for known in formats():
        if known.name == name:
            return known
    accepted = ", ".join([AUTO, *(known.name for known in formats())])
    raise ConfigError(f"datasets.format = {name!r} is not known; accepted: {accepted}")


def read_row(row: object, chosen: Format | None) -> RawRow:
    """Return the turns of one row.

    Args:
        row: a parsed JSON value.
        chosen: the format, or None to find it from the row's columns.

    Raises:
        RowRejectedError: if the row has no known set of columns or breaks its format.
    """
    if not isinstance(row, dict):
        raise RowRejectedError(RowReason.BAD_SCHEMA, f"the row is a {type(row).__name__}")
    return (chosen or _detect(row)).read(row)


def _detect(row: Row) -> Format:
    for known in formats():
        if known.detects(row):
            return known
    columns = ", ".join(sorted(map(str, row)))
    raise RowRejectedError(RowReason.MISSING_FIELD, f"no known set of columns in: {columns}")
