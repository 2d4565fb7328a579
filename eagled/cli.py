"""The command `eagled`: a thin skin over the daemon's socket and the file commands.

Guarantee: an error of ours is one clear message on stderr and the exit code of its class, never a
traceback (EAGLED_DEBUG=1 shows it); ctrl-C ends with 130. Price: `eagled status` loads neither
pydantic nor aiohttp, so each command imports what it needs inside itself.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from eagled import __version__
from eagled.commands import (
    bench,
    control,
    data,
    database,
    discover,
    draft,
    export,
    look,
    plan,
    process,
    report,
    serve,
    server,
    service,
    setup,
    shards,
    train,
    verify,
)
from eagled.errors import EagledError
from eagled.printable import printable

DEBUG_ENV = "EAGLED_DEBUG"
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141  # what a shell reports for SIGPIPE

app = typer.Typer(
    name="eagled",
    help="From prompts and a served target model to a trained, deployed and measured EAGLE-3 draft",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    setup, discover, process, serve, control, look, report, data, verify, export, train, draft,
    bench,
):  # fmt: skip
    module.register(app)
app.add_typer(plan.app, name="plan")
app.add_typer(shards.app, name="shards")
app.add_typer(database.app, name="db")
app.add_typer(server.app, name="server")
app.add_typer(service.app, name="service")


def _show_version(value: bool) -> None:  # noqa: FBT001 - the signature of a typer callback
    if value:
        from eagled.build_info import build_info

        typer.echo(f"eagled {__version__} ({build_info()})")
        raise typer.Exit


@app.callback()
def _root(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The same as after the command.")
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback has done the work
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    if config is not None:
        os.environ["EAGLED_CONFIG"] = str(config)  # so that child processes see it too


def main() -> None:
    """Run the command line and exit with the code that the errors' classes define."""
    try:
        app()
    except EagledError as exc:
        _fail(f"eagled: {printable(exc, None, lines=True)}", exc.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PIPE)
    except OSError as exc:
        _fail(*_os_error(exc))
    except Exception as exc:  # noqa: BLE001 - the edge of the process: everything becomes a message
        text = printable(f"{type(exc).__name__}: {exc}", None, lines=True)
        _fail(f"eagled: a bug: {text}\nrun again with {DEBUG_ENV}=1 to see where", 1)


def _os_error(exc: OSError) -> tuple[str, int]:
    from eagled.artifacts import disk_error

    path = Path(str(exc.filename or "a file"))
    known = disk_error(exc, path)
    if known is not None:
        return f"eagled: {known}", known.exit_code
    return f"eagled: {path}: {exc.strerror or exc}", 1


def _fail(message: str, code: int) -> None:
    if os.environ.get(DEBUG_ENV):
        traceback.print_exc()
    typer.echo(message, err=True)
    sys.exit(code)
