"""Train a draft for the run of a configuration, export it and write its report.

Reads the frozen corpus and its shards, or the ring of shards of a daemon that streams; writes
`<state>/drafts/NAME`: checkpoints, metrics.jsonl, status.json, `draft/` (for SGLang), report.html,
result.json. Without the ring no daemon is needed. Under torchrun every process runs this; the first
one writes, and talks with the daemon.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from eagled.artifacts import write_json
from eagled.config import Config
from eagled.errors import ArtifactError, ConfigError
from eagled.holdout import HOLDOUT, TRAIN
from eagled.lanes import lane_for
from eagled.paths import StatePaths
from eagled.shards.reader import ShardDataset
from eagled.shards.target import TargetFacts, read_target, resolve_model
from eagled.train.checkpoint import checkpoints, load_checkpoint
from eagled.train.corpus import Corpus, latest_corpus, read_corpus
from eagled.train.data import Items, usable
from eagled.train.export import export_draft, weights_of
from eagled.train.feed import CorpusFeed, Counts, Feed, HeldOut
from eagled.train.geometry import Geometry, Wishes, geometry_for, target_config
from eagled.train.metrics import StepRecord
from eagled.train.report import write_train_report
from eagled.train.teacher import load_teacher
from eagled.train.team import Team
from eagled.train.trainer import RunSpec, Trainer, TrainResult
from eagled.train.vocab import Coverage, DraftVocab, VocabResult, mapping_to_continue, vocab_run
from eagled.workers.train_stream import Stream, open_stream

DRAFT_NAME, RESULT_NAME, STATUS_NAME = "draft", "result.json", "status.json"
_STATUS_S = 2.0
Progress = Callable[[StepRecord], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training run left; paths are None when it was stopped before its end.

    Attributes:
        folder: of the run.
        result: how it ended.
        draft: the exported draft for SGLang.
        report: report.html.
        note: what a person should know, such as that the corpus would give another vocabulary.
    """

    folder: Path
    result: TrainResult
    draft: Path | None
    report: Path | None
    note: str


def train_run(
    config: Config,
    *,
    name: str = "",
    version: str = "",
    progress: Progress | None = None,
    stream: Stream | None = None,
) -> Trained:
    """Train, or go on with, the draft `name` of a run.

    Args:
        config: the configuration.
        name: folder below drafts/; empty is the corpus version, or `stream`.
        version: corpus version such as v001; empty is the newest.
        progress: called with every step, in the process that writes.
        stream: the ring to train from; the corpus then gives the vocabulary only.

    Raises:
        ConfigError: if the target cannot be used, or a stream has no length.
        ArtifactError: if corpus, shards or checkpoint do not fit.
        UnreachableError: if the ring's daemon is away.
        UsageError: if its run keeps its shards.
    """
    paths = StatePaths(config.run.state_dir)
    corpus = read_corpus(paths.corpora / version) if version else latest_corpus(paths.corpora)
    folder = paths.drafts / (name or ("stream" if stream else corpus.version))
    torch.set_num_threads(config.train.threads or torch.get_num_threads())
    team = Team.join(config.train.device)
    try:
        run = _Run(config, team, corpus, folder)
        return _train(run, progress or (lambda _: None), stream)
    finally:
        team.leave()


@dataclass(frozen=True, slots=True)
class _Run:
    """One process of a training run."""

    config: Config
    team: Team
    corpus: Corpus
    folder: Path


def _train(run: _Run, progress: Progress, stream: Stream | None) -> Trained:
    config, team, corpus, folder = run.config, run.team, run.corpus, run.folder
    if team.leads:
        built = vocab_run(config, corpus)
        team.wait()
    else:
        team.wait()
        built = vocab_run(config, corpus)
    vocab, note = _own_vocab(folder, built)
    target = resolve_model(config.target.model, config.target.revision)
    status = _Status(folder, progress)
    report = status.step if team.leads else None
    with ExitStack() as stack:
        facts = read_target(target)
        feed, identity = (
            stack.enter_context(open_stream(config, team, folder, facts, stream))
            if stream
            else _corpus_feed(run, facts)
        )
        spec = _spec(run, vocab, identity, target)
        trainer = Trainer(spec, team, load_teacher(target), feed, report)
        with _stopped_by_signals(trainer):
            result = trainer.run()
    if not team.leads or not result.finished:
        return Trained(folder, result, None, None, note)
    draft = export_draft(weights_of(folder), folder / DRAFT_NAME, target_config(target))
    summary = _summary(spec, corpus, feed.counts(), result)
    write_json(folder / RESULT_NAME, summary)
    page = write_train_report(folder, _facts(summary), _coverage(built.coverage))
    return Trained(folder, result, draft, page, note)


def _own_vocab(folder: Path, built: VocabResult) -> tuple[DraftVocab, str]:
    """Return the vocabulary of the run's checkpoint if there is one, else the corpus's."""
    found = checkpoints(folder / "checkpoints")
    if not found:
        return built.vocab, ""
    tensors = load_checkpoint(found[-1]).tensors
    own = DraftVocab(tensors["d2t"].numpy(), tensors["t2d"].numpy())
    return mapping_to_continue(own, built.vocab)


