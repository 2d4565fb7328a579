"""Commands that work on files: prepare, look at lengths, plan, vocabulary, verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import ConfigOption, JsonOption, SetOption, load, say, say_json, warn

if TYPE_CHECKING:
    from eagled.config import Config, DatasetConfig


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (prep, profile, plan, vocab, verify):
        app.command()(command)


def _chosen(config: Config, names: list[str] | None) -> list[DatasetConfig]:
    from eagled.errors import ConfigError

    if not config.datasets:
        raise ConfigError("no dataset is configured: add [[datasets]] with name and source")
    return [config.dataset(name) for name in names] if names else list(config.datasets)
