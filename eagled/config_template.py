"""The commented eagled.toml of `eagled init`, and docs/configuration.md.

Guarantee: every setting is in both, with the words of its docstring in `config.py`; the file as
written parses to the defaults plus the given target model.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from eagled.config import Config
from eagled.config_fields import FieldDoc, SectionDoc, sections
from eagled.errors import UsageError
from eagled.mix import Mix, mix_toml

_WIDTH = 96
_EXAMPLES = {
    ("datasets", "name"): '"prompts"',
    ("datasets", "source"): '"prompts.jsonl"',
    ("servers", "url"): '"http://127.0.0.1:30000"',
}
_HEAD = """\
# Configuration of eagled. Every setting is here; a line that starts with `#` and holds a value
# shows the default. Flags and the environment (EAGLED_RUN__SEED=1) win over this file.
# `eagled config --show` prints what holds and where each value came from.
"""
_DOC_HEAD = """\
# Configuration

This page is made from the models in `eagled/config.py` (`python -m eagled.config_template`); a
test fails when it is out of date.

One TOML file holds everything; `eagled init` writes it with every setting commented at its
default. A value is taken from the first of: a flag (`--set lanes.short.limit=20`), the environment
(`EAGLED_LANES__SHORT__LIMIT=20`; list items by number, `EAGLED_SERVERS__0__URL`), the file, the
default. `eagled config --show` prints each value and where it came from. Relative paths start at
the folder of the file; those in flags and in the environment start at the working directory. The
file is `--config`, else `$EAGLED_CONFIG`, else `eagled.toml` in the working directory.

All problems of a file are reported together, each with its path, its value and what is accepted,
and the command ends with exit code 78.
"""


def write_template(path: Path, model: str, mix: Mix | None = None) -> None:
    """Write a commented configuration for the target `model`, with the datasets of a mix.

    Raises:
        UsageError: if the file is already there.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(render_template(model, mix))
    except FileExistsError:
        raise UsageError(
            f"{path} is already there and stays as it is; name another file with --config"
        ) from None
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc


def render_template(model: str, mix: Mix | None = None) -> str:
    """Return the text of a configuration whose live values are the target model and the mix."""
    parts = [_HEAD]
    for section in sections():
        parts.append("\n".join(_section_lines(section, model)))
        if section.name == "datasets" and mix is not None:
            parts.append(mix_toml(mix))
    return "\n".join(parts)


def render_docs() -> str:
    """Return docs/configuration.md."""
    parts = [_DOC_HEAD]
    for section in sections():
        parts.append(f"## `{section.header}`\n\n{section.text}\n")
        parts.append("| setting | accepted | default | effect |\n| --- | --- | --- | --- |")
        parts.append("\n".join(_doc_row(field) for field in section.fields) + "\n")
    return "\n".join(parts)


def _doc_row(field: FieldDoc) -> str:
    default = "must be given" if field.required else _default_words(field)
    cells = [f"`{field.name}`", field.accepted, default, field.text]
    return "| " + " | ".join(c.replace("|", "\\|").replace("<", "&lt;") for c in cells) + " |"


def _default_words(field: FieldDoc) -> str:
    value = toml_value(field.default)
    return "none" if value is None else f"`{value}`"


def _section_lines(section: SectionDoc, model: str) -> Iterator[str]:
    yield from _comment(section.text)
    if section.kind == "named":
        yield from _named_lines(section)
        return
    live = section.kind == "table"
    yield section.header if live else f"# {section.header}"
    for field in section.fields:
        yield from _comment(f"{field.text} Accepted: {field.accepted}.", indent="  ")
        if field.name == "model" and section.name == "target":
            yield f"model = {json.dumps(model)}"
        else:
            yield "# " + _assignment(section, field)
    yield ""


def _named_lines(section: SectionDoc) -> Iterator[str]:
    """Show the settings once in words, then each default table."""
    for field in section.fields:
        yield from _comment(f"{field.name}: {field.text} Accepted: {field.accepted}.", indent="  ")
    default = Config.model_fields[section.name].get_default(call_default_factory=True)
    for name, item in default.items():
        yield f"# [{section.name}.{name}]"
        for key, value in item.model_dump().items():
            yield f"# {key} = {toml_value(value)}"
    yield ""


def _assignment(section: SectionDoc, field: FieldDoc) -> str:
    example = _EXAMPLES.get((section.name, field.name))
    value = example or toml_value(field.default)
    return f"{field.name} =" if value is None else f"{field.name} = {value}"


def _comment(text: str, indent: str = "") -> list[str]:
    return [f"# {indent}{line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]


def toml_value(value: Any) -> str | None:  # noqa: ANN401 - a setting
    """Return a value as TOML, or None for what TOML cannot say (nothing)."""
    match value:
        case None:
            text = None
        case Enum():
            text = toml_value(value.value)
        case bool():
            text = str(value).lower()
        case int():
            text = str(value)
        case float():
            text = f"{value:g}"
        case tuple() | list():
            text = "[" + ", ".join(toml_value(v) or "" for v in value) + "]"
        case BaseModel():
            text = toml_value(value.model_dump())
        case dict():
            text = _inline_table(value)
        case _:
            text = json.dumps(str(value))
    return text


def _inline_table(value: dict[str, Any]) -> str:
    pairs = [f"{k} = {toml_value(v)}" for k, v in value.items() if v is not None]
    return "{ " + ", ".join(pairs) + " }" if pairs else "{}"


if __name__ == "__main__":
    Path("docs/configuration.md").write_text(render_docs(), encoding="utf-8")
