"""The acceptance of a training run's draft on greedy answers, before its first step and now.

The target answers prompts greedily through transformers, in this process; both drafts are walked
over the same answers, each guess read what it would have read when served (`train/greedy.py`,
`train/accept.py`). The draft before the first step is made again from the run's seed and shards.
Guarantee: an answer that loops is left out and counted; no answer left is an error, not a number.
Price: the target in float32, and one long pass a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagled.config import Config
from eagled.decontaminate import read_prompts
from eagled.errors import ArtifactError, ConfigError
from eagled.holdout import TRAIN
from eagled.lanes import lane_for
from eagled.paths import StatePaths
from eagled.server.model_folder import read_model_facts
from eagled.shards.backend_transformers import TransformersBackend
from eagled.shards.reader import ShardDataset
from eagled.shards.target import read_target, resolve_model
from eagled.text.messages import Message, Role
from eagled.text.render import Renderer
from eagled.train.accept import Estimate, estimate
from eagled.train.corpus import Corpus, corpus_versions, read_corpus
from eagled.train.data import MemorySource, usable
from eagled.train.export import DraftWeights, weights_of
from eagled.train.greedy import GreedyAnswer, greedy_answers, sample_of
from eagled.train.model import DraftHead
from eagled.train.start import new_head, state_size
from eagled.train.teacher import load_teacher
from eagled.train.trainer import teacher_view


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked: prompts, the first `count` of a file, and the longest answer in tokens."""

    prompts: Path
    count: int = 16
    max_new_tokens: int = 96


@dataclass(frozen=True, slots=True)
class GreedyEstimate:
    """How both drafts fared on the same answers.

    Attributes:
        asked: prompts.
        looping: answers that were left out because they loop.
        answers: those that were walked.
        before: of the draft before its first step.
        after: of the newest checkpoint's.
    """

    asked: int
    looping: int
    answers: tuple[GreedyAnswer, ...]
    before: Estimate
    after: Estimate

    @property
    def short(self) -> int:
        """Answers that were left out because they are over at once."""
        return self.asked - self.looping - len(self.answers)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values, with the words of what it is."""
        return {
            "kind": "estimate", "asked": self.asked, "looping": self.looping,
            "answers": len(self.answers),
            "short": self.short, "tokens": sum(a.n_answer for a in self.answers),
            "before": self.before.to_dict(), "after": self.after.to_dict(),
        }  # fmt: skip


def estimate_run(config: Config, run: str, asked: Asked) -> GreedyEstimate:
    """Return the estimate of a run below drafts/ (or of its folder).

    Raises:
        ArtifactError: if the run has no checkpoint, or every answer loops.
        ConfigError: if target or prompts cannot be read, or a prompt does not fit.
    """
    torch.set_num_threads(config.train.threads or torch.get_num_threads())
    paths = StatePaths(config.run.state_dir)
    trained = weights_of(paths.draft_run(run))
    target = resolve_model(config.target.model, config.target.revision)
    found = _answers(config, target, trained, asked)
    samples = [
        sample_of(found.backend, answer, name=asked.prompts.stem, uid=f"{i:032x}")
        for i, answer in enumerate(found.used)
    ]
    source = MemorySource(samples)
    teacher = load_teacher(target)
    ids = torch.arange(len(trained.d2t)) + trained.d2t
    view = teacher_view(teacher, ids, torch.device("cpu"), torch.float32)
    before = new_head(
        trained.geometry, teacher, ids, start=trained.facts["train.start"],
        seed=trained.facts["seed"], size=_size(paths, trained),
    )  # fmt: skip

    def walked(head: DraftHead) -> Estimate:
        return estimate(
            head, source, usable(source), view,
            steps=config.train.draft_steps or config.train.ttt_steps,
            batch_tokens=config.train.batch_tokens,
            lane_of=lambda n: lane_for(config, n, server_context=None) or "none",
        )  # fmt: skip

    return GreedyEstimate(
        found.asked, found.looping, tuple(found.used), walked(before), walked(_head(trained))
    )


@dataclass(frozen=True, slots=True)
class _Answers:
    backend: TransformersBackend
    asked: int
    looping: int
    used: Sequence[GreedyAnswer]


def _answers(config: Config, target: Path, trained: DraftWeights, asked: Asked) -> _Answers:
    """Return the answers to walk; those that loop, or are over at once, are left out."""
    texts = read_prompts(asked.prompts)[: asked.count]
    renderer = Renderer.load(config.target, literal_control_text="encode")
    prompts = [
        renderer.prompt_ids([Message(Role.USER, text)], None, thinking=config.sampling.thinking)
        for text in texts
    ]
    _refuse_long(prompts, asked, read_model_facts(target).context)
    backend = TransformersBackend(
        read_target(target), layers=trained.geometry.layers, device="cpu", dtype="float32"
    )
    every = greedy_answers(
        backend, prompts, stop_ids=renderer.eos_ids, max_new_tokens=asked.max_new_tokens
    )
    used = [a for a in every if not a.looping and a.n_answer > 2]  # noqa: PLR2004 - one guess
    looping = sum(a.looping for a in every)
    if not used:
        raise ArtifactError(
            f"none of {len(every)} greedy answers can be walked: {looping} loop, the others are "
            "over at once; there is no acceptance to estimate"
        )
    return _Answers(backend, len(every), looping, used)


def _refuse_long(prompts: Sequence[Sequence[int]], asked: Asked, context: int | None) -> None:
    for number, prompt in enumerate(prompts, 1):
        if context is not None and len(prompt) + asked.max_new_tokens > context:
            raise ConfigError(
                f"{asked.prompts}: prompt {number} has {len(prompt)} tokens, and with an answer of "
                f"{asked.max_new_tokens} it does not fit the target's {context}; take it out, or "
                "lower --max-new-tokens"
            )


def _size(paths: StatePaths, trained: DraftWeights) -> float:
    """Return the size of the states that the run began with."""
    corpus = _corpus_of(paths, trained.facts["members_hash"])
    source = ShardDataset.from_folder(paths.shards, corpus=corpus, split=TRAIN)
    first = usable(source, trained.facts["train.max_tokens"]).index[0]
    return state_size(source[first]["aux"], trained.geometry.n_aux)


def _corpus_of(paths: StatePaths, members_hash: str) -> Corpus:
    for folder in reversed(corpus_versions(paths.corpora)):
        corpus = read_corpus(folder)
        if corpus.members_hash == members_hash:
            return corpus
    raise ArtifactError(f"no corpus in {paths.corpora} is the one of this run, {members_hash}")


def _head(trained: DraftWeights) -> DraftHead:
    head = DraftHead(trained.geometry)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            weight.copy_(trained.weights[name])
    return head
