"""`eagled db …`: check and copy the database, also beside a daemon; replace it without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import ConfigOption, JsonOption, load, say, say_json, warn
from eagled.errors import StoreError

if TYPE_CHECKING:
    from eagled.paths import StatePaths

app = typer.Typer(help="Check, back up and restore the database.", no_args_is_help=True)


def _paths(config: Path | None) -> StatePaths:
    from eagled.paths import StatePaths

    return StatePaths(load(config).config.run.state_dir)


@app.command()
def check(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check every page, every counter and every stored answer."""
    import dataclasses

    from eagled.store.tools import check_database

    report = check_database(_paths(config))
    if as_json:
        say_json({**dataclasses.asdict(report), "ok": report.ok})
    else:
        for problem in report.problems:
            warn(problem)
        say("the database is sound" if report.ok else f"{len(report.problems)} problems")
    if not report.ok:
        raise typer.Exit(StoreError.exit_code)


@app.command()
def backup(
    destination: Annotated[
        Path | None, typer.Argument(help="New file, or a folder for it; none is backups/.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Copy the database to a file and check the copy."""
    from eagled.store.tools import backup as copy

    say(str(copy(_paths(config), destination.absolute() if destination is not None else None)))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A backup.")], config: ConfigOption = None
) -> None:
    """Put a backup in the database's place; what was there is kept in quarantine."""
    from eagled.store.lock import StateLock
    from eagled.store.tools import restore as put_back

    paths = _paths(config)
    with StateLock(paths.lock):
        old = put_back(paths, source.absolute())
    kept = f"; what was there is in {old}" if old is not None else ""
    say(f"restored {source}{kept}; `eagled run` goes on from there")


@app.command()
def accept(
    sequence: Annotated[int, typer.Argument(help="The sequence that the start-up message names.")],
    config: ConfigOption = None,
) -> None:
    """Accept a database that went back in time, on purpose."""
    from eagled.store.lock import StateLock
    from eagled.store.tools import accept as take

    paths = _paths(config)
    with StateLock(paths.lock):
        take(paths, sequence)
    say("accepted; answers after that point are generated again")
