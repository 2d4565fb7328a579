"""`eagled service …`: the systemd units, rendered for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagled.commands.common import ConfigOption, load, say, warn

app = typer.Typer(help="Install, remove and look at the systemd units.", no_args_is_help=True)
Instance = Annotated[str, typer.Argument(help="Name: the unit is eagled@NAME.")]
Root = Annotated[Path, typer.Option(help="Where / is; for packaging and tests.")]
_SLASH = Path("/")


@app.command()
def install(
    instance: Instance = "default",
    *,
    root: Root = _SLASH,
    sglang: Annotated[
        bool, typer.Option("--sglang", help="Also the unit that runs `eagled serve`.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show each file; write none.")] = False,
    config: ConfigOption = None,
) -> None:
    """Write units, users, folders and the drop-ins that the configuration needs."""
    from eagled.service_fit import misfits
    from eagled.service_units import install_units, unit_files

    loaded = load(config)
    files = unit_files(loaded, instance, root, sglang=sglang)
    for line in misfits(loaded.config, file=loaded.path):
        warn(line)
    if dry_run:
        for path, text in files.items():
            say(f"# ---- {path}\n{text}")
        return
    for path in install_units(files):
        say(f"wrote {path}")
    say(
        "now: systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload; "
        f"systemctl enable --now eagled@{instance}"
    )


@app.command()
def uninstall(instance: Instance = "default", *, root: Root = _SLASH) -> None:
    """Remove the units of an instance; its data and configuration stay."""
    from eagled.service_units import uninstall_units

    for path in uninstall_units(instance, root):
        say(f"removed {path}")
    say(f"now: systemctl daemon-reload; if it still runs: systemctl stop 'eagled*@{instance}'")


@app.command()
def status(instance: Instance = "default", *, root: Root = _SLASH) -> None:
    """Show what systemd says of an instance's units."""
    import shutil
    import subprocess

    from eagled.errors import UsageError
    from eagled.service_units import instances, units_of

    units = units_of(instance, root)
    if not units:
        known = ", ".join(instances(root)) or "none"
        raise UsageError(f"no units of an instance {instance!r} are installed; installed: {known}")
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        for unit in units:
            say(f"{unit}: installed")
        warn("systemctl is not there: nothing can be said of what runs")
        raise typer.Exit(1)
    done = subprocess.run([systemctl, "--no-pager", "status", *units], check=False)
    raise typer.Exit(done.returncode)
