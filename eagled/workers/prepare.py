"""Turn a source into a prepared dataset: exact first prompts, and a reason for every row left out.

Guarantee: rows read = kept + rejected by reason; the folder appears whole or not at all; the same
inputs and seed give the same bytes. What is there already is kept if every input is the same
("nothing to do") and refused, naming what differs, if one is not. An empty result is an error.
Price: choosing `count` rows by chance holds that many conversations in memory, and a quarter more.
Coupled: `eagled/prepared.py` reads the folder.
"""

from __future__ import annotations

import heapq
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from eagled import __version__
from eagled.artifacts import (
    MANIFEST_NAME,
    disk_error,
    fsync_dir,
    sha256_file,
    sha256_json,
    write_json,
)
from eagled.config import Config, DatasetConfig
from eagled.errors import ArtifactError, ConfigError, RowRejectedError
from eagled.lanes import longest_prompt, ordered_lanes
from eagled.paths import StatePaths
from eagled.prepared import (
    CONVERSATIONS_NAME,
    PREPARED_FORMAT,
    PREPARED_VERSION,
    PROFILE_NAME,
    REJECTS_NAME,
    ZSTD_LEVEL,
    read_manifest,
)
from eagled.printable import printable
from eagled.profile import profile_of
from eagled.readers.sources import Source, open_source
from eagled.text.render import Renderer
from eagled.text.rows import Candidate, LineMaker, PrepProgress, PrepRun, Progress, Rejects, Screen
from eagled.tokens import make_uid
from eagled.types import RowReason

__all__ = ["PrepProgress", "PrepResult", "load_renderer", "prepare_all", "prepare_dataset"]

_SPARE_SHARE = 1.25  # candidates chosen by chance per wanted row; rendering rejects a few
_SPARE_ROWS = 64


@dataclass(frozen=True, slots=True)
class PrepResult:
    """What became of a dataset; `skipped`: it was there already, made from the same inputs."""

    dataset: str
    folder: Path
    prep_key: str
    rows: int
    kept: int
    turns: int
    rejected: Mapping[str, int]
    skipped: bool = False


