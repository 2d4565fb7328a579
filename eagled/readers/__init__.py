"""Dataset formats, one module each: a new format is a new file here with a `FORMAT`.

Which one a row has is told by its columns; `detect.py` looks at the first rows of a whole source.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from dataclasses import replace

from eagled.errors import ConfigError, RowRejectedError
from eagled.readers.base import Format, RawRow, Row
from eagled.types import RowReason

AUTO = "auto"
AUTO_PREFIX = "auto:"  # the format that detection found: rows of other shapes are still read
_NOT_WORD = re.compile(r"[\W_]+")


@functools.cache
def formats() -> tuple[Format, ...]:
    """Return every known format in the order in which `auto` asks them."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return tuple(sorted(found, key=lambda item: (item.rank, item.name)))


def format_named(name: str) -> Format | None:
    """Return the format called `name`, or that of the hub dataset `name`; None for auto.

    Raises:
        ConfigError: if there is no such format; the message lists them.
    """
    if name == AUTO:
        return None
    if name.startswith(AUTO_PREFIX):
        found = format_named(name.removeprefix(AUTO_PREFIX))
        return found and lenient(found)
    wanted = folded(name)
    for known in formats():
        if wanted in names_of(known):
            return known
    accepted = ", ".join([AUTO, *(known.name for known in formats())])
    raise ConfigError(f"datasets.format = {name!r} is not known; accepted: {accepted}")


def lenient(found: Format) -> Format:
    """Return a format that reads rows which do not fit it by their own columns."""

    def read(row: Row) -> RawRow:
        return (found if found.reads(row) else detect_row(row)).read(row)

    return replace(found, read=read)


def names_of(known: Format) -> frozenset[str]:
    """Return the folded names of a format: its own, and its datasets' with and without owner."""
    ids = [known.name, *known.hub_ids, *(hub_id.partition("/")[2] for hub_id in known.hub_ids)]
    return frozenset(map(folded, ids))


def folded(name: str) -> str:
    """Return a name in lower case without punctuation, as people write it differently."""
    return _NOT_WORD.sub("", name).lower()


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
    return (chosen or detect_row(row)).read(row)


def detect_row(row: Row) -> Format:
    """Return the first format that knows the columns of a row.

    Raises:
        RowRejectedError: if none does; the detail says what was seen and what exists.
    """
    for known in formats():
        if known.detects(row):
            return known
    columns = ", ".join(sorted(map(str, row))) or "none"
    names = ", ".join(known.name for known in formats())
    detail = f"no known set of columns in: {columns}; formats: {names}"
    raise RowRejectedError(RowReason.MISSING_FIELD, detail)
