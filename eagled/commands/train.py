"""`eagled train` and `eagled draft`: train a draft, check it, export it."""

from __future__ import annotations

from pathlib import Path
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
from eagled.errors import ArtifactError, ConfigError, UsageError

if TYPE_CHECKING:
    from eagled.draft import Finding
    from eagled.train.metrics import StepRecord
    from eagled.workers.train import Trained

app = typer.Typer(help="Trained drafts: check, export.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add the commands to `root`."""
    root.command()(train)
    root.add_typer(app, name="draft")


def train(
    name: Annotated[str, typer.Option("--name", help="Folder below drafts/.")] = "",
    version: Annotated[str, typer.Option("--corpus", help="Version; none is the newest.")] = "",
    *,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a draft on a frozen corpus, or go on where it was stopped; export it.

    Several GPUs: torchrun --nproc-per-node N --no-python eagled train …
    """
    from eagled.workers.train import train_run

    loaded = load(config, settings).config
    trained = train_run(loaded, name=name, version=version, progress=_show_step)
    progress_line("")
    if as_json:
        say_json(_train_json(trained))
        return
    _say_trained(trained)


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
    for when, found in (("before", result.before), ("after", result.after)):
        if found is not None:
            say(f"{when}: {found.total.length:.3f} tokens a verify step (held out, an estimate)")
    say(f"draft:  {trained.draft}")
    say(f"report: {trained.report}")


_EngineOption = Annotated[str, typer.Option("--engine", help="sglang or vllm.")]
_VersionOption = Annotated[
    str, typer.Option("--engine-version", help="Such as 0.5.23; none is a current one.")
]


@app.command("check")
def draft_check(  # noqa: PLR0913 - one option a question
    folder: Annotated[Path, typer.Argument(help="Folder with config.json and safetensors.")],
    *,
    target: Annotated[
        Path | None, typer.Option(help="Target model; none is the configured one.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="--speculative-algorithm it is served with.")] = (
        "EAGLE3"
    ),
    context: Annotated[int, typer.Option(help="Context length of the server; 0 skips that.")] = 0,
    layers: Annotated[
        str, typer.Option(help="Boundary ids of its data, such as 2,30,58; else its own note.")
    ] = "",
    engine: _EngineOption = "sglang",
    version: _VersionOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with an EAGLE-3 draft, ours or not, for the engine that serves it."""
    from eagled.draft import Launch, check_draft
    from eagled.train.geometry import target_config

    place = target or _configured_target(config)
    plan = Launch(algorithm, context, version, _engine(engine))
    known = target_config(place) if place else None
    found = check_draft(folder, known, plan, _layers(layers))
    if as_json:
        say_json([{"level": f.level, "about": f.about, "text": f.text} for f in found])
    else:
        _say_findings(folder, found, compared=place is not None)
    if any(f.level == "error" for f in found):
        raise typer.Exit(ArtifactError.exit_code)


def _say_findings(folder: Path, found: list[Finding], *, compared: bool) -> None:
    for finding in found:
        say(f"{finding.level}: {finding.text}")
    if not compared:
        say("no target is known, so sizes, layers and rotary settings were not compared: --target")
    if not found:
        say(f"{folder} is a draft that is served as it was trained")


def _configured_target(config: Path | None) -> Path | None:
    """Return the configured target's folder, None without a configuration."""
    from eagled.shards.target import resolve_model

    try:
        target = load(config).config.target
    except ConfigError:
        if config is not None:
            raise
        return None
    return resolve_model(target.model, target.revision)


def _engine(name: str) -> Any:  # noqa: ANN401 - a literal that was just checked
    if name not in ("sglang", "vllm"):
        raise UsageError(f"--engine {name!r}: accepted are sglang and vllm")
    return name


def _layers(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split(",")) if given else ()
    except ValueError as exc:
        raise UsageError(f"--layers {given!r}: must be numbers such as 2,30,58") from exc


@app.command("export")
def draft_export(
    run: Annotated[str, typer.Argument(help="Training run below drafts/, or its folder.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    *,
    engine: _EngineOption = "sglang",
    version: _VersionOption = "",
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    config: ConfigOption = None,
) -> None:
    """Write a trained draft as SGLang or vLLM loads it, from the newest checkpoint."""
    from eagled.paths import StatePaths
    from eagled.shards.target import resolve_model
    from eagled.train.export import export_draft, weights_of
    from eagled.train.geometry import target_config

    if dtype not in ("bfloat16", "float32"):
        raise UsageError(f"--dtype {dtype!r}: accepted are bfloat16 and float32")
    loaded = load(config).config
    folder = Path(run) if Path(run).is_dir() else StatePaths(loaded.run.state_dir).drafts / run
    target = target_config(resolve_model(loaded.target.model, loaded.target.revision))
    written = export_draft(
        weights_of(folder), out, target, engine=_engine(engine), version=version,
        dtype=dtype,  # type: ignore[arg-type]  # checked above
    )  # fmt: skip
    say(str(written))
