"""`eagled draft`: check a draft, export it, estimate what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagled.commands.common import ConfigOption, JsonOption, load, say, say_json
from eagled.errors import ArtifactError, ConfigError, UsageError

if TYPE_CHECKING:
    from eagled.draft import Finding
    from eagled.train.accept import Estimate
    from eagled.workers.estimate import GreedyEstimate

app = typer.Typer(
    help="Trained drafts: check, export, estimate their acceptance.", no_args_is_help=True
)


def register(root: typer.Typer) -> None:
    """Add the group to `root`."""
    root.add_typer(app, name="draft")


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
    folder = StatePaths(loaded.run.state_dir).draft_run(run)
    target = target_config(resolve_model(loaded.target.model, loaded.target.revision))
    written = export_draft(
        weights_of(folder), out, target, engine=_engine(engine), version=version,
        dtype=dtype,  # type: ignore[arg-type]  # checked above
    )  # fmt: skip
    say(str(written))


@app.command("estimate")
def draft_estimate(
    run: Annotated[str, typer.Argument(help="Training run below drafts/, or its folder.")],
    prompts: Annotated[Path, typer.Argument(help="JSON or JSONL file of prompts, held out.")],
    *,
    count: Annotated[int, typer.Option(min=1, help="Prompts to ask, the first of the file.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(min=4, help="Longest answer in tokens.")] = 96,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate a draft's acceptance on greedy answers of the target, on the CPU, without a server.

    The draft before its first step and the newest checkpoint's are walked over the same answers.
    """
    from eagled.workers.estimate import Asked, estimate_run

    found = estimate_run(load(config).config, run, Asked(prompts, count, max_new_tokens))
    if as_json:
        say_json(found.to_dict())
        return
    _say_estimate(found)


def _say_estimate(found: GreedyEstimate) -> None:
    say(
        f"{len(found.answers)} greedy answers of {found.asked} prompts; left out: "
        f"{found.looping} that loop, {found.short} that are over at once"
    )
    for when, estimate in (("before", found.before), ("after", found.after)):
        say(f"{when}: {_length(estimate)}")
    say("an estimate: greedy chain verification of recorded answers, no serving and no speed-up")


def _length(estimate: Estimate) -> str:
    shares = ", ".join(f"{share:.0%}" for share in estimate.total.by_position)
    return f"{estimate.total.length:.3f} tokens a verify step; right guesses by position: {shares}"
