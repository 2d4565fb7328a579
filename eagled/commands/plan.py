"""`eagled plan` and `eagled plan disk`: what is to come, what it takes, and what would fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    call_get,
    human_bytes,
    human_seconds,
    load,
    say,
    say_json,
    say_table,
)
from eagled.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from eagled.config import Config
    from eagled.disk_plan import DiskPlan, Lengths
    from eagled.shards.policy import StorePolicy

app = typer.Typer(invoke_without_command=True)


@app.callback()
def plan(
    context: typer.Context,
    *,
    write: Annotated[bool, typer.Option("--write", help="Write it into the plans folder.")] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Show the training plan with measured numbers; --write keeps it as a new version."""
    if context.invoked_subcommand is not None:
        return
    from eagled.plan import show_plan, write_plan

    loaded = load(config, settings)
    try:
        status = call_get(config, "/v1/status")
    except UnreachableError:
        status = None  # the plan then uses the last snapshot
    if write:
        say(str(write_plan(loaded.config, status)))
    else:
        say(show_plan(loaded.config, status))


@app.command("disk")
def plan_disk(
    *,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="NAME=VALUE",
            help="See also codec, codec_last, last, max_tokens or keep_prompt changed like this.",
        ),
    ] = None,
    assume: Annotated[
        str, typer.Option(metavar="SAMPLESxTOKENS", help="Such samples, not those of the run.")
    ] = "",
    free: Annotated[int | None, typer.Option(help="So many bytes of room, not the disk's.")] = None,
    choose: Annotated[
        str | None,
        typer.Option(help="Choose an option of the table, or `config` to take that back."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="End with 74 if what holds now does not fit.")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what hidden states will take under each storage policy, and choose one."""
    from eagled import disk_facts

    loaded = load(config, settings).config
    changes = dict(item.partition("=")[::2] for item in what_if or ())
    shown = disk_facts.plan_disk(
        loaded,
        _status(config, loaded),
        asked=asked_policy(loaded, changes),
        lengths=_assumed(assume),
        free_bytes=free,
    )
    if choose is not None:
        say(disk_facts.choose(loaded, shown, choose))
    elif as_json:
        say_json(shown.to_dict())
    else:
        show_disk_plan(shown)
    if check:
        shown.require_fit()


def asked_policy(config: Config, changes: Mapping[str, str]) -> StorePolicy | None:
    """Return the policy that holds with what was given changed; None if nothing was.

    Raises:
        UsageError: if a word is not known.
    """
    from eagled.disk_plan import changed_policy
    from eagled.paths import StatePaths
    from eagled.shards.policy import current_policy

    current = current_policy(config, StatePaths(config.run.state_dir).disk_choice)
    return changed_policy(current, changes)


def _status(config_path: Any, config: Config) -> Mapping[str, Any]:  # noqa: ANN401 - as typer gives it
    from eagled.disk_facts import last_status
    from eagled.paths import StatePaths

    try:
        status: Mapping[str, Any] = call_get(config_path, "/v1/status")
    except UnreachableError:
        return last_status(StatePaths(config.run.state_dir))
    return status


def _assumed(text: str) -> list[Lengths] | None:
    from eagled.disk_plan import uniform

    samples, _, tokens = text.partition("x")
    if text and not (samples.isdecimal() and tokens.isdecimal() and int(tokens) > 1):
        raise UsageError(f"--assume {text!r}: must be SAMPLESxTOKENS, such as 100000x2103")
    return uniform(int(samples), int(tokens)) if text else None


def show_disk_plan(shown: DiskPlan) -> None:
    """Print a plan as tables."""
    model, room = shown.model, shown.room
    say(
        f"{model.layers} layers of {model.hidden_size:,}; "
        f"{human_bytes(room.free_bytes)} may be written"
    )
    if room.others_bytes_per_s:
        say(f"others on this file system: {human_bytes(room.others_bytes_per_s * 3600)} an hour")
    kind = "measured on this run" if model.lossless_measured else "assumed, no shard yet"
    say(f"lossless: {model.lossless:.3f} of raw ({kind})")
    rows = [
        (
            option.name,
            option.policy.words(),
            human_bytes(option.bytes_left),
            None if option.bytes_per_token is None else round(option.bytes_per_token),
            None if option.bytes_per_supervised is None else round(option.bytes_per_supervised),
            None if option.supervised_kept is None else f"{option.supervised_kept:.1%}",
            {None: "not known", True: "fits", False: "too large"}[option.fits],
            human_seconds(option.full_in_s),
        )
        for option in shown.options
    ]
    heads = ("option", "stored", "to come", "B/token", "B/supervised", "kept", "", "full in")
    say_table(heads, rows)
    for option in shown.options:
        say(f"{option.name}: {option.trade}")
    groups = [dataclasses.astuple(group) for group in shown.now.groups if group.samples]
    if groups:
        say_table(("dataset", "lane", "samples left", "tokens left", "bytes left"), groups)
    say(shown.why)
