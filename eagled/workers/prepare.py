"""Turn a source into a prepared dataset: exact first prompts, and a reason for every row left out.

Guarantee: rows read = kept + rejected by reason; the folder appears whole or not at all; the same
inputs and seed give the same bytes, with any number of processes and whether or not prep was
killed on the way. What is there already is kept if every input is the same ("nothing to do") and
refused, naming what differs, if one is not. An empty result is an error.
Price: rows go to the tokenising processes and back; the parts lie beside the result until it is
whole. The passes themselves are in `workers/preparation/`.
Coupled: `eagled/prepared.py` reads the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from eagled.dedup import algorithm
from eagled.errors import ArtifactError, ConfigError, LockedError
from eagled.lanes import lane_for, longest_prompt, ordered_lanes
from eagled.paths import StatePaths
from eagled.prepared import (
    PREPARED_FORMAT,
    PREPARED_VERSION,
    PROFILE_NAME,
    read_manifest,
)
from eagled.printable import printable
from eagled.profile import profile_of
from eagled.readers.detect import with_format
from eagled.readers.sources import Source, open_source
from eagled.text.render import Renderer
from eagled.types import Mode
from eagled.workers.preparation.choose import Choice
from eagled.workers.preparation.crew import Crew, LocalCrew, ProcessCrew
from eagled.workers.preparation.expected import rows_expected, size_of
from eagled.workers.preparation.ledger import Ledger
from eagled.workers.preparation.lines import LinePass, assemble
from eagled.workers.preparation.messages import Job, TargetFacts
from eagled.workers.preparation.parts import Counts, Part
from eagled.workers.preparation.progress import PrepProgress, Progress, Teller
from eagled.workers.preparation.stage import Stage, total_of

__all__ = ["PrepProgress", "PrepResult", "prepare_all", "prepare_dataset"]

_BYTES_A_PROCESS = 1 << 20  # of source; a process needs two seconds to start
_KEY_NAME = "inputs.json"  # in a folder that is being built: what it is built from


@dataclass(frozen=True, slots=True)
class PrepResult:
    """What became of a dataset; `skipped`: it was there already, made from the same inputs.

    `tokens` are those of the known prompts and answers; `lanes` counts the prompts of each lane;
    `wanted` is the configured count, 0 for all.
    """

    dataset: str
    folder: Path
    prep_key: str
    rows: int
    kept: int
    turns: int
    rejected: Mapping[str, int]
    skipped: bool = False
    mode: Mode = Mode.REGENERATE
    tokens: int = 0
    lanes: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class _Order:
    """One dataset to prepare, and everything that decides its bytes."""

    job: Job
    source: Source
    facts: TargetFacts
    earlier: Sequence[Path]
    inputs: Mapping[str, Any]
    folder: Path

    @property
    def key(self) -> str:
        return sha256_json(self.inputs)


def prepare_all(
    config: Config,
    names: Iterable[str] = (),
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[PrepResult]:
    """Prepare the named datasets, or all, in the order of the configuration.

    Raises:
        ConfigError: as `prepare_dataset`; datasets before the faulty one stay prepared.
    """
    wanted = {config.dataset(name).name for name in names}
    chosen = [d for d in config.datasets if not wanted or d.name in wanted]
    if not chosen:
        raise ConfigError("no dataset is configured: add a [[datasets]] section")
    with closing(ProcessCrew(config.prep.workers)) as crew:
        return [
            prepare_dataset(config, dataset, progress=progress, force=force, crew=crew)
            for dataset in chosen
        ]


def prepare_dataset(
    config: Config,
    dataset: DatasetConfig,
    *,
    progress: Progress | None = None,
    force: bool = False,
    renderer: Renderer | None = None,
    crew: Crew | None = None,
) -> PrepResult:
    """Prepare one dataset into `<state>/datasets/<name>/`.

    Args:
        config: the whole configuration.
        dataset: the dataset, one of `config.datasets`.
        progress: told the counts a few times a second and at the end.
        force: replace a folder that was made from other inputs.
        renderer: does the work in this process, with this renderer.
        crew: the processes to use; without either, processes are started for this dataset.

    Raises:
        ConfigError: wrong source, template or arguments, or no row is left.
        ArtifactError: the folder was made from other inputs, or a file cannot be read.
        UnreachableError: the source is on the hub and the hub does not answer.
        DiskError: the folder cannot be written; finished parts are kept.
        WorkerLostError: a process was killed; finished parts are kept.
        LockedError: another prep works on this dataset.
    """
    if crew is None:
        own = LocalCrew(renderer) if renderer is not None else ProcessCrew(config.prep.workers)
        with closing(own):
            return prepare_dataset(config, dataset, progress=progress, force=force, crew=own)
    order = _order(config, dataset, crew)
    done = _existing(order, force=force)
    if done is not None:
        return done
    try:
        return _build(order, crew, progress)
    except OSError as exc:
        raise disk_error(exc, order.folder) or exc from exc


def _order(config: Config, dataset: DatasetConfig, crew: Crew) -> _Order:
    root = StatePaths(config.run.state_dir).datasets
    job = Job(config, with_format(dataset))
    crew.begin(job, _processes_for(dataset, root / dataset.name))
    source = open_source(dataset)
    facts = crew.facts(job)
    earlier = list(_earlier(config, dataset, root))
    inputs = {**_inputs(job, source, facts), **_comparisons(config, earlier)}
    if dataset.max_per_task:  # else not named: what was prepared before there was a limit is right
        inputs["runs of one task"] = dataset.max_per_task
    return _Order(job, source, facts, earlier, inputs, root / dataset.name)


def _processes_for(dataset: DatasetConfig, folder: Path) -> int:
    """Return how many processes are worth starting before it is known what has to be done."""
    if folder.exists():  # there may be nothing to do
        return 1
    size = size_of(dataset)
    return sys.maxsize if size is None else 1 + size // _BYTES_A_PROCESS


def _inputs(job: Job, source: Source, facts: TargetFacts) -> dict[str, Any]:
    """Return everything that decides the result, by a name that a person understands."""
    config, dataset = job.config, job.dataset
    return {
        "prepared version": PREPARED_VERSION,
        "dataset name": dataset.name,
        "source": dict(source.identity),
        "format": dataset.format,
        "mode": dataset.mode.value,
        "count": dataset.count,
        "choice by chance": config.run.seed if dataset.shuffle and dataset.count else None,
        "rows read": dataset.read_rows,
        "turns": [dataset.turns, config.run.seed]
        if dataset.turns not in ("all", "last")
        else (dataset.turns),
        "languages": list(dataset.languages),
        "prompt tokens": [dataset.min_tokens, dataset.max_tokens],
        "patterns": [list(dataset.include), list(dataset.exclude)],
        "tokenizer": facts.tokenizer_hash,
        "chat template": facts.template_hash,
        "template arguments": dict(config.target.template_kwargs),
        "thinking": config.sampling_of(dataset.name).thinking,
        "longest prompt": longest_prompt(config),
        "longest context": ordered_lanes(config)[-1][1].context,
        "literal control text": config.prep.literal_control_text,
        "excluded prompts": {path.name: _sha256(path) for path in config.prep.exclude},
        "excluded runs of words": config.prep.exclude_ngram if config.prep.exclude else None,
    }


def _comparisons(config: Config, earlier: Sequence[Path]) -> dict[str, Any]:
    """Return what decides which rows count as repeated."""
    prep = config.prep
    near = [prep.near, prep.near_threshold, algorithm()] if prep.near != "off" else None
    return {
        "duplicates": prep.duplicates,
        "near duplicates": near,
        "earlier datasets": {folder.name: read_manifest(folder).prep_key for folder in earlier},
    }


def _earlier(config: Config, dataset: DatasetConfig, root: Path) -> Iterator[Path]:
    """Yield the prepared datasets that stand before this one in the configuration."""
    if config.prep.duplicates != "all":
        return
    for other in config.datasets:
        if other.name == dataset.name:
            return
        if (root / other.name / MANIFEST_NAME).is_file():
            yield root / other.name


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as exc:
        raise ConfigError(f"prep.exclude: {path} cannot be read: {exc.strerror}") from exc


def _existing(order: _Order, *, force: bool) -> PrepResult | None:
    """Return the result that is there already, if it may be used.

    Raises:
        ArtifactError: if it was made from other inputs and is not to be replaced.
    """
    folder, inputs = order.folder, order.inputs
    if not folder.exists():
        return None
    try:
        manifest = read_manifest(folder)
    except ArtifactError:
        if force:
            return None
        raise
    if manifest.prep_key == order.key:
        return PrepResult(
            manifest.dataset, folder, manifest.prep_key, manifest.n_rows, manifest.n_kept,
            manifest.n_turns, manifest.rejected, skipped=True, mode=manifest.mode,
            tokens=manifest.tokens, lanes=manifest.lanes, flags=manifest.flags,
            wanted=order.job.dataset.count,
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


def _build(order: _Order, crew: Crew, progress: Progress | None) -> PrepResult:
    """Fill a folder with a temporary name and give it its own when it is whole."""
    dataset = order.job.dataset
    teller = Teller(dataset.name, progress, dataset.count, _expected(order))
    with _building(order) as folder:
        stage = Stage(order.job, crew, order.source, teller, folder)
        first, lines = _passes(stage, order.earlier)
        counts = total_of(first.counts, lines.counts)
        _refuse_empty(order, counts)
        _write_result(order, counts, first.parts, lines, folder)
        _swap(folder, order.folder)
    teller.tell(counts, ended=True)
    return PrepResult(
        dataset.name, order.folder, order.key, counts.rows, counts.kept, counts.turns,
        dict(counts.rejected), mode=dataset.mode, tokens=_tokens(counts),
        lanes=_lanes(order.job, counts), flags=dict(counts.flags),
        wanted=dataset.count,
    )  # fmt: skip


def _expected(order: _Order) -> int | None:
    rows = rows_expected(order.source)
    most = order.job.dataset.read_rows
    return min(rows, most) if rows is not None and most else rows or most or None


@contextmanager
def _building(order: _Order) -> Iterator[Path]:
    """Hold the folder that is being built; parts in it that have other inputs are removed.

    What is finished stays there when the block is left by a fault that another try may mend.

    Raises:
        LockedError: if another process builds there.
    """
    folder = order.folder.with_name(f".{order.folder.name}.tmp")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle, order.job.dataset.name)
        key = folder / _KEY_NAME
        if not key.is_file() or key.read_text(encoding="utf-8") != order.key:
            for path in folder.iterdir():
                path.unlink()
            key.write_text(order.key, encoding="utf-8")
        yield folder
    except ConfigError:  # the same inputs would end in the same way
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _lock(handle: int, name: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise LockedError(f"another `eagled prep` is preparing {name!r}: wait for it") from exc


@dataclass(frozen=True, slots=True)
class _First:
    """What the pass that chooses by chance left out; empty where there was none."""

    counts: Counts
    parts: Sequence[Part] = ()


def _passes(stage: Stage, earlier: Sequence[Path]) -> tuple[_First, LinePass]:
    """Choose (where rows are chosen by chance), then render."""
    prep = stage.job.config.prep
    dataset = stage.job.dataset
    runs = dataset.max_per_task
    if not (dataset.shuffle and dataset.count):
        with closing(Ledger(prep, earlier, stage.folder, runs=runs)) as ledger:
            lines = LinePass(stage, ledger, Counts())
            lines.run(lambda skip: stage.rows(skip=skip))
        return _First(Counts()), lines
    unsigned = stage.job.config.model_copy(update={"prep": prep.model_copy(update={"near": "off"})})
    with closing(Ledger(prep, earlier, stage.folder, near=False, runs=runs)) as ledger:
        choice = Choice(replace(stage, job=Job(unsigned, dataset)), ledger)
        choice.run()
    with closing(Ledger(prep, earlier, stage.folder, runs=runs)) as ledger:
        lines = LinePass(stage, ledger, choice.counts)
        lines.run(lambda skip: choice.chosen(skip=skip))
    left_out = Counts(rows=choice.passed - lines.counts.rows)
    left_out.not_chosen(left_out.rows)
    return _First(total_of(choice.counts, left_out), choice.parts), lines


def _refuse_empty(order: _Order, counts: Counts) -> None:
    if counts.kept:
        return
    name = order.job.dataset.name
    if not counts.rows:
        raise ConfigError(f"dataset {name!r}: the source has no rows; check datasets.source")
    reasons = ", ".join(f"{reason} {n}" for reason, n in counts.rejected.most_common())
    raise ConfigError(
        f"dataset {name!r}: all {counts.rows} rows were rejected ({reasons}); check "
        "datasets.format and datasets.mode, and the lanes if prompts are too long",
        tuple(counts.examples),
    )


def _tokens(counts: Counts) -> int:
    known = (counts.prompts, counts.answers)
    return sum(length * n for lengths in known for length, n in lengths.items())


def _lanes(job: Job, counts: Counts) -> dict[str, int]:
    """Return how many prompts each lane takes; none for native rows, which are not asked."""
    lanes = {name: 0 for name, _ in ordered_lanes(job.config)}
    if job.dataset.mode is Mode.NATIVE:
        return lanes
    for length, n in counts.prompts.items():
        lane = lane_for(job.config, length, server_context=None)
        if lane is not None:
            lanes[lane] += n
    return lanes


def _write_result(
    order: _Order, counts: Counts, first: Sequence[Part], lines: LinePass, folder: Path
) -> None:
    """Write the files and the manifest beside the parts, then remove the parts."""
    hashes = dict(assemble(first, lines.parts, folder))
    profile = {
        "prompt_tokens": profile_of(counts.prompts).to_json(),
        "answer_tokens": profile_of(counts.answers).to_json(),
    }
    write_json(folder / PROFILE_NAME, profile)
    hashes[PROFILE_NAME] = sha256_file(folder / PROFILE_NAME)
    write_json(folder / MANIFEST_NAME, _manifest(order, counts, lines, hashes, folder))
    for path in folder.iterdir():
        if path.name not in {*hashes, MANIFEST_NAME}:
            path.unlink()


def _manifest(
    order: _Order, counts: Counts, lines: LinePass, hashes: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    config, dataset = order.job.config, order.job.dataset
    return {
        "format": PREPARED_FORMAT,
        "version": PREPARED_VERSION,
        "command": "prep",
        "eagled": __version__,
        "dataset": dataset.name,
        "source": dataset.source,
        "mode": dataset.mode.value,
        "target": {"model": config.target.model, "revision": config.target.revision},
        "sampling": config.sampling_of(dataset.name).model_dump(mode="json"),
        "prep_key": order.key,
        "inputs": dict(order.inputs),
        "rows": counts.rows,
        "kept": counts.kept,
        "turns": counts.turns,
        "tokens": _tokens(counts),
        "lanes": _lanes(order.job, counts),
        "rejected": dict(counts.rejected),
        "flags": dict(counts.flags),
        "stopped_at_count": lines.reached and not dataset.shuffle,
        "template": dict(order.facts.template),
        "files": {
            name: {"sha256": digest, "bytes": (folder / name).stat().st_size}
            for name, digest in hashes.items()
        },
    }


def _swap(building: Path, folder: Path) -> None:
    """Put a finished folder in its place; the one it replaces goes away last."""
    for path in building.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    fsync_dir(building)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    building.rename(folder)
    fsync_dir(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