def prepare_all(
    config: Config,
    names: Iterable[str] = (),
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[PrepResult]:
    """Prepare the named datasets, or all, with one tokenizer.

    Raises:
        ConfigError: as `prepare_dataset`; datasets before the faulty one stay prepared.
    """
    chosen = [config.dataset(name) for name in names] or list(config.datasets)
    if not chosen:
        raise ConfigError("no dataset is configured: add a [[datasets]] section")
    renderer = load_renderer(config)
    return [
        prepare_dataset(config, dataset, progress=progress, force=force, renderer=renderer)
        for dataset in chosen
    ]


def load_renderer(config: Config) -> Renderer:
    """Return the renderer that prep and the text worker use for this configuration."""
    return Renderer.load(config.target, literal_control_text=config.prep.literal_control_text)


def prepare_dataset(
    config: Config,
    dataset: DatasetConfig,
    *,
    progress: Progress | None = None,
    force: bool = False,
    renderer: Renderer | None = None,
) -> PrepResult:
    """Prepare one dataset into `<state>/datasets/<name>/`.

    Args:
        config: the whole configuration.
        dataset: the dataset, one of `config.datasets`.
        progress: told the counts every hundred rows and at the end.
        force: replace a folder that was made from other inputs.
        renderer: the target's renderer if the caller has it already.

    Raises:
        ConfigError: wrong source, template or arguments, or no row is left.
        ArtifactError: the folder was made from other inputs, or a file cannot be read.
        UnreachableError: the source is on the hub and the hub does not answer.
        DiskError: the folder cannot be written.
    """
    renderer = renderer or load_renderer(config)
    renderer.require_thinking(thinking=config.sampling_of(dataset.name).thinking)
    source = open_source(dataset)
    inputs = _inputs(config, dataset, source, renderer)
    folder = StatePaths(config.run.state_dir).datasets / dataset.name
    done = _existing(folder, inputs, force=force)
    if done is not None:
        return done
    run = PrepRun(config, dataset, renderer, progress)
    try:
        return _build(run, source, inputs, folder)
    except OSError as exc:
        raise disk_error(exc, folder) or exc from exc


def _inputs(
    config: Config, dataset: DatasetConfig, source: Source, renderer: Renderer
) -> dict[str, Any]:
    """Return everything that decides the result, by a name that a person understands."""
    return {
        "prepared version": PREPARED_VERSION,
        "dataset name": dataset.name,
        "source": dict(source.identity),
        "format": dataset.format,
        "mode": dataset.mode.value,
        "count": dataset.count,
        "choice by chance": config.run.seed if dataset.shuffle and dataset.count else None,
        "tokenizer": renderer.tokenizer_hash,
        "chat template": renderer.template_hash,
        "template arguments": dict(config.target.template_kwargs),
        "thinking": config.sampling_of(dataset.name).thinking,
        "longest prompt": longest_prompt(config),
        "longest context": ordered_lanes(config)[-1][1].context,
        "literal control text": config.prep.literal_control_text,
        "excluded prompts": {path.name: _sha256(path) for path in config.prep.exclude},
    }


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as exc:
        raise ConfigError(f"prep.exclude: {path} cannot be read: {exc.strerror}") from exc


def _existing(folder: Path, inputs: Mapping[str, Any], *, force: bool) -> PrepResult | None:
    """Return the result that is there already, if it may be used.

    Raises:
        ArtifactError: if it was made from other inputs and is not to be replaced.
    """
    if not folder.exists():
        return None
    try:
        manifest = read_manifest(folder)
    except ArtifactError:
        if force:
            return None
        raise
    if manifest.prep_key == sha256_json(inputs):
        return PrepResult(
            manifest.dataset, folder, manifest.prep_key, manifest.n_rows, manifest.n_kept,
            manifest.n_turns, manifest.rejected, skipped=True,
        )  # fmt: skip
    if force:
        return None
    keys = sorted({*inputs, *manifest.inputs})
    differs = [key for key in keys if inputs.get(key) != manifest.inputs.get(key)]
    lines = [
        f"{key}: it was made with {manifest.inputs.get(key)!r}, now {inputs.get(key)!r}"
        for key in differs
    ]
    raise ArtifactError(
        f"{folder} was prepared from other inputs; these differ: {', '.join(differs)}\n  - "
        + "\n  - ".join(printable(line, 300) for line in lines)
        + "\nUse another dataset name, or `eagled prep --force` to make it again (samples already "
        "enqueued from it stay as they are)"
    )


def _build(run: PrepRun, source: Source, inputs: Mapping[str, Any], folder: Path) -> PrepResult:
    """Write the folder under a temporary name and give it its own when it is whole."""
    building = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        _write_rows(run, source, building)
        _refuse_empty(run)
        key = sha256_json(inputs)
        _write_manifest(run, inputs, key, building)
        _swap(building, folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    run.tell()
    return PrepResult(
        run.dataset.name, folder, key, run.rows, run.kept, run.turns, dict(run.rejected)
    )


def _write_rows(run: PrepRun, source: Source, building: Path) -> None:
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    with (
        (building / REJECTS_NAME).open("wb") as rejects_file,
        (building / CONVERSATIONS_NAME).open("wb") as packed,
        compressor.stream_writer(packed, closefd=False) as out,
    ):
        rejects = Rejects(run, rejects_file)
        lines = LineMaker(run)
        for candidate in _chosen(run, Screen(run, rejects).passed(source.rows())):
            try:
                out.write(lines.line(candidate) + b"\n")
            except RowRejectedError as exc:
                rejects.add(candidate.row, exc, candidate.conversation.source_id)


def _chosen(run: PrepRun, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    """Yield candidates until `count` of them were kept: the first ones, or chosen by the seed.

    The first ones: rows behind the last kept one are not read, so they are counted nowhere.
    """
    count = run.dataset.count
    if not count:
        yield from candidates
        return
    for candidate in _by_chance(run, candidates) if run.dataset.shuffle else candidates:
        if run.kept < count:
            yield candidate
        else:
            run.rejected[RowReason.NOT_CHOSEN.value] += 1
        if run.kept >= count and not run.dataset.shuffle:
            run.stopped_early = True
            return


def _by_chance(run: PrepRun, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    """Yield a choice that depends on seed and content only, with spare ones behind it."""
    keep = int(run.dataset.count * _SPARE_SHARE) + _SPARE_ROWS
    heap: list[tuple[int, int, Candidate]] = []
    for number, candidate in enumerate(candidates):
        ticket = make_uid("choice", str(run.config.run.seed), candidate.uid)
        entry = (-int.from_bytes(ticket, "big"), number, candidate)
        if len(heap) < keep:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
            run.rejected[RowReason.NOT_CHOSEN.value] += 1
    for _, _, candidate in sorted(heap, key=lambda entry: (-entry[0], entry[1])):
        yield candidate


def _refuse_empty(run: PrepRun) -> None:
    if run.kept:
        return
    if not run.rows:
        raise ConfigError(
            f"dataset {run.dataset.name!r}: the source has no rows; check datasets.source"
        )
    reasons = ", ".join(f"{reason} {n}" for reason, n in run.rejected.most_common())
    raise ConfigError(
        f"dataset {run.dataset.name!r}: all {run.rows} rows were rejected ({reasons}); check "
        "datasets.format and datasets.mode, and the lanes if prompts are too long",
        tuple(run.examples),
    )


def _write_manifest(run: PrepRun, inputs: Mapping[str, Any], key: str, building: Path) -> None:
    profile = {
        "prompt_tokens": profile_of(run.lengths).to_json(),
        "answer_tokens": profile_of(run.answer_lengths).to_json(),
    }
    write_json(building / PROFILE_NAME, profile)
    files = {
        name: {
            "sha256": sha256_file(building / name),
            "bytes": (building / name).stat().st_size,
        }
        for name in (CONVERSATIONS_NAME, REJECTS_NAME, PROFILE_NAME)
    }
    write_json(
        building / MANIFEST_NAME,
        {
            "format": PREPARED_FORMAT,
            "version": PREPARED_VERSION,
            "command": "prep",
            "eagled": __version__,
            "dataset": run.dataset.name,
            "source": run.dataset.source,
            "mode": run.dataset.mode.value,
            "target": {"model": run.config.target.model, "revision": run.config.target.revision},
            "sampling": run.config.sampling_of(run.dataset.name).model_dump(mode="json"),
            "prep_key": key,
            "inputs": dict(inputs),
            "rows": run.rows,
            "kept": run.kept,
            "turns": run.turns,
            "rejected": dict(run.rejected),
            "flags": dict(run.flags),
            "stopped_at_count": run.stopped_early,
            "template": run.renderer.facts.to_json(),
            "files": files,
        },
    )


def _swap(building: Path, folder: Path) -> None:
    """Put a finished folder in its place; the one it replaces goes away last."""
    for name in (CONVERSATIONS_NAME, REJECTS_NAME):
        with (building / name).open("rb+") as file:
            os.fsync(file.fileno())
    fsync_dir(building)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    building.rename(folder)
    fsync_dir(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
