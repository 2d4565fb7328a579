"""Frozen records as JSON objects and back, by their own type hints.

Guarantee: `from_wire(type(r), to_wire(r)) == r` for every record of `eagled.types`; an object with
an unknown, missing or ill-typed field is refused with a `UsageError` that names the field.
Bytes travel as base64, enums as their word, tuples as lists, records as objects with field names.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import functools
import types
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from eagled.errors import UsageError

T = TypeVar("T")


def to_wire(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return `value` as what JSON can hold.

    Raises:
        TypeError: if a part of it is neither a record, bytes, an enum, a sequence nor plain.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_wire(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_wire(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no wire form")


def from_wire(kind: type[T], value: object) -> T:
    """Return the record of type `kind` that `value` describes.

    Raises:
        UsageError: if a field is unknown, missing or of the wrong type; the message has its path.
    """
    return cast("T", _read(kind, value, kind.__name__))


@functools.cache
def _plan(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the hints by field name, and the names that must be there."""
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    needed = (
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    return {f.name: hints[f.name] for f in fields}, frozenset(needed)


def _read(hint: Any, value: object, path: str) -> object:  # noqa: ANN401 - a type hint
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _read_optional(hint, value, path)
    if origin is tuple:
        return _read_tuple(get_args(hint), value, path)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read_record(hint, value, path)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _read_enum(hint, value, path)
    if hint is bytes:
        return _read_bytes(value, path)
    return _read_plain(hint, value, path)


def _read_optional(hint: Any, value: object, path: str) -> object:  # noqa: ANN401 - a type hint
    if value is None and type(None) in get_args(hint):
        return None
    inner = [a for a in get_args(hint) if a is not type(None)]
    return _read(inner[0], value, path)


def _read_tuple(args: tuple[Any, ...], value: object, path: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{path}: must be a list, got {type(value).__name__}")
    return tuple(_read(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))


def _read_record(kind: type, value: object, path: str) -> object:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: must be an object, got {type(value).__name__}")
    hints, needed = _plan(kind)
    if unknown := sorted(set(value) - set(hints)):
        raise UsageError(f"{path}: unknown field {unknown[0]!r}")
    if missing := sorted(needed - set(value)):
        raise UsageError(f"{path}: field {missing[0]!r} is missing")
    return kind(**{name: _read(hints[name], v, f"{path}.{name}") for name, v in value.items()})


def _read_enum(kind: type[enum.Enum], value: object, path: str) -> enum.Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise UsageError(f"{path} = {value!r}: accepted: {known}") from None


def _read_bytes(value: object, path: str) -> bytes:
    if not isinstance(value, str):
        raise UsageError(f"{path}: must be base64 text, got {type(value).__name__}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise UsageError(f"{path}: is not base64: {exc}") from None


def _read_plain(hint: Any, value: object, path: str) -> object:  # noqa: ANN401 - a type hint
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        wanted = getattr(hint, "__name__", str(hint))
        raise UsageError(f"{path}: must be {wanted}, got {type(value).__name__}")
    return value
