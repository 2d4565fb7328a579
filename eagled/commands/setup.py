"""Commands about configuration and surroundings; they need no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    load,
    say,
    say_json,
    say_table,
)
from eagled.errors import ConfigError, UsageError


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(init)
    app.command("config")(show_config)
    app.command()(doctor)


def init(
    *,
    model: Annotated[str, typer.Option(help="Folder or hub id of the target model.")] = "model",
    mix: Annotated[
        str, typer.Option(help="Datasets to begin with: agentic, perfectblend or chat.")
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Write a commented eagled.toml; an existing one stays as it is."""
    from eagled.config import CONFIG_NAME
    from eagled.config_template import write_template
    from eagled.mix import mix_named

    path = config or Path(CONFIG_NAME)
    chosen = mix_named(mix) if mix else None
    write_template(path, model, chosen)
    say(f"wrote {path}; set target.model, [[servers]] and [[datasets]], then `eagled doctor`")
    if chosen is not None:
        say(f"datasets: {chosen.name}, {chosen.count:,} conversations of which you can change all")


def show_config(
    *,
    show: Annotated[bool, typer.Option("--show", help="Print each value and its origin.")] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration; with --show print each value and where it came from."""
    from eagled.config_load import flatten
    from eagled.config_template import toml_value

    loaded = load(config, settings)
    values = flatten(loaded.config)
    if as_json:
        shown = {p: {"value": v, "origin": loaded.origins[p].value} for p, v in values.items()}
        say_json({"path": str(loaded.path), "values": shown})
    elif show:
        rows = [
            (path, toml_value(value) or "none", loaded.origins[path].value)
            for path, value in values.items()
        ]
        say_table(("setting", "value", "origin"), rows)
    else:
        say(f"{loaded.path} is right: {len(loaded.config.datasets)} datasets, "
            f"{len(loaded.config.lanes)} lanes, {len(loaded.config.servers)} servers")  # fmt: skip


def doctor(
    *,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
    hidden_states: Annotated[
        bool,
        typer.Option(
            "--hidden-states", help="Compare captured states with transformers, by numbers."
        ),
    ] = False,
    samples: Annotated[int, typer.Option(help="Samples to compare, with --hidden-states.")] = 4,
    no_reference: Annotated[
        bool,
        typer.Option(
            "--no-reference", help="The target fits no transformers host: head check, --stock."
        ),
    ] = False,
    stock: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="Compare with SGLang's own JSON: a server without the plugin, or a --keep file.",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only ask the --stock server, and write its states."),
    ] = None,
) -> None:
    """Look at everything a run needs and say what to do; changes nothing."""
    if hidden_states or stock is not None or keep is not None:
        view = _HiddenView(samples, not no_reference, stock, keep)
        _hidden_states(config, settings, view, as_json=as_json)
        return
    from eagled.doctor import Verdict, examine

    checks = examine(load(config, settings))
    failed = [check for check in checks if check.verdict is Verdict.FAIL]
    if as_json:
        rows = [
            {"name": c.name, "verdict": c.verdict.value, "found": c.found, "advice": c.advice}
            for c in checks
        ]
        say_json({"ok": not failed, "checks": rows})
    else:
        for check in checks:
            for line in check.lines():
                say(line)
    if failed:
        raise typer.Exit(ConfigError.exit_code)


class _HiddenView(NamedTuple):
    """What `doctor --hidden-states` was asked."""

    samples: int
    reference: bool
    stock: str | None
    keep: Path | None


def _hidden_states(
    config: ConfigOption, settings: SetOption, view: _HiddenView, *, as_json: bool
) -> None:
    from eagled.hidden_doctor import check_hidden_states, keep_stock

    loaded = load(config, settings).config
    if view.keep is not None:
        if view.stock is None:
            raise UsageError("--keep needs --stock URL")
        good, lines = True, keep_stock(loaded, view.stock, view.keep)
    else:
        good, lines = check_hidden_states(
            loaded, samples=view.samples, reference=view.reference, stock=view.stock
        )
    if as_json:
        say_json({"ok": good, "lines": lines})
    else:
        for line in lines:
            say(line)
    if not good:
        raise typer.Exit(ConfigError.exit_code)
