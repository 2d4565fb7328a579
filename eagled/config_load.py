"""Find, read, override and check the configuration: flag > environment > file > default.

Guarantee: every problem is reported together, each with its TOML path, its value and what is
accepted; nothing of the file is used before all of it is right. Relative paths start at the
file's folder, those of flags and the environment at the working directory.
"""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eagled.config import CONFIG_NAME, ENV_PREFIX, Config
from eagled.config_fields import field_at
from eagled.config_problems import Loc, Origin, clean_loc, dotted, problem_lines, take_out
from eagled.errors import ConfigError

CONFIG_ENV = "EAGLED_CONFIG"
FLAGS_ENV = "EAGLED_FLAGS"  # the flags of the daemon, as JSON, for the workers that it starts
_SEPARATOR = "__"
_ROUNDS = 4  # a repaired tree can reveal problems between settings; more rounds find none


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration, the origin of each value by its TOML path, and its file."""

    config: Config
    origins: Mapping[str, Origin]
    path: Path


def load_config(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Return the configuration that holds.

    Args:
        path: the file; None means $EAGLED_CONFIG, else eagled.toml in the working directory.
        overrides: values of flags by TOML path, such as {"lanes.short.limit": "20"}.
        environ: the environment; None is the process's own.

    Raises:
        ConfigError: with every problem found.
    """
    environ = os.environ if environ is None else environ
    file = _find(path, environ)
    tree = _parse(file)
    origins = dict.fromkeys(_leaves(tree), Origin.FILE)
    problems: list[str] = []
    layers = (
        (Origin.ENVIRONMENT, _from_environ(environ, tree)),
        (Origin.FLAG, _from_flags({**_inherited(environ), **(overrides or {})})),
    )
    _resolve(tree, file.parent)
    for origin, values in layers:
        for loc, text in values.items():
            _override(tree, loc, text, origin, origins, problems)
    config = _validate(tree, origins, problems, file)
    config = _with_state_dir(config, file.parent)
    return LoadedConfig(config, _all_origins(config, origins), file)


def flatten(config: Config) -> dict[str, Any]:
    """Return every value of a configuration by its TOML path, as plain data."""
    plain = config.model_dump(mode="json")
    return {dotted(loc): _at(plain, loc) for loc in _leaf_locs(plain)}


def _find(path: Path | None, environ: Mapping[str, str]) -> Path:
    named = path or (Path(environ[CONFIG_ENV]) if environ.get(CONFIG_ENV) else None)
    file = Path(os.path.abspath(named or CONFIG_NAME))  # noqa: PTH100 - symlinks stay as named
    if file.is_dir():
        file = file / CONFIG_NAME
    if not file.is_file():
        raise ConfigError(
            f"{file} does not exist: write one with `eagled init`, or name yours with --config"
        )
    return file


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{file} is not TOML: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file} is not UTF-8 text: byte {exc.start} is wrong") from exc
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror}") from exc


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    flags: dict[str, str] = json.loads(environ.get(FLAGS_ENV) or "{}")
    return flags


def _from_flags(overrides: Mapping[str, str]) -> dict[Loc, str]:
    return {tuple(key.split(".")): value for key, value in overrides.items()}


def _from_environ(environ: Mapping[str, str], tree: Mapping[str, Any]) -> dict[Loc, str]:
    """Return settings in the environment: EAGLED_LANES__SHORT__LIMIT is lanes.short.limit."""
    out: dict[Loc, str] = {}
    for name, value in environ.items():
        bare = name.removeprefix(ENV_PREFIX)
        if bare != name and _SEPARATOR in bare:
            out[_spelled(tuple(bare.split(_SEPARATOR)), tree)] = value
    return dict(sorted(out.items()))


def _spelled(parts: tuple[str, ...], tree: Mapping[str, Any]) -> Loc:
    """Give each part the spelling that the file uses; the environment is upper case."""
    out: list[str] = []
    node: object = tree
    for part in parts:
        known = node if isinstance(node, Mapping) else {}
        name = next((k for k in known if k.lower() == part.lower()), part.lower())
        out.append(name)
        node = known.get(name)
    return tuple(out)


def _override(
    tree: dict[str, Any],
    loc: Loc,
    text: str,
    origin: Origin,
    origins: dict[str, Origin],
    problems: list[str],
) -> None:
    """Put a text value into the tree; list places are numbers."""
    node: Any = tree
    real: list[str | int] = []
    for part in loc[:-1]:
        key = _key(node, part)
        if key is None:
            problems.append(f"{dotted(loc)}: there is no {dotted((*real, part))} to change")
            return
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
        real.append(key)
    last = _key(node, loc[-1])
    if last is None:
        problems.append(f"{dotted(loc)}: there is no {dotted((*real, loc[-1]))} to change")
        return
    real.append(last)
    node[last] = _resolved(tuple(real), _plain(tuple(real), text), Path.cwd())
    for gone in [p for p in origins if p.startswith(dotted(tuple(real)) + ("."))]:
        del origins[gone]
    origins[dotted(tuple(real))] = origin


