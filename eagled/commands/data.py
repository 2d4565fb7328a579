"""Commands that work on files: prepare, look at lengths, vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    load,
    say,
    say_json,
)
from eagled.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eagled.config import Config
    from eagled.cuts import Capacity
    from eagled.profile import LengthProfile

_NamesArgument = Annotated[list[str] | None, typer.Argument(help="Datasets; none is all.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (prep, profile, vocab):
        app.command()(command)


def prep(  # noqa: PLR0913 - one argument an option of the command
    names: _NamesArgument = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace what other inputs made.")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="List the row formats.")] = False,
    inspect: Annotated[
        str | None,
        typer.Option(
            "--inspect",
            metavar="FILE",
            help="Show what becomes of each row of a file, folder, hub id or dataset; "
            "prepare nothing.",
        ),
    ] = None,
    row_format: Annotated[
        str | None, typer.Option("--format", help="With --inspect: the row format.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", help="With --inspect: whose answers count, native or regenerate."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="With --inspect: only the first rows; 0 is all.")
    ] = 0,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prepare datasets: rows become prompts, each rejected row gets a reason."""
    if formats:
        from eagled.readers import formats as known

        say("\n".join(["auto", *(f"{each.name:32}{each.columns}" for each in known())]))
        return
    if inspect is not None:
        from eagled.commands.inspect_view import inspect_source

        inspect_source(
            inspect, format_name=row_format, mode=mode, most=rows, config=config,
            settings=settings, as_json=as_json,
        )  # fmt: skip
        return
    if row_format is not None or mode is not None or rows:
        raise UsageError("--format, --mode and --rows go with --inspect FILE")
    from eagled.commands.prep_view import PrepDisplay, result_json, say_results
    from eagled.workers.prepare import prepare_all

    loaded = load(config, settings).config
    results = prepare_all(loaded, names or (), force=force, progress=PrepDisplay())
    if as_json:
        say_json([result_json(result) for result in results])
    else:
        say_results(results)


def profile(
    names: _NamesArgument = None,
    *,
    kv_tokens: Annotated[
        int, typer.Option(help="KV memory in tokens; 0 asks the configured servers.")
    ] = 0,
    reply_tokens: Annotated[
        int, typer.Option(help="Expected answer in tokens; 0 is generation.min_reply.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write the histograms to this .png or .svg file.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show prompt lengths of prepared datasets, what each lane cut costs, and which to take."""
    from eagled.commands.prep_view import profile_json, read_profiles, say_profile
    from eagled.cuts import Capacity, cuts, proposed
    from eagled.profile import join

    loaded = load(config, settings).config
    profiles = read_profiles(loaded, names or [d.name for d in loaded.datasets])
    known = _capacity(loaded)
    capacity = Capacity(kv_tokens or known.kv_tokens, known.context)
    expected = reply_tokens or loaded.generation.min_reply
    found = cuts(join(list(profiles.values())), loaded, capacity, expected)
    chosen = proposed(found)
    if plot is not None:
        _plot_profiles(plot, profiles, chosen.context)
    if as_json:
        say_json(profile_json(profiles, capacity, expected, found, chosen))
    else:
        say_profile(profiles, capacity, expected, found, chosen)


def _capacity(config: Config) -> Capacity:
    import asyncio

    from eagled.server.capacity import ask_capacity

    return asyncio.run(ask_capacity(config))


def _plot_profiles(path: Path, profiles: Mapping[str, LengthProfile], cut: int) -> None:
    from eagled.plots import Bars, histograms
    from eagled.profile import bucket_start

    bars = []
    for name, item in profiles.items():
        edges, counts = [edge for edge, _ in item.histogram], [n for _, n in item.histogram]
        lows = [bucket_start(edge) for edge in edges]
        bars.append(Bars(f"{name}: {item.n:,} prompts", lows, edges, counts))
    histograms(path, bars, xlabel="tokens of a prompt", marks=[(cut, f"cut {cut:,}")])


def vocab(
    version: Annotated[
        str | None, typer.Argument(help="Corpus version such as v001; none is the newest.")
    ] = None,
    *,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build the draft vocabulary of a corpus."""
    import dataclasses

    from eagled.paths import StatePaths
    from eagled.train.corpus import latest_corpus, read_corpus
    from eagled.train.vocab import vocab_run

    loaded = load(config, settings).config
    corpora = StatePaths(loaded.run.state_dir).corpora
    corpus = read_corpus(corpora / version) if version else latest_corpus(corpora)
    result = vocab_run(loaded, corpus)
    if as_json:
        coverage = [dataclasses.asdict(part) for part in (*result.coverage, *result.lanes)]
        say_json(
            {"folder": str(result.folder), "created": result.created, "fillers": result.fillers,
             "coverage": coverage}
        )  # fmt: skip
        return
    say(str(result.folder))
    for part in (*result.coverage, *result.lanes):
        shown = ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(part).items())
        say(f"  {shown}")
    if result.fillers:
        say(f"  {result.fillers} places are fillers: the corpus has too few different tokens")
