"""Commands that show what the daemon knows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    call_get,
    human_bytes,
    human_seconds,
    say,
    say_json,
    say_table,
    warn,
)
from eagled.errors import EagledError, UnreachableError
from eagled.printable import printable
from eagled.training_view import SILENT_MS

_WATCH_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"
_COSTS_FROM = 0.01  # share of throughput worth a line
_LANE_KEYS = (
    "waiting", "queued", "generating", "retry_wait", "generated", "extracted", "failed",
    "rejected",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (status, samples, failures, events):
        app.command()(command)


def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until ctrl-C.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the daemon does; with no daemon, the last snapshot (and exit 69)."""
    while True:
        try:
            document = call_get(config, "/v1/status")
        except UnreachableError as exc:
            _show_snapshot(config, as_json=as_json)
            raise exc from None
        if watch and sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        _show(document, as_json=as_json)
        if not as_json:
            _show_training(config)
        sys.stdout.flush()
        if not watch:
            return
        time.sleep(_WATCH_S)


def _show_snapshot(config: Path | None, *, as_json: bool) -> None:
    from eagled.artifacts import read_json
    from eagled.errors import ArtifactError
    from eagled.paths import StatePaths
    from eagled.socket_path import client_state_dir

    try:
        document = read_json(StatePaths(client_state_dir(config)).snapshot)
    except ArtifactError:
        return
    if as_json:
        say_json({**document, "live": False})
        return
    age = human_seconds(max(0.0, time.time() - document.get("at_ms", 0) / 1000))
    warn(f"the last snapshot, {age} old:")
    _show(document, as_json=False)


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(document)
        return
    say(
        f"{printable(document.get('run'))}: {document.get('phase')}, "
        f"up {human_seconds(document.get('uptime_s'))}"
    )
    _show_lanes(document.get("lanes", {}))
    _show_datasets(document.get("datasets", {}))
    for server in document.get("servers", []):
        say(f"server {printable(server['url'])}: {server['state']}{_admission(server)}")
    _show_extraction(document)
    for alarm in document.get("alarms", []):
        say(f"! [{alarm['kind'].partition(':')[0]}] {printable(alarm['text'])}")


def _show_training(config: Path | None) -> None:
    """Say how a training run goes, if one does; a daemon that cannot tell is not asked again."""
    try:
        found = call_get(config, "/v1/training", brief=1)
    except EagledError:
        return
    silent_ms = time.time() * 1000 - (found.get("updated_ms") or 0)
    said = found.get("status") or {}
    if found.get("name") is None or found.get("done") or silent_ms > SILENT_MS or not said:
        return
    loss = "" if said.get("loss") is None else f", loss {said['loss']:.3f}"
    say(
        f"training {printable(found['name'])}: step {said.get('step')} of {said.get('total')}"
        f"{loss}, {human_seconds(said.get('eta_s'))} left"
    )


def _show_lanes(lanes: dict[str, Any]) -> None:
    headers = ("lane", "limit", "in_flight", *_LANE_KEYS, "out tok/s", "left")
    rows = [
        [
            f"{name} (paused)" if lane["paused"] else name,
            lane["limit"],
            lane["in_flight"],
            *(lane[key] for key in _LANE_KEYS),
            lane["out_tok_per_s"],
            human_seconds(lane["eta_s"]),
        ]
        for name, lane in lanes.items()
    ]
    say_table(headers, rows)
    for name, lane in lanes.items():
        if (lane.get("limit_costs") or 0) >= _COSTS_FROM:
            say(f"lane {name}: its limit costs {lane['limit_costs']:.0%} of the throughput")


def _admission(server: dict[str, Any]) -> str:
    """Return in words what decides how much a server is given."""
    words = ", draining" if server.get("leaving") else ""
    if server.get("admission"):
        words += f", {server['in_flight']} in flight ({server['admission']})"
    return words


def _show_datasets(datasets: dict[str, Any]) -> None:
    headers = ("dataset", "priority", "done", "total", "failed", "rejected", "left")
    rows = [
        [
            f"{name} (paused)" if item["paused"] else name,
            item["priority"],
            item["done"],
            item["total"],
            item["failed"],
            item["rejected"],
            human_seconds(item["eta_s"]),
        ]
        for name, item in datasets.items()
    ]
    if rows:
        say_table(headers, rows)


def _show_extraction(document: dict[str, Any]) -> None:
    extraction, disk = document.get("extraction", {}), document.get("disk", {})
    say(
        f"extraction {extraction.get('state')}: {extraction.get('shards')} shards, "
        f"{human_bytes(extraction.get('bytes'))}"
    )
    say(
        f"disk: {human_bytes(disk.get('used_bytes'))} used, "
        f"{human_bytes(disk.get('free_bytes'))} free, "
        f"{human_bytes(disk.get('projected_bytes'))} still to come"
    )


def samples(
    *,
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only those of this dataset.")] = None,
    lane: Annotated[str | None, typer.Option(help="Only those of this lane.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Most rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List samples."""
    given = {"state": state, "dataset": dataset, "lane": lane}
    query = {key: value for key, value in given.items() if value is not None}
    rows = call_get(config, "/v1/samples", limit=limit, **query)["samples"]
    if as_json:
        say_json(rows)
    elif rows:
        say_table(tuple(rows[0]), [list(row.values()) for row in rows])
    else:
        say("no sample matches")


def failures(
    *,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Most groups.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show failed and rejected samples by cause, and what trying them again would cost."""
    rows = call_get(config, "/v1/failures", limit=limit)["failures"]
    if as_json:
        say_json(rows)
        return
    if not rows:
        say("nothing failed")
        return
    headers = ("cause", "n", "dataset", "state", "reason", "what", "tokens in", "out", "time")
    keys = ("cause", "n", "dataset", "state", "reason", "pattern", "tokens_in", "tokens_out")
    say_table(
        headers, [[*(row[key] for key in keys), human_seconds(row["retry_s"])] for row in rows]
    )
    say("\n`eagled retry --cause CAUSE` queues them again; tokens and time are what that may take")


def events(
    *,
    after: Annotated[int, typer.Option(min=0, help="Only those after this number.")] = 0,
    since: Annotated[
        str | None, typer.Option(help="Only those since then: 30min, 2h, 3d, or a time (UTC).")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only those of this kind; may come several times.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until ctrl-C.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened; each event has a number. Without a daemon the database is read."""
    import orjson

    from eagled.clock import SystemClock, iso_utc
    from eagled.event_log import check_kinds, since_ms

    first_ms = 0 if since is None else since_ms(since, SystemClock().now_ms())
    kinds = check_kinds(kind or ())
    for event in _events(config, after, follow=follow):
        if event["at_ms"] < first_ms or (kinds and event["kind"] not in kinds):
            continue
        if as_json:
            say(orjson.dumps(event).decode())
        else:
            text = printable(f"{event['subject']} {event['detail']}".strip())
            say(f"{event['seq']:>6} {iso_utc(event['at_ms'])} {event['kind']} {text}")
        sys.stdout.flush()


def _events(config: Path | None, after: int, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield events of the daemon; where none answers, those of the database that it left."""
    from eagled.control import call
    from eagled.event_log import stored_events
    from eagled.paths import StatePaths
    from eagled.socket_path import client_socket, client_state_dir

    try:
        for event in call.events(client_socket(config), after, follow=follow):
            after = event["seq"]
            yield event
    except UnreachableError:
        database = StatePaths(client_state_dir(config)).database
        if follow or not database.is_file():
            raise
        warn("no daemon answers; these are the events in its database")
        yield from stored_events(database, after)
