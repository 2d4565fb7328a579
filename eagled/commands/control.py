"""Commands that steer the daemon over its socket; without one they end with exit code 69."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from eagled.commands.common import ConfigOption, JsonOption, call_post, say, say_json
from eagled.errors import UsageError

_MERGE_TIMEOUT_S = 6 * 3600.0
_TargetArgument = Annotated[
    str | None, typer.Argument(help="A lane, or a dataset with --dataset; none is everything.")
]
_DatasetFlag = Annotated[bool, typer.Option("--dataset", "-d", help="NAME is a dataset.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (
        pause, resume, drain, prioritize, enqueue, merge, extract, retry, reject, undo,
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


def drain(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Finish what runs, start nothing new, and wait until `eagled resume`."""
    _tell(call_post(config, "/v1/drain"), as_json=as_json)


def change(
    setting: Annotated[str, typer.Argument(help="lane.NAME.limit or dataset.NAME.priority.")],
    value: Annotated[int, typer.Argument(help="The new value; a lane's limit 0 is the server's.")],
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a lane's limit or a dataset's priority, live; `eagled undo` takes it back."""
    kind, _, rest = setting.partition(".")
    name, _, field = rest.rpartition(".")
    wanted = {"lane": ("lanes", "limit"), "dataset": ("datasets", "priority")}.get(kind)
    if wanted is None or not name or field != wanted[1]:
        raise UsageError(
            f"{setting!r} cannot be set; accepted: lane.NAME.limit, dataset.NAME.priority"
        )
    _tell(
        call_post(config, f"/v1/{wanted[0]}/{quote(name, safe='')}", {wanted[1]: value}),
        as_json=as_json,
    )


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


def retry(
    samples: Annotated[list[str] | None, typer.Argument(help="Sample uids.")] = None,
    *,
    reason: Annotated[str | None, typer.Option(help="All that failed for this reason.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only those of this dataset.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All failed samples.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue failed samples again."""
    if not (samples or reason or dataset or everything):
        raise UsageError("name samples, --reason, --dataset or --all")
    body = {"samples": samples or [], "reason": reason, "dataset": dataset}
    _tell(call_post(config, "/v1/retry", body), as_json=as_json)


def reject(
    samples: Annotated[list[str], typer.Argument(help="Sample uids.")],
    *,
    reason: Annotated[str, typer.Option(help="Recorded with the samples.")] = "operator",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take samples out of the run."""
    body = {"samples": samples, "reason": reason}
    _tell(call_post(config, "/v1/reject", body), as_json=as_json)


def undo(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Take back the last change of a lane or dataset."""
    _tell(call_post(config, "/v1/undo"), as_json=as_json)
