"""`eagled service …`: the systemd units, rendered for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagled.commands.common import ConfigOption, load, say

app = typer.Typer(help="Install the systemd units.", no_args_is_help=True)


@app.command()
def install(
    instance: Annotated[str, typer.Argument(help="Name: the unit is eagled@NAME.")] = "default",
    *,
    root: Annotated[Path, typer.Option(help="Where / is; for packaging and tests.")] = Path("/"),
    config: ConfigOption = None,
) -> None:
    """Write units, users, folders and the drop-in that the configuration needs."""
    from eagled.service_units import install_units

    for path in install_units(load(config), instance, root):
        say(f"wrote {path}")
    say(
        "now: systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload; "
        f"systemctl enable --now eagled@{instance}"
    )
