"""`eagled export`: the corpus and its states in the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import ConfigOption, JsonOption, load, progress_line, say, say_json
from eagled.errors import UsageError

if TYPE_CHECKING:
    from eagled.config import Config
    from eagled.train.corpus import Corpus
    from eagled.workers.export_folder import ExportResult

FORMATS = ("specforge", "speculators", "parquet", "hf-messages")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(export)


def export(
    *,
    to: Annotated[str, typer.Option(help="specforge, speculators, parquet or hf-messages.")],
    out: Annotated[Path, typer.Option(help="Folder to make; it must not exist.")],
    corpus: Annotated[
        str | None, typer.Option(help="Corpus version such as v001; none is the newest.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train or holdout; none is both.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out samples that have no states yet.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a corpus for another tool; what cannot be given is said, and kept in export.json."""
    from eagled.paths import StatePaths
    from eagled.train.corpus import latest_corpus, read_corpus
    from eagled.workers.export_folder import result_json

    if to not in FORMATS:
        raise UsageError(f"--to {to!r}: accepted: {', '.join(FORMATS)}")
    if split not in (None, "train", "holdout"):
        raise UsageError(f"--split {split!r}: accepted: train, holdout")
    loaded = load(config).config
    corpora = StatePaths(loaded.run.state_dir).corpora
    found = read_corpus(corpora / corpus) if corpus else latest_corpus(corpora)
    if to in ("specforge", "speculators"):
        result = _states(loaded, found, to, out, split, partial=partial)
    else:
        result = _text(loaded, found, to, out, split)
    progress_line("")
    if as_json:
        say_json(result_json(result))
        return
    say(f"{result.folder}: {result.samples:,} samples, {result.tokens:,} tokens")
    for note in result.notes:
        say(f"  {note}")


def _states(
    config: Config, corpus: Corpus, to: str, out: Path, split: str | None, *, partial: bool
) -> ExportResult:
    from eagled.paths import StatePaths
    from eagled.shards.reader import ShardDataset
    from eagled.workers.export import export_specforge, export_speculators

    dataset = ShardDataset.from_folder(
        StatePaths(config.run.state_dir).shards, corpus=corpus, split=split, partial=partial
    )
    if to == "specforge":
        return export_specforge(dataset, out, progress=_show)
    target = Path(config.target.model)
    return export_speculators(dataset, out, target if target.is_dir() else None, progress=_show)


def _text(config: Config, corpus: Corpus, to: str, out: Path, split: str | None) -> ExportResult:
    from eagled.text.render import Renderer
    from eagled.workers.export_text import export_messages, export_parquet

    renderer = Renderer.load(config.target, literal_control_text=config.prep.literal_control_text)
    if to == "parquet":
        return export_parquet(corpus, renderer, out, split=split)
    return export_messages(config, corpus, renderer, out, split=split)


def _show(done: int, total: int) -> None:
    progress_line(f"{done}/{total} samples")