def _key(node: object, part: str | int) -> str | int | None:
    if isinstance(node, dict):
        return part
    if isinstance(node, list) and str(part).isdecimal() and int(part) < len(node):
        return int(part)
    return None


def _plain(loc: Loc, text: str) -> Any:  # noqa: ANN401 - TOML
    """Read lists and tables as TOML; a scalar stays text, which the models convert."""
    free = loc[:2] == ("target", "template_kwargs")
    if not free and not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _validate(
    tree: dict[str, Any], origins: Mapping[str, Origin], problems: list[str], file: Path
) -> Config:
    """Return the configuration, or raise with all problems.

    What is wrong is taken out and the rest checked again, so that a rule between two settings is
    reported in the same run as a typing mistake in a third.
    """
    rest = copy.deepcopy(tree)
    for _ in range(_ROUNDS):
        try:
            config = Config.model_validate(rest)
            break
        except ValidationError as exc:
            found = exc.errors(include_url=False)
            problems += problem_lines(found, rest, origins)
            for error in found:
                take_out(rest, clean_loc(tuple(error["loc"]), rest), str(error["type"]))
            if any(not error["loc"] for error in found):
                break
    if problems:
        noun = "problem" if len(problems) == 1 else "problems"
        raise ConfigError(
            f"{file} has {len(problems)} {noun}:", tuple(dict.fromkeys(problems))
        ) from None
    return config


def _leaf_locs(node: object, loc: Loc = ()) -> Iterator[Loc]:
    """Yield the locations of scalars, lists of scalars and empty containers."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaf_locs(value, (*loc, key))
    elif isinstance(node, list) and node and isinstance(node[0], Mapping):
        for i, value in enumerate(node):
            yield from _leaf_locs(value, (*loc, i))
    else:
        yield loc


def _leaves(tree: Mapping[str, Any]) -> list[str]:
    return [dotted(loc) for loc in _leaf_locs(tree)]


def _at(tree: Any, loc: Loc) -> Any:  # noqa: ANN401 - parsed TOML
    for part in loc:
        tree = tree[part]
    return tree


def _all_origins(config: Config, given: Mapping[str, Origin]) -> dict[str, Origin]:
    """Return an origin for each value; a table that was given whole covers what is in it."""
    return {path: _origin(path, given) for path in flatten(config)}


def _origin(path: str, given: Mapping[str, Origin]) -> Origin:
    whole = (o for p, o in given.items() if path.startswith((p + ".", p + "[")))
    return given.get(path) or next(whole, Origin.DEFAULT)


def _resolve(node: Any, base: Path, loc: Loc = ()) -> None:  # noqa: ANN401 - parsed TOML
    """Make the relative paths of a parsed file absolute, in place."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        if isinstance(value, dict | list) and not _is_path_list((*loc, key)):
            _resolve(value, base, (*loc, key))
        else:
            node[key] = _resolved((*loc, key), value, base)


def _resolved(loc: Loc, value: Any, base: Path) -> Any:  # noqa: ANN401 - parsed TOML
    if isinstance(value, list) and _is_path_list(loc):
        return [_absolute(v, base) if isinstance(v, str) else v for v in value]
    if not isinstance(value, str):
        return value
    known = field_at(loc)
    if known is not None and known.accepted == "a path":
        return _absolute(value, base)
    if loc and loc[-1] in ("model", "tokenizer", "source"):
        return _folder_or_id(value, base)
    return value


def _is_path_list(loc: Loc) -> bool:
    known = field_at(loc)
    return known is not None and known.accepted == "a list, each a path"


def _absolute(value: str, base: Path) -> str:
    return os.path.abspath(base / Path(value).expanduser())  # noqa: PTH100 - symlinks stay


def _folder_or_id(value: str, base: Path) -> str:
    """Resolve what is a path by its look or because it is there; the rest is a hub id."""
    looks = value.startswith(("./", "../", "~", "/"))
    return _absolute(value, base) if looks or (base / value).exists() else value


def _with_state_dir(config: Config, base: Path) -> Config:
    """Return `config` with the default state directory starting at `base`."""
    run = config.run
    if run.state_dir.is_absolute():
        return config
    moved = run.model_copy(update={"state_dir": Path(_absolute(str(run.state_dir), base))})
    return config.model_copy(update={"run": moved})
