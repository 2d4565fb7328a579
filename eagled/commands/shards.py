"""`eagled shards`: what lies there, and the consumers of the ring in stream mode."""

from __future__ import annotations

from typing import Annotated

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    call_get,
    call_post,
    human_bytes,
    load,
    say,
    say_json,
    say_table,
)
from eagled.errors import UsageError

app = typer.Typer(help="Hidden-state shards and who reads them.", no_args_is_help=True)
_Consumer = Annotated[str, typer.Option("--consumer", help="Name of the process that reads.")]
_CALL_SLACK_S = 30.0


@app.command("list")
def list_shards(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the shards on disk with codec, policy and bytes; needs no daemon."""
    from eagled.paths import StatePaths
    from eagled.shards.summary import summarise

    rows = summarise(StatePaths(load(config).config.run.state_dir).shards)
    if as_json:
        say_json([row.to_dict() for row in rows])
        return
    heads = ("shard", "samples", "tokens", "supervised", "bytes", "B/token", "aux", "last")
    say_table(heads, [row.cells() for row in rows])
    say(f"{len(rows)} shards, {human_bytes(sum(row.bytes for row in rows))}")


@app.command("ring")
def ring(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the ring of shards and its consumers. Needs the daemon."""
    shown = call_get(config, "/v1/ring")
    if as_json:
        say_json(shown)
        return
    cap = human_bytes(shown["cap_bytes"]) if shown["cap_bytes"] else "what the disk has"
    full = "; full: extraction waits for a release" if shown["full"] else ""
    say(f"mode {shown['mode']}, {human_bytes(shown['live_bytes'])} of {cap}{full}")
    say_table(
        ("consumer", "holds", "waiting"),
        [(c["name"], len(c["held"]), c["waiting"]) for c in shown["consumers"]],
    )


@app.command()
def register(*, consumer: _Consumer, config: ConfigOption = None) -> None:
    """Begin to read: nothing goes before this consumer released it. Needs the daemon."""
    say(call_post(config, "/v1/ring/register", {"consumer": consumer})["message"])


@app.command()
def lease(
    *,
    consumer: _Consumer,
    n: Annotated[int, typer.Option("--max", help="Most shards; 0 only renews the lease.")] = 1,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first, at most 60.")] = 0.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Get shards to read, oldest first, one path a line. Needs the daemon."""
    body = {"consumer": consumer, "max": n, "wait_s": wait}
    reply = call_post(config, "/v1/ring/lease", body, timeout_s=wait + _CALL_SLACK_S)
    if as_json:
        say_json(reply["shards"])
        return
    for shard in reply["shards"]:
        say(shard["path"])


@app.command()
def release(
    shards: Annotated[list[str] | None, typer.Argument(help="Names or paths of shards.")] = None,
    *,
    consumer: _Consumer,
    everything: Annotated[
        bool, typer.Option("--all", help="Everything that this consumer holds.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Say that shards were read; what nobody needs goes at once. Needs the daemon."""
    if bool(shards) == everything:
        raise UsageError("name the shards to release, or give --all")
    names = [shard.rpartition("/")[2] for shard in shards or ()]
    if everything:
        consumers = call_get(config, "/v1/ring")["consumers"]
        names = [s for c in consumers if c["name"] == consumer for s in c["held"]]
    body = {"consumer": consumer, "shards": names}
    say(call_post(config, "/v1/ring/release", body)["message"])


@app.command()
def leave(*, consumer: _Consumer, config: ConfigOption = None) -> None:
    """End: this consumer is no longer waited for. Needs the daemon."""
    say(call_post(config, "/v1/ring/leave", {"consumer": consumer})["message"])
