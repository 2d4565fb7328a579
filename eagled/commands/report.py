"""`eagled report`: one page about a run, for people who were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eagled.commands.common import ConfigOption, JsonOption, call_get, load, say, say_json, warn
from eagled.errors import UnreachableError, UsageError

_DEFAULT = Path("report.html")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(report)


def report(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = _DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page about the run: throughput, lanes, failures, lengths, disk, origin."""
    try:
        facts = call_get(config, "/v1/report")
    except UnreachableError:
        facts = _without_daemon(config)
    if as_json:
        say_json(facts)
        return
    from eagled.report_page import write_report

    write_report(out, facts)
    say(str(out))


def _without_daemon(config: Path | None) -> dict[str, Any]:
    from eagled.disk_facts import last_status
    from eagled.paths import StatePaths
    from eagled.report_facts import gather

    loaded = load(config)
    paths = StatePaths(loaded.config.run.state_dir)
    status = last_status(paths)
    if not status and not paths.database.is_file():
        raise UsageError(f"{paths.root} holds no run yet: start one with `eagled run`")
    warn("no daemon answers: this is what it left")
    return gather(loaded, status)