def _corpus_feed(run: _Run, target: TargetFacts) -> tuple[Feed, dict[str, Any]]:
    """Return the steps of a frozen corpus, and what its shards are."""
    source, held = _data(run.config, run.corpus)
    manifest = source.manifest
    if manifest.target_hash != target.target_hash:
        raise ArtifactError(
            f"the shards were made with target {manifest.target_hash}, the configured one is "
            f"{target.target_hash}: extract again, or set target.model"
        )
    c = run.config.train
    identity = {
        "target_hash": manifest.target_hash,
        "tokenizer_hash": manifest.tokenizer_hash,
        "members_hash": run.corpus.members_hash,
        "layers": list(manifest.layers),
        "longest_tokens": _longest(source, c.max_tokens),
    }
    seed = run.config.run.seed
    return CorpusFeed(source, c, seed=seed, team=run.team, held_out=held), identity


def _data(config: Config, corpus: Corpus) -> tuple[ShardDataset, HeldOut | None]:
    shards = StatePaths(config.run.state_dir).shards
    source = ShardDataset.from_folder(shards, corpus=corpus, split=TRAIN)
    if source.manifest.last == "none":
        raise ConfigError("the shards have no final states: set extract.last to supervised")
    if not corpus.manifest["holdout_rows"]:
        return source, None
    held = ShardDataset.from_folder(shards, corpus=corpus, split=HOLDOUT)
    items = usable(held, config.train.max_tokens)
    n = config.train.eval_samples
    some = Items(items.index[:n], items.rows[:n], items.left_out, items.cut)
    return source, HeldOut(held, some, lambda n: lane_for(config, n, server_context=None) or "none")


def _spec(run: _Run, vocab: DraftVocab, identity: Mapping[str, Any], target: Path) -> RunSpec:
    c = run.config.train
    wishes = Wishes(c.intermediate_size, c.heads, c.kv_heads, c.max_positions)
    geometry = geometry_for(
        target, draft_vocab_size=len(vocab.d2t), layers=tuple(identity["layers"]), wishes=wishes
    )
    return RunSpec(run.folder, c, run.config.run.seed, geometry, vocab, identity)


def _longest(source: ShardDataset, max_tokens: int) -> int:
    """Return the tokens of the longest sample as it is trained on."""
    longest = max(source.length(i) for i in range(len(source)))
    return min(longest, max_tokens)


@contextmanager
def _stopped_by_signals(trainer: Trainer) -> Iterator[None]:
    """Have SIGTERM and ctrl-C end the run after the current step, with a checkpoint."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        trainer.stop = True

    kept = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class _Status:
    """Hands steps on, and keeps status.json for whoever looks from outside."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._path, self._progress = folder / STATUS_NAME, progress
        self._written = -_STATUS_S
        self._started = time.monotonic()
        self._first = 0

    def step(self, record: StepRecord) -> None:
        self._progress(record)
        now = time.monotonic()
        self._first = self._first or record.step
        if now - self._written < _STATUS_S and record.step < record.total:
            return
        self._written = now
        done = record.step - self._first
        eta_s = (now - self._started) / done * (record.total - record.step) if done else None
        write_json(
            self._path,
            {
                "name": self._path.parent.name, "step": record.step, "total": record.total,
                "epoch": record.epoch, "loss": record.loss, "lr": record.lr, "eta_s": eta_s,
                "accept_length": record.accept_length,
                "tok_per_s": record.tokens / record.seconds, "updated_ms": time.time_ns() // 10**6,
            },
        )  # fmt: skip


def _summary(spec: RunSpec, corpus: Corpus, counts: Counts, result: TrainResult) -> dict[str, Any]:
    g: Geometry = spec.geometry
    return {
        "corpus": corpus.version,
        "steps": result.step,
        **asdict(counts),
        "layers": list(g.layers),
        "draft_vocab": g.draft_vocab_size,
        "settings": spec.config.model_dump(mode="json"),
        "before": result.before.to_dict() if result.before else None,
        "after": result.after.to_dict() if result.after else None,
    }


def _facts(summary: Mapping[str, Any]) -> dict[str, object]:
    """Return what the report's first table shows."""
    settings = summary["settings"]
    return {
        "corpus": summary["corpus"],
        "training samples": summary["samples"],
        "left out, nothing supervised": summary["left_out"],
        "cut at the longest length": summary["cut"],
        "tokens an epoch": summary["rows"],
        "optimiser steps": summary["steps"],
        "layers (boundaries)": ", ".join(map(str, summary["layers"])),
        "draft vocabulary": summary["draft_vocab"],
        "loss": settings["loss"],
        "steps of training-time test": settings["ttt_steps"],
        "decay": settings["decay"],
        "learning rate": settings["lr"],
        "acceptance before": summary["before"]["length"] if summary["before"] else "not estimated",
        "acceptance after": summary["after"]["length"] if summary["after"] else "not estimated",
    }


def _coverage(parts: tuple[Coverage, ...]) -> list[tuple[object, ...]]:
    return [(c.dataset, c.split, c.tokens, c.share) for c in parts]
