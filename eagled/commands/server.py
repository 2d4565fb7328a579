"""`eagled server`: add, drain and remove servers while the daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eagled.commands.common import ConfigOption, JsonOption, call_post, say, say_json

app = typer.Typer(help="Servers that come and go while the daemon runs.", no_args_is_help=True)
_Url = Annotated[str, typer.Argument(help="Its address, such as http://127.0.0.1:30000.")]


@app.command("add")
def add(
    url: _Url,
    *,
    max_in_flight: Annotated[
        int, typer.Option(min=0, help="Most requests at once; 0 leaves it to the lanes.")
    ] = 0,
    router: Annotated[
        bool, typer.Option("--router", help="It stands in front of several engines.")
    ] = False,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the key.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Use one more server, or one again that was drained or removed. Needs the daemon."""
    body = {
        "action": "add",
        "url": url,
        "max_in_flight": max_in_flight,
        "kind": "router" if router else "replica",
        "api_key_file": str(api_key_file.absolute()) if api_key_file is not None else None,
    }
    _change(config, body, as_json=as_json)


@app.command("drain")
def drain(url: _Url, *, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Send nothing new to a server; `eagled server add` takes it back. Needs the daemon."""
    _change(config, {"action": "drain", "url": url}, as_json=as_json)


@app.command("remove")
def remove(url: _Url, *, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Drain a server and forget it when nothing of ours runs there. Needs the daemon."""
    _change(config, {"action": "remove", "url": url}, as_json=as_json)


def _change(config: Path | None, body: dict[str, Any], *, as_json: bool) -> None:
    reply = call_post(config, "/v1/servers", body)
    if as_json:
        say_json(reply)
    else:
        say(str(reply.get("message", "done")))
