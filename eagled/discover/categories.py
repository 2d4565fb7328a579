"""What is looked for: ten categories as data, or the user's own file of the same form."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from eagled.errors import ConfigError, UsageError

_KEYS = {"name", "title", "queries", "words", "datasets", "filters", "want", "weight"}
_LISTS = ("queries", "words", "datasets", "filters")
_WANTS = ("", "tools", "reasoning", "native")
Want = Literal["", "tools", "reasoning", "native"]


@dataclass(frozen=True, slots=True)
class Category:
    """One search; the fields are those of `categories.toml`.

    `filters` are hub tags that every result of a query must have.
    """

    name: str
    title: str
    queries: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    want: Want = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TargetSize:
    """Width and number of stored layers of a target that is not on this machine."""

    hidden_size: int
    layers: int


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Categories in their order, and sizes of targets by name."""

    categories: tuple[Category, ...]
    targets: Mapping[str, TargetSize]


def default_text() -> str:
    """Return the file of the package, to be copied and changed."""
    return resources.files("eagled.discover").joinpath("categories.toml").read_text("utf-8")


def load_categories(path: Path | None, target: str) -> Catalogue:
    """Return the categories of a file, or the ten of the package.

    Args:
        path: the user's file; None is the package's.
        target: name that stands for `{target}` in queries and words; without one they are left out.

    Raises:
        ConfigError: if the file is not understood; the message says where.
    """
    try:
        text = default_text() if path is None else path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"categories {path}: {exc}") from exc
    items = tree.get("categories")
    if not isinstance(items, list) or not items:
        raise ConfigError(f"categories {path}: no [[categories]]")
    found = tuple(_category(item, target) for item in items)
    if len({c.name for c in found}) < len(found):
        raise ConfigError(f"categories {path}: a name stands twice")
    try:
        sizes = {k.lower(): TargetSize(**v) for k, v in tree.get("targets", {}).items()}
    except (TypeError, AttributeError) as exc:
        raise ConfigError(f"categories {path}: targets: {exc}") from exc
    return Catalogue(found, sizes)


def chosen(found: Sequence[Category], names: Sequence[str]) -> tuple[Category, ...]:
    """Return the named categories, all if none is named.

    Raises:
        UsageError: if one does not exist; the message lists them.
    """
    known = {category.name: category for category in found}
    if strange := [name for name in names if name not in known]:
        raise UsageError(f"--category {strange[0]}: there is none; choose {', '.join(known)}")
    return tuple(known[name] for name in names) if names else tuple(found)


def _category(item: Any, target: str) -> Category:  # noqa: ANN401 - parsed TOML
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ConfigError("categories: one has no name")
    name = item["name"]
    if strange := set(item) - _KEYS:
        raise ConfigError(f"categories: {name}: {min(strange)!r} is not known")
    lists = {key: _words(item.get(key, []), f"{name}.{key}", target) for key in _LISTS}
    weight, want = item.get("weight", 1), item.get("want", "")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
        raise ConfigError(f"categories: {name}.weight = {weight!r}: must be a number, 0 or more")
    if want not in _WANTS:
        raise ConfigError(f"categories: {name}.want = {want!r}: accepted: {', '.join(_WANTS[1:])}")
    return Category(
        name=name, title=str(item.get("title", name)), want=want, weight=float(weight), **lists
    )


def _words(value: object, where: str, target: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"categories: {where} must be a list of texts")
    kept = [word for word in value if target or "{target}" not in word]
    return tuple(word.replace("{target}", target) for word in kept)
