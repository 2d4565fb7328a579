"""Commands that steer the daemon over its socket; without one they end with exit code 69."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from eagled.commands.common import ConfigOption, JsonOption, call_get, call_post, say, say_json
from eagled.errors import UsageError

_MERGE_TIMEOUT_S = 6 * 3600.0
_CHANGE_TIMEOUT_S = 1800.0  # a change of a million samples
_WAIT_S = 0.5
_TargetArgument = Annotated[
    str | None, typer.Argument(help="A lane, or a dataset with --dataset; none is everything.")
]
_DatasetOption = Annotated[str | None, typer.Option(help="Only those of this dataset.")]
_LaneOption = Annotated[str | None, typer.Option(help="Only those of this lane.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many, and change nothing.")]
_DatasetFlag = Annotated[bool, typer.Option("--dataset", "-d", help="NAME is a dataset.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (
        pause, resume, drain, prioritize, enqueue, merge, extract, retry, reject, move, undo,
    ):  # fmt: skip
        app.command()(command)
    app.command("set")(change)


def _tell(reply: Any, *, as_json: bool) -> None:  # noqa: ANN401 - JSON
    if as_json:
        say_json(reply)
    else:
        say(str(reply.get("message", "done")))


def _pause(
    config: Path | None, target: str | None, *, dataset: bool, paused: bool, as_json: bool
) -> None:
    if target is None:
        _tell(call_post(config, "/v1/pause" if paused else "/v1/resume"), as_json=as_json)
        return
    where = "datasets" if dataset else "lanes"
    _tell(
        call_post(config, f"/v1/{where}/{quote(target, safe='')}", {"paused": paused}),
        as_json=as_json,
    )


def pause(
    target: _TargetArgument = None,
    *,
    dataset: _DatasetFlag = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop sending new requests; what runs is finished. It stays so over restarts."""
    _pause(config, target, dataset=dataset, paused=True, as_json=as_json)


