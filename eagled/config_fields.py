"""What each setting is called, accepts and does: read from the models of `config.py`.

The one source of `eagled init`, docs/configuration.md and the messages about bad values.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eagled.config import Config

_PATTERN_WORDS = {
    r"^[A-Za-z0-9_.-]{0,32}$": "a group's name",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": (
        "1 to 64 of letters, digits, '.', '_', '-', starting with a letter or digit"
    ),
    r"^https?://[^\s/]+(/[^\s]*)?$": "an address such as http://127.0.0.1:30000",
}
_PLAIN_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "",
    Any: "anything",
}
SectionKind = Literal["table", "array", "named"]


@dataclass(frozen=True)
class FieldDoc:
    """One setting.

    `default` is the Python value, None when there is none; `required` when it must be given.
    """

    name: str
    accepted: str
    default: Any
    required: bool
    text: str


@dataclass(frozen=True)
class SectionDoc:
    """One table of the file: `[run]`, or each `[[servers]]` (array), or `[lanes.NAME]` (named)."""

    name: str
    kind: SectionKind
    text: str
    fields: tuple[FieldDoc, ...]
    model: type[BaseModel]

    @property
    def header(self) -> str:
        """The TOML header line."""
        forms = {"table": "[{}]", "array": "[[{}]]", "named": "[{}.NAME]"}
        return forms[self.kind].format(self.name)


@functools.cache
def sections() -> tuple[SectionDoc, ...]:
    """Return every section, in the order of the models."""
    return tuple(_section(name, info) for name, info in Config.model_fields.items())


def section(name: str) -> SectionDoc | None:
    """Return the section called `name`, or None."""
    return next((s for s in sections() if s.name == name), None)


def field_at(loc: tuple[str | int, ...]) -> FieldDoc | None:
    """Return the setting that a location in the parsed file is about, or None."""
    found = section(str(loc[0])) if loc else None
    rest = loc[1:] if found is not None and found.kind == "table" else loc[2:]
    fields = found.fields if found is not None else ()
    if len(rest) > 1 and (inner := _inner_section(str(rest[0]))) is not None:
        fields, rest = inner.fields, rest[1:]
    return next((f for f in fields if rest and f.name == rest[0]), None)


def names_at(loc: tuple[str | int, ...]) -> list[str]:
    """Return the names that may stand where the last part of `loc` stands."""
    if len(loc) == 1:
        return [s.name for s in sections()]
    inner = _inner_section(str(loc[-2]))
    found = inner if inner is not None else section(str(loc[0]))
    return [f.name for f in found.fields] if found is not None else []


def _inner_section(name: str) -> SectionDoc | None:
    """A section that is repeated inside another one: `[datasets.sampling]`."""
    return section(name) if name == "sampling" else None


def _section(name: str, info: FieldInfo) -> SectionDoc:
    kind, model = _shape(info.annotation)
    text = " ".join((inspect.getdoc(model) or "").split())
    return SectionDoc(name, kind, text, tuple(_fields(model)), model)


def _shape(annotation: Any) -> tuple[SectionKind, type[BaseModel]]:  # noqa: ANN401 - a type hint
    origin = get_origin(annotation)
    if origin is tuple:
        return "array", get_args(annotation)[0]
    if origin is dict:
        return "named", get_args(annotation)[1]
    return "table", annotation


def _fields(model: type[BaseModel]) -> Iterator[FieldDoc]:
    for name, info in model.model_fields.items():
        required = info.is_required()
        default = None if required else info.get_default(call_default_factory=True)
        text = " ".join((info.description or "").split())
        yield FieldDoc(
            name, accepted_words(info.annotation, info.metadata), default, required, text
        )


def accepted_words(hint: Any, metadata: list[Any]) -> str:  # noqa: ANN401 - a type hint
    """Return in words what a type hint with its constraints accepts."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return accepted_words(args[0], [*_flat(args[1:]), *metadata])
    if origin in (Union, types.UnionType):
        parts = [accepted_words(a, metadata) for a in args if a is not type(None)]
        return " or ".join(dict.fromkeys(parts))
    if origin in (tuple, dict):
        what = "a list, each" if origin is tuple else "a table, each value"
        return f"{what} {accepted_words(args[0] if origin is tuple else args[1], [])}"
    if origin is Literal:
        return _one_of(args)
    return _class_words(hint) or _plain_words(hint, metadata)


def _class_words(hint: Any) -> str:  # noqa: ANN401 - a type hint
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of(tuple(member.value for member in hint))
    return "a table" if isinstance(hint, type) and issubclass(hint, BaseModel) else ""


def _flat(metadata: tuple[Any, ...]) -> list[Any]:
    """Unpack the constraints that `Field(...)` inside `Annotated` carries."""
    out: list[Any] = []
    for item in metadata:
        out.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return out


def _one_of(values: tuple[Any, ...]) -> str:
    shown = [f'"{v}"' for v in values]
    return shown[0] if len(shown) == 1 else "one of " + ", ".join(shown)


def _plain_words(hint: Any, metadata: list[Any]) -> str:  # noqa: ANN401 - a type hint
    pattern = next((p for m in metadata if (p := getattr(m, "pattern", None))), None)
    if pattern is not None:
        return _PATTERN_WORDS.get(pattern, f"text that matches {pattern}")
    words = _PLAIN_WORDS.get(hint, getattr(hint, "__name__", str(hint)))
    return " ".join([words, " and ".join(_bounds(metadata))]).strip()


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        match item:
            case annotated_types.Ge(ge):
                yield f">= {ge}"
            case annotated_types.Gt(gt):
                yield f"> {gt}"
            case annotated_types.Le(le):
                yield f"<= {le}"
            case annotated_types.Lt(lt):
                yield f"< {lt}"
            case _:
                pass
