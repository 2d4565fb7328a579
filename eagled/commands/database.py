"""`eagled db …`: looks after the database of a daemon that is not running; takes its lock."""

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

    from eagled.store.lock import StateLock
    from eagled.store.tools import check_database

    paths = _paths(config)
    with StateLock(paths.lock):
        report = check_database(paths)
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
    destination: Annotated[Path, typer.Argument(help="New file, or a folder for it.")],
    config: ConfigOption = None,
) -> None:
    """Copy the database to a file and check the copy."""
    from eagled.store.lock import StateLock
    from eagled.store.tools import backup as copy

    paths = _paths(config)
    with StateLock(paths.lock):
        say(str(copy(paths, destination.absolute())))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A backup.")], config: ConfigOption = None
) -> None:
    """Put a backup in the database's place; what was there is kept in quarantine."""
    from eagled.store.lock import StateLock
    from eagled.store.tools import restore as put_back

    paths = _paths(config)
    with StateLock(paths.lock):
        put_back(paths, source.absolute())
    say(f"restored {source}; `eagled run` goes on from there")


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