def resume(
    target: _TargetArgument = None,
    *,
    dataset: _DatasetFlag = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with what `eagled pause` or `eagled drain` stopped."""
    _pause(config, target, dataset=dataset, paused=False, as_json=as_json)


def drain(
    target: _TargetArgument = None,
    *,
    dataset: _DatasetFlag = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing runs there.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Finish what runs, start nothing new, and wait until `eagled resume`."""
    if target is None:
        reply = call_post(config, "/v1/drain")
    else:
        where = "datasets" if dataset else "lanes"
        reply = call_post(config, f"/v1/{where}/{quote(target, safe='')}", {"paused": True})
    if wait:
        left = _wait_until_idle(config, target, dataset=dataset)
        reply = {**reply, "message": f"{reply['message']}; nothing runs any more ({left:.0f} s)"}
    _tell(reply, as_json=as_json)


def _wait_until_idle(config: Path | None, target: str | None, *, dataset: bool) -> float:
    """Wait until nothing of a lane, a dataset or the run is at a server; return the seconds."""
    began_at = time.monotonic()
    while True:
        status = call_get(config, "/v1/status")
        if dataset:
            rows = [status["datasets"].get(target, {})]
        else:
            rows = [r for name, r in status["lanes"].items() if target in (None, name)]
        if not any(row.get("generating") or row.get("in_flight") for row in rows):
            return time.monotonic() - began_at
        time.sleep(_WAIT_S)


_SETTABLE = {
    ("lane", "limit"): "lanes",
    ("lane", "share"): "lanes",
    ("dataset", "priority"): "datasets",
    ("dataset", "limit"): "datasets",
    ("dataset", "share"): "datasets",
}


def change(
    setting: Annotated[
        str,
        typer.Argument(help="lane.NAME.limit|share or dataset.NAME.priority|limit|share."),
    ],
    value: Annotated[
        float, typer.Argument(help="The new value; limit 0 is none, a lane's share 0 the file's.")
    ],
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a lane or a dataset, live and over restarts; `eagled undo` takes it back."""
    kind, _, rest = setting.partition(".")
    name, _, field = rest.rpartition(".")
    where = _SETTABLE.get((kind, field))
    if where is None or not name:
        known = ", ".join(f"{a}.NAME.{b}" for a, b in _SETTABLE)
        raise UsageError(f"{setting!r} cannot be set; accepted: {known}")
    fraction = (kind, field) == ("lane", "share")
    if not fraction and not value.is_integer():
        raise UsageError(f"{setting} = {value:g}: must be a whole number")
    body = {field: value if fraction else int(value)}
    _tell(call_post(config, f"/v1/{where}/{quote(name, safe='')}", body), as_json=as_json)


def prioritize(
    dataset: Annotated[str, typer.Argument(help="The dataset.")],
    priority: Annotated[int, typer.Argument(help="-1000 to 1000; higher is earlier.")] = 10,
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate a dataset before those of lower priority."""
    _tell(
        call_post(config, f"/v1/datasets/{quote(dataset, safe='')}", {"priority": priority}),
        as_json=as_json,
    )


def enqueue(
    folder: Annotated[
        Path | None, typer.Argument(help="A prepared folder; none is all configured datasets.")
    ] = None,
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put prepared samples into the queue; those that are there already stay as they are."""
    body = {"folder": str(folder.absolute()) if folder is not None else None}
    _tell(call_post(config, "/v1/enqueue", body, timeout_s=_MERGE_TIMEOUT_S), as_json=as_json)


def merge(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Freeze what is generated into a corpus version and print its folder."""
    reply = call_post(config, "/v1/merge", timeout_s=_MERGE_TIMEOUT_S)
    if as_json:
        say_json(reply)
    else:
        say(str(reply["path"]))


def extract(
    action: Annotated[str, typer.Argument(help="start or pause.")] = "start",
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start or pause the extraction of hidden states."""
    if action not in ("start", "pause"):
        raise UsageError(f"{action!r} is not an action; accepted: start, pause")
    _tell(call_post(config, "/v1/extract", {"paused": action == "pause"}), as_json=as_json)


def retry(  # noqa: PLR0913 - one option each
    samples: Annotated[list[str] | None, typer.Argument(help="Sample uids.")] = None,
    *,
    cause: Annotated[
        str | None, typer.Option(help="All of this cause, as `eagled failures` names it.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="All that failed for this reason.")] = None,
    dataset: _DatasetOption = None,
    lane: _LaneOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All failed samples.")] = False,
    dry_run: _DryRun = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue failed samples again."""
    if not (samples or cause or reason or dataset or lane or everything):
        raise UsageError("name samples, --cause, --reason, --dataset, --lane or --all")
    body = {"samples": samples or [], "cause": cause, "reason": reason}
    _change_samples(config, "/v1/retry", body, dataset, lane, dry_run=dry_run, as_json=as_json)


def reject(
    samples: Annotated[list[str] | None, typer.Argument(help="Sample uids.")] = None,
    *,
    reason: Annotated[str, typer.Option(help="Recorded with the samples.")] = "operator",
    dataset: _DatasetOption = None,
    lane: _LaneOption = None,
    dry_run: _DryRun = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take samples out of the run; those at a server stay."""
    if not (samples or dataset or lane):
        raise UsageError("name samples, --dataset or --lane")
    body = {"samples": samples or [], "reason": reason}
    _change_samples(config, "/v1/reject", body, dataset, lane, dry_run=dry_run, as_json=as_json)


def move(
    to: Annotated[str, typer.Argument(help="The lane they go to.")],
    samples: Annotated[list[str] | None, typer.Argument(help="Sample uids.")] = None,
    *,
    dataset: _DatasetOption = None,
    lane: _LaneOption = None,
    dry_run: _DryRun = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put samples that wait into another lane."""
    if not (samples or dataset or lane):
        raise UsageError("name samples, --dataset or --lane")
    body = {"samples": samples or [], "to": to}
    _change_samples(config, "/v1/move", body, dataset, lane, dry_run=dry_run, as_json=as_json)


def _change_samples(
    config: Path | None,
    path: str,
    body: dict[str, Any],
    dataset: str | None,
    lane: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    which = {"dataset": dataset, "lane": lane, "dry_run": dry_run}
    _tell(call_post(config, path, body | which, timeout_s=_CHANGE_TIMEOUT_S), as_json=as_json)


def undo(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Take back the last change of a lane, dataset or setting, or of samples."""
    _tell(call_post(config, "/v1/undo"), as_json=as_json)
