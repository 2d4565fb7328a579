"""What is wrong with a configuration, in words for the person who wrote it.

Guarantee: each line has the TOML path, the value and what is accepted; an unknown name comes with
the nearest known one; a value that is not in the file says where it is. Coupled: pydantic's error
types and locations.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from eagled.config_fields import field_at, names_at
from eagled.printable import printable

_VALUE_CHARS = 80
Loc = tuple[str | int, ...]


class Origin(StrEnum):
    """Where a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


def dotted(loc: Loc) -> str:
    """Return a location as a TOML path: ("servers", 0, "url") is servers[0].url."""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def problem_lines(
    found: list[Any], tree: Mapping[str, Any], origins: Mapping[str, Origin]
) -> list[str]:
    """Return one line for each problem that pydantic found; one a place, however many rules broke.

    Args:
        found: pydantic's error records.
        tree: what was checked.
        origins: where each given value came from.
    """
    by_loc: dict[Loc, Any] = {}
    for error in found:
        by_loc.setdefault(clean_loc(tuple(error["loc"]), tree), error)
    out: list[str] = []
    for loc, error in by_loc.items():
        if not loc:
            out.extend(str(error["msg"]).removeprefix("Value error, ").split("; "))
        else:
            out.append(_problem(loc, error) + _blame(dotted(loc), origins))
    return out


def clean_loc(loc: Loc, tree: object) -> Loc:
    """Drop what pydantic adds to a location: union branches and the mark of a bad key."""
    out: list[str | int] = []
    node = tree
    for part in loc:
        if part == "[key]" or not isinstance(node, dict | list):
            break
        out.append(part)
        inside = isinstance(node, dict) or (isinstance(part, int) and part < len(node))
        node = _child(node, part) if inside else None
    return tuple(out)


def take_out(tree: Any, loc: Loc, kind: str) -> None:  # noqa: ANN401 - parsed TOML
    """Remove what is wrong; give what is missing a value that passes."""
    if not loc:
        return
    node, last = tree, loc[-1]
    for part in loc[:-1]:
        node = _child(node, part)
    known = field_at(loc)
    if isinstance(node, dict) and (kind == "missing" or (known is not None and known.required)):
        unique = "-".join(str(part) for part in loc)
        stand_in = {"url": f"http://{unique}", "target": {"model": unique}}
        node[str(last)] = stand_in.get(str(last), unique)
    elif isinstance(node, dict):
        node.pop(str(last), None)
    elif isinstance(node, list) and isinstance(last, int) and last < len(node):
        node[last] = node[0] if last else 0


def _blame(path: str, origins: Mapping[str, Origin]) -> str:
    """Say so when a wrong value is not in the file, where a person would look for it."""
    given = {o for p, o in origins.items() if p == path or p.startswith(path + ".")}
    away = sorted(given - {Origin.FILE})
    return f" [from the {away[0]}]" if away else ""


def _problem(loc: Loc, error: Mapping[str, Any]) -> str:
    name, kind = dotted(loc), str(error["type"])
    known = field_at(loc)
    accepted = f" (accepted: {known.accepted})" if known is not None else ""
    if kind == "extra_forbidden":
        return _unknown(loc)
    if kind == "missing":
        return f"{name}: must be given{accepted}"
    message = str(error["msg"])
    if kind == "value_error":
        return f"{name}: {message.removeprefix('Value error, ')}"
    must = _must(message)
    shown = printable(repr(error["input"]), _VALUE_CHARS)
    if kind == "string_pattern_mismatch" or error["loc"][-1] == "[key]":
        must = "has a wrong form"
        accepted = accepted or " (accepted: letters, digits, '.', '_', '-'; at most 64)"
    return f"{name} = {shown}: {must}{accepted}"


def _must(message: str) -> str:
    """Return pydantic's sentence in our words."""
    words = {
        "Input should be": "must be",
        "a valid": "a",
        "greater than or equal to": ">=",
        "less than or equal to": "<=",
        "greater than": ">",
        "less than": "<",
        "a tuple": "a list",
        "a integer": "an integer",
    }
    text = message.split(", ", maxsplit=1)[0]
    for theirs, ours in words.items():
        text = text.replace(theirs, ours)
    return re.sub("a dictionary or instance of .*", "a table", text)


def _unknown(loc: Loc) -> str:
    what = "section" if len(loc) == 1 else "setting"
    near = difflib.get_close_matches(str(loc[-1]), names_at(loc), n=1, cutoff=0.5)
    known = ", ".join(names_at(loc))
    hint = f"did you mean {dotted((*loc[:-1], near[0]))}?" if near else f"accepted: {known}"
    return f"{printable(dotted(loc), _VALUE_CHARS)}: unknown {what}; {hint}"


def _child(node: Any, part: str | int) -> object:  # noqa: ANN401 - parsed TOML
    if isinstance(node, dict):
        return node.get(part)
    return node[part] if isinstance(part, int) else None
