"""Every SQL statement that eagled runs, by name.

A file holds statements, each after a line `-- name: word` and one line that says what it is for.
Migrations are whole files, numbered from 1. Coupled: `eagled.store` uses the names,
`tests/unit/store/test_plans.py` asserts how SQLite executes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")


def parse_queries(text: str, source: str) -> dict[str, str]:
    """Return the statements of one file by name, comments and semicolon removed.

    Raises:
        ValueError: if a name has no purpose line or is used twice.
    """
    parts = _NAME.split(text)
    queries: dict[str, str] = {}
    for name, block in zip(parts[1::2], parts[2::2], strict=True):
        lines = block.strip().splitlines()
        if not lines[0].startswith("-- "):
            raise ValueError(f"{source}: {name} has no line that says what it is for")
        if name in queries:
            raise ValueError(f"{source}: {name} is defined twice")
        body = [line for line in lines if not line.startswith("--")]
        queries[name] = "\n".join(body).rstrip().rstrip(";")
    return queries


def load_queries() -> Mapping[str, str]:
    """Return all named statements of the package.

    Raises:
        ValueError: if two files use one name.
    """
    queries: dict[str, str] = {}
    for path in sorted(files(__name__).iterdir(), key=lambda p: p.name):
        if not path.name.endswith(".sql"):
            continue
        found = parse_queries(path.read_text(encoding="utf-8"), path.name)
        if twice := queries.keys() & found.keys():
            raise ValueError(f"{path.name}: {sorted(twice)} are defined elsewhere too")
        queries |= found
    return MappingProxyType(queries)


def load_migrations() -> tuple[str, ...]:
    """Return the text of every migration; number N is at index N - 1.

    Raises:
        ValueError: if a number is missing.
    """
    found = sorted(
        (int(match[1]), path)
        for path in (files(__name__) / "migrations").iterdir()
        if (match := _MIGRATION.match(path.name))
    )
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are not numbered 1..n: {[n for n, _ in found]}")
    return tuple(path.read_text(encoding="utf-8") for _, path in found)


QUERIES = load_queries()
