"""Datasets of this machine: those that a catalogue file names, and those in a folder.

A catalogue is JSON or TOML with a list `datasets` of {source, category?, licence?, config?,
split?}; a source is a path beside the catalogue, or a hub id. In a folder each file or sub-folder
that eagled can read is a dataset, with README.md (of a file: the .md beside it) as its card. What
fits no category goes into the first one, so that nothing of the user's own is passed over.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagled.config import DatasetConfig
from eagled.discover.categories import Category
from eagled.discover.facts import Found
from eagled.discover.hub import Card
from eagled.errors import ConfigError
from eagled.readers.sources import Source, open_source
from eagled.readers.sources.files import SUFFIXES

_CARD_CHARS = 32_000


class CatalogueSource:
    """The datasets of a file, each in the category that it names, else by the words of its name.

    Raises:
        ConfigError: if it is not understood.
    """

    identity = None

    def __init__(self, path: Path, categories: Sequence[Category]) -> None:
        items = _read(path).get("datasets")
        if not isinstance(items, list) or not all(isinstance(i, dict) for i in items):
            raise ConfigError(f"catalogue {path}: no list `datasets` of objects")
        self._own: dict[str, list[Found]] = {c.name: [] for c in categories}
        for item in items:
            found, name = _entry(item, path), str(item.get("category", ""))
            if name and name not in self._own:
                continue  # a category that this run does not ask for
            for each in [name] if name else fitting(categories, found.source):
                self._own[each].append(found)

    def search(self, category: Category, limit: int) -> list[Found]:
        """Return the entries of a category."""
        return self._own[category.name][:limit]


class FolderSource:
    """The datasets in a folder, by the words of their names and cards."""

    identity = None

    def __init__(self, folder: Path, categories: Sequence[Category]) -> None:
        if not folder.is_dir():
            raise ConfigError(f"source {folder}: it is not a folder")
        self._own: dict[str, list[Found]] = {c.name: [] for c in categories}
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or not (path.is_dir() or path.name.endswith(SUFFIXES)):
                continue
            for name in fitting(categories, f"{path.name} {card_text(path)}"):
                self._own[name].append(Found(str(path.resolve()), local=True))

    def search(self, category: Category, limit: int) -> list[Found]:
        """Return the datasets of a category."""
        return self._own[category.name][:limit]


def open_local(found: Found) -> tuple[Card, Source]:
    """Return the card and the rows of a file or folder."""
    path = Path(found.source)
    source = open_source(DatasetConfig(name="probe", source=found.source), identify=False)
    sizes = [file.stat().st_size for _, file in source.files if isinstance(file, Path)]
    card = Card(
        licence=found.licence, size_bytes=sum(sizes), n_files=len(sizes), text=card_text(path)
    )
    return card, source


def card_text(path: Path) -> str:
    """Return the beginning of the card beside a dataset."""
    try:
        readme = path / "README.md" if path.is_dir() else path.with_suffix(".md")
        return readme.read_text(encoding="utf-8", errors="replace")[:_CARD_CHARS]
    except OSError:
        return ""


def fitting(categories: Sequence[Category], text: str) -> list[str]:
    """Return the categories whose words a text has; the first one where it has none of any."""
    folded = text.casefold()
    names = [c.name for c in categories if any(word.casefold() in folded for word in c.words)]
    return names or [categories[0].name]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"catalogue {path}: {exc}") from exc
    return value if isinstance(value, dict) else {"datasets": value}


def _entry(item: Mapping[str, Any], path: Path) -> Found:
    source = item.get("source")
    if not isinstance(source, str) or not source:
        raise ConfigError(f"catalogue {path}: an entry has no source")
    beside = path.parent / source
    texts = {k: str(item[k]) for k in ("licence", "config", "split") if item.get(k)}
    return Found(str(beside.resolve()) if beside.exists() else source, beside.exists(), **texts)
