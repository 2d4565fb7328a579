"""`eagled train`: train a draft on a frozen corpus, or from the ring of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    human_seconds,
    load,
    progress_line,
    say,
    say_json,
    warn,
)

if TYPE_CHECKING:
    from eagled.train.metrics import StepRecord
    from eagled.workers.train import Trained


def register(root: typer.Typer) -> None:
    """Add the command to `root`."""
    root.command()(train)


def train(
    name: Annotated[str, typer.Option("--name", help="Folder below drafts/.")] = "",
    version: Annotated[str, typer.Option("--corpus", help="Version; none is the newest.")] = "",
    *,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Train from the daemon's ring of shards while it extracts."),
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a draft on a frozen corpus, or go on where it was stopped; export it.

    With --stream the corpus gives the vocabulary only, and train.max_steps must be set.
    Several GPUs: torchrun --nproc-per-node N --no-python eagled train …
    """
    from eagled.socket_path import client_socket
    from eagled.workers.train import train_run
    from eagled.workers.train_stream import Stream

    loaded = load(config, settings).config
    ring = Stream(client_socket(config), _show_waiting) if stream else None
    trained = train_run(loaded, name=name, version=version, progress=_show_step, stream=ring)
    progress_line("")
    if as_json:
        say_json(_train_json(trained))
        return
    _say_trained(trained)


def _show_waiting() -> None:
    progress_line("waits for shards of the ring (`eagled shards ring`)")


def _show_step(record: StepRecord) -> None:
    rate = record.tokens / record.seconds
    left = (record.total - record.step) * record.seconds
    done = int(20 * record.step / record.total)
    bar = "█" * done + "░" * (20 - done)
    progress_line(
        f"{bar} {record.step}/{record.total}  loss {record.loss:.3f}  "
        f"accept {record.accept_length:.2f}  {rate:,.0f} tok/s  {human_seconds(left)}"
    )


def _train_json(trained: Trained) -> dict[str, Any]:
    result = trained.result
    return {
        "folder": str(trained.folder), "finished": result.finished, "step": result.step,
        "total": result.total, "left_out": result.left_out,
        "draft": str(trained.draft) if trained.draft else None,
        "report": str(trained.report) if trained.report else None,
        "before": result.before.to_dict() if result.before else None,
        "after": result.after.to_dict() if result.after else None,
    }  # fmt: skip


def _say_trained(trained: Trained) -> None:
    result = trained.result
    if trained.note:
        warn(trained.note)
    if result.left_out:
        say(f"{result.left_out} samples left out: nothing supervised within train.max_tokens")
    if not result.finished:
        say(f"stopped after {result.step} of {result.total} steps; the same command goes on")
        return
    if result.step < result.total:
        warn(
            f"the stream ended after {result.step} of {result.total} steps (train.max_steps), so "
            "the learning rate did not fall to its end"
        )
    for when, found in (("before", result.before), ("after", result.after)):
        if found is not None:
            say(f"{when}: {found.total.length:.3f} tokens a verify step (held out, an estimate)")
    say(f"draft:  {trained.draft}")
    say(f"report: {trained.report}")
