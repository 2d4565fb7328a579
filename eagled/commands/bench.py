"""`eagled bench`: what a draft is worth on a live server."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    load,
    progress_line,
    say,
    say_json,
    warn,
)
from eagled.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from eagled.benchmark.prompts import Workload
    from eagled.benchmark.run import Benchmark, Settings
    from eagled.benchmark.servers import Speculate
    from eagled.config import Config
    from eagled.sampling import ResolvedSampling

_T = TypeVar("_T")
_CONCURRENCIES = "1,8,32"


def register(root: typer.Typer) -> None:
    """Add the command to `root`."""
    root.command()(bench)


def bench(  # noqa: PLR0913 - one option a question
    draft: Annotated[
        Path | None, typer.Argument(help="Folder of the draft; none with --draft-url.")
    ] = None,
    *,
    prompts: Annotated[
        list[Path] | None, typer.Option(help="JSON or JSONL file of prompts; may be repeated.")
    ] = None,
    mt_bench: Annotated[
        bool, typer.Option("--mt-bench", help="Ask MT-bench's first questions (a download).")
    ] = False,
    holdout: Annotated[
        bool, typer.Option("--holdout", help="Ask the held-out samples of the newest corpus.")
    ] = False,
    per_set: Annotated[int, typer.Option(min=1, help="Prompts of each set, at most.")] = 80,
    concurrency: Annotated[
        str, typer.Option(help="Requests at once, one measurement each.")
    ] = _CONCURRENCIES,
    speculate: Annotated[
        list[str] | None,
        typer.Option(help="Steps/topk/draft tokens, such as 3/1/4; may be repeated."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Measured passes of each point.")] = 3,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Longest answer in tokens.")] = 512,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Sample as the run does; else greedy.")
    ] = False,
    plain_url: Annotated[str, typer.Option(help="A plain server that runs; none starts one.")] = "",
    draft_url: Annotated[
        str, typer.Option(help="A server with the draft that runs; none starts one.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; an earlier one goes on.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a draft on real servers against the same server without it.

    Starts SGLang plain, then with the draft, at the first of [[servers]]; ends both.
    """
    from eagled.benchmark.run import Settings
    from eagled.benchmark.servers import check_folder
    from eagled.draft import Launch
    from eagled.server.command import context_needed
    from eagled.shards.target import resolve_model
    from eagled.train.geometry import target_config

    loaded = load(config, settings).config
    if draft is None and not draft_url:
        raise UsageError("give the folder of a draft, or --draft-url of a server that has one")
    if not loaded.servers:
        raise ConfigError("[[servers]] is empty: give the address that SGLang is to serve at")
    how = Settings(
        server=loaded.servers[0], draft=draft.absolute() if draft else None,
        plain_url=plain_url, draft_url=draft_url,
        speculate=_speculations(loaded, speculate, draft_url), runs=runs,
        concurrencies=_concurrencies(concurrency), out=out or _new_folder(loaded),
    )  # fmt: skip
    folder = resolve_model(loaded.target.model, loaded.target.revision)
    if how.draft is not None:
        launch = Launch(context_length=context_needed(loaded) or 0)
        for text in check_folder(how.draft, target_config(folder), launch):
            warn(f"warning: {text}")
    wanted = _workload(
        loaded, [*(prompts or ())], per_set,
        mt_bench=mt_bench, holdout=holdout, sampling=_sampling(loaded, max_new_tokens, sampled),
    )  # fmt: skip
    found = _until_ended(_measure(loaded, how, wanted, folder))
    _say(found, as_json=as_json)


async def _measure(config: Config, how: Settings, wanted: Workload, model: Path) -> Benchmark:
    from eagled.benchmark.run import Runner
    from eagled.shards.target import read_target
    from eagled.train.geometry import target_config

    size, target = read_target(model).vocab_size, target_config(model)
    return await Runner(config, how, size, target, progress_line).run(wanted)


def _until_ended(work: Coroutine[Any, Any, _T]) -> _T:
    """Run it; SIGTERM ends it as ctrl-C does, with its servers."""
    import asyncio

    async def ended_by_signals() -> _T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(ended_by_signals())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _workload(
    config: Config,
    files: list[Path],
    per_set: int,
    *,
    mt_bench: bool,
    holdout: bool,
    sampling: ResolvedSampling,
) -> Workload:
    from eagled.benchmark.prompts import Wanted, make_workload
    from eagled.demo.data import benchmark_prompts
    from eagled.demo.fetch import cache_dir
    from eagled.text.render import Renderer
    from eagled.text.tokenizer import keep_torch_out

    keep_torch_out()
    if mt_bench:
        files = [*files, benchmark_prompts(cache_dir(), cache_dir())]
    if not files and not holdout:
        raise UsageError("there is nothing to ask: give --prompts FILE, --mt-bench or --holdout")
    renderer = Renderer.load(config.target)
    return make_workload(config, renderer, Wanted(files, per_set, holdout), sampling)


def _sampling(config: Config, max_new_tokens: int, sampled: bool) -> ResolvedSampling:  # noqa: FBT001 - an option of the command
    from eagled.sampling import ResolvedSampling, model_defaults, resolve_sampling
    from eagled.shards.target import resolve_model

    if not sampled:
        return ResolvedSampling(0.0, 1.0, -1, 0.0, max_new_tokens, None)
    folder = resolve_model(config.target.model, config.target.revision)
    own = resolve_sampling(config, "", model_defaults(folder))
    return ResolvedSampling(
        own.temperature, own.top_p, own.top_k, own.min_p, max_new_tokens, own.seed
    )


def _concurrencies(text: str) -> tuple[int, ...]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError as exc:
        raise UsageError(f"--concurrency {text!r}: must be numbers such as 1,8,32") from exc
    if found[0] < 1:
        raise UsageError(f"--concurrency {text!r}: at least 1")
    return tuple(found)


def _speculations(
    config: Config, given: list[str] | None, draft_url: str
) -> tuple[Speculate | None, ...]:
    from eagled.benchmark.servers import Speculate

    if draft_url:
        if given:
            raise UsageError("--speculate belongs to a server that is started, not to --draft-url")
        return (None,)
    if given:
        return tuple(dict.fromkeys(Speculate.parse(text) for text in given))
    return (Speculate.of_args(config.serve.draft_args),)


def _new_folder(config: Config) -> Path:
    from eagled.paths import StatePaths

    root = StatePaths(config.run.state_dir).benchmarks
    taken = [int(p.name[1:]) for p in root.glob("b*") if p.name[1:].isdecimal()]
    return root / f"b{max(taken, default=0) + 1:03}"


def _say(found: Benchmark, *, as_json: bool) -> None:
    from eagled.benchmark.figures import verdict
    from eagled.benchmark.report import draw, write_report

    progress_line("")
    page = write_report(found, shlex.join(["eagled", *sys.argv[1:]]))
    try:
        draw(found)
    except ConfigError as exc:
        warn(f"no plots: {exc}")
    if as_json:
        say_json(found.to_dict())
        return
    for side in found.tests:
        length = side.speculation.length
        say(f"{side.name}: {verdict(found.gains(side))}; accepted length {length:.2f}")
    say(f"report: {page}")
