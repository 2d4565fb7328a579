"""Which format a source has: what its name says, else what its first rows show.

Guarantee: the same source gives the same format, wherever reading starts; a row that the found
format cannot read is looked at by itself, so a file of several shapes loses nothing. Price: the
first rows are read twice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from eagled.config import DatasetConfig
from eagled.readers import (
    AUTO,
    AUTO_PREFIX,
    folded,
    format_named,
    formats,
    lenient,
    names_of,
)
from eagled.readers.base import GENERIC_RANK, LAST_RANK, Format, Row
from eagled.readers.sources import open_source

_FIRST_ROWS = 32


def with_format(dataset: DatasetConfig) -> DatasetConfig:
    """Return the dataset with its format settled, so that every process reads rows alike.

    Raises:
        ConfigError: if the configured format is not known, or the source cannot be opened.
        UnreachableError: if the source is on the hub and the hub does not answer.
    """
    found = found_format(dataset)
    if found is None or dataset.format != AUTO:
        return dataset
    return dataset.model_copy(update={"format": AUTO_PREFIX + found.name})


def found_format(dataset: DatasetConfig) -> Format | None:
    """Return the format that a dataset's rows are read with; None asks each row by itself.

    Raises:
        ConfigError: if the configured format is not known, or the source cannot be opened.
        UnreachableError: if the source is on the hub and the hub does not answer.
    """
    if dataset.format != AUTO:
        return format_named(dataset.format)
    source = open_source(dataset, identify=False)
    first = itertools.islice(source.rows(), _FIRST_ROWS)
    found = guess(dataset.source, [row.value for row in first])
    return None if found is None else lenient(found)


def guess(source: str, first: Iterable[object]) -> Format | None:
    """Return the format of a source with this name and these first rows, None if none stands out.

    One dataset's format is taken if the source is named after the dataset, or if more than half of
    the rows show it. Generic formats are never taken: they are told row by row.
    """
    rows = [row for row in first if isinstance(row, dict)]
    found = _by_name(source, rows) or _by_rows(rows)
    return None if found is None or GENERIC_RANK <= found.rank < LAST_RANK else found


def _by_name(source: str, rows: Sequence[Row]) -> Format | None:
    parts = [part.removeprefix("datasets--") for part in Path(source).parts]
    names = {folded(part) for part in (source, *parts, *(Path(part).stem for part in parts))}
    names |= {folded(part.partition("--")[2]) for part in parts}
    for known in formats():
        if names & names_of(known) and (not rows or any(map(known.reads, rows))):
            return known
    return None


def _by_rows(rows: Sequence[Row]) -> Format | None:
    shown = Counter({known.name: sum(map(known.detects, rows)) for known in formats()})
    for known in formats():
        if shown[known.name] * 2 > len(rows):
            return known
    best = max(formats(), key=lambda known: shown[known.name])  # the first of equals
    return best if shown[best.name] else None
