"""Commands that work on files: prepare, look at lengths, plan, vocabulary, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from eagled.errors import ArtifactError, UnreachableError, UsageError

if TYPE_CHECKING:
    from eagled.paths import StatePaths
    from eagled.shards.verify import Finding, VerifyReport

_NamesArgument = Annotated[list[str] | None, typer.Argument(help="Datasets; none is all.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (prep, profile, plan, vocab, verify):
        app.command()(command)


def prep(
    names: _NamesArgument = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace what other inputs made.")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="List the row formats.")] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prepare datasets: rows become prompts, each rejected row gets a reason."""
    if formats:
        from eagled.readers import formats as known

        say("\n".join(["auto", *(each.name for each in known())]))
        return
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
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show prompt lengths of prepared datasets and propose the lane cut."""
    import dataclasses

    from eagled.paths import StatePaths
    from eagled.profile import join, propose_cut, read_profile, table

    loaded = load(config, settings)
    root = StatePaths(loaded.config.run.state_dir).datasets
    chosen = names or [d.name for d in loaded.config.datasets]
    if not chosen:
        raise UsageError("no dataset is configured: add [[datasets]] with name and source")
    for name in chosen:
        if not (root / loaded.config.dataset(name).name).is_dir():
            raise ArtifactError(f"dataset {name} is not prepared: run `eagled prep {name}` first")
    profiles = {name: read_profile(root / name) for name in chosen}
    cut = propose_cut(join(list(profiles.values())), loaded.config)
    if as_json:
        shown = {name: dataclasses.asdict(item) for name, item in profiles.items()}
        say_json({"datasets": shown, "proposed_cut": cut})
        return
    for name, item in profiles.items():
        say(table(name, item))
    say(f"proposed context of the short lane: {cut}")


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
        coverage = [dataclasses.asdict(part) for part in result.coverage]
        say_json(
            {"folder": str(result.folder), "created": result.created, "fillers": result.fillers,
             "coverage": coverage}
        )  # fmt: skip
        return
    say(str(result.folder))
    for part in result.coverage:
        shown = ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(part).items())
        say(f"  {shown}")
    if result.fillers:
        say(f"  {result.fillers} places are fillers: the corpus has too few different tokens")


def plan(
    *,
    write: Annotated[bool, typer.Option("--write", help="Write it into the plans folder.")] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Show the training plan with measured numbers; --write keeps it as a new version."""
    from eagled.commands.common import call_get
    from eagled.plan import show_plan, write_plan

    loaded = load(config, settings)
    try:
        status = call_get(config, "/v1/status")
    except UnreachableError:
        status = None  # the plan then uses the last snapshot
    if write:
        say(str(write_plan(loaded.config, status)))
    else:
        say(show_plan(loaded.config, status))


def verify(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Have damaged shards extracted again.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Re-read every shard and compare it with the database."""
    from eagled.paths import StatePaths

    report, findings = _verified(StatePaths(load(config).config.run.state_dir))
    progress_line("")
    if as_json:
        say_json(
            {
                "ok": not findings,
                "files": report.files,
                "samples": report.samples,
                "tokens": report.tokens,
                "bytes_read": report.bytes_read,
                "findings": [
                    {"file": f.file, "uid": f.uid, "problem": f.problem} for f in findings
                ],
            }
        )
    else:
        for finding in findings:
            warn(" ".join(part for part in (finding.file, finding.uid, finding.problem) if part))
        outcome = f"{len(findings)} findings" if findings else "all right"
        say(f"{report.files} shards, {report.samples} samples, {report.tokens} tokens: {outcome}")
    if repair:
        _drop(config, sorted({finding.file for finding in findings}))
    if findings:
        raise typer.Exit(ArtifactError.exit_code)


def _verified(paths: StatePaths) -> tuple[VerifyReport, list[Finding]]:
    """Return what was read and found; a shard that was committed meanwhile is no finding."""
    from eagled.shards.verify import verify_shards
    from eagled.store import StoreReader
    from eagled.workers.verify import committed, verify_run

    if not paths.database.is_file():
        report = verify_shards(paths.shards, progress=_show_file)
        return report, list(report.findings)
    with StoreReader(paths.database) as reader:
        before = set(committed(reader.shards()))
        report = verify_run(reader, paths.shards, progress=_show_file)
        new = set(committed(reader.shards())) - before
    return report, [finding for finding in report.findings if finding.file not in new]


def _show_file(name: str, done: int, total: int) -> None:
    progress_line(f"{done + 1}/{total} {name}")


def _drop(config: Path | None, names: list[str]) -> None:
    from eagled.commands.common import call_post

    for name in names:
        reply = call_post(config, f"/v1/shards/{name}/drop", {"reason": "eagled verify --repair"})
        say(f"{name}: {reply['message']}")
