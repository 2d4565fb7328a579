"""What is asked: prompts by data set, as ids of the target's own chat template.

Guarantee: texts go through the target's template and nothing else (a target without one is an
error, see `text.tokenizer`); held-out samples are asked with exactly the ids that they have in the
corpus. What does not fit the server is left out and counted, the same for every server of a run.
Two measurements compare only if their `Workload.digest` is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eagled.artifacts import sha256_json
from eagled.config import Config
from eagled.decontaminate import read_prompts
from eagled.errors import ArtifactError, ConfigError
from eagled.holdout import HOLDOUT
from eagled.paths import StatePaths
from eagled.sampling import ResolvedSampling
from eagled.server.protocol import GenerateRequest
from eagled.text.messages import Message, Role
from eagled.text.render import Renderer
from eagled.tokens import make_uid
from eagled.train.corpus import latest_corpus

Ids = tuple[int, ...]
_ANY = 1 << 40  # a limit that the server does not tell


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one data set, and how many were left out and why."""

    name: str
    prompts: tuple[Ids, ...]
    too_long: int = 0
    looping: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values, prompts and all."""
        return {
            "name": self.name, "prompts": [list(p) for p in self.prompts],
            "too_long": self.too_long, "looping": self.looping,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PromptSet:
        """Return what `to_dict` gave."""
        prompts = tuple(map(tuple, value["prompts"]))
        return cls(value["name"], prompts, value["too_long"], value["looping"])


@dataclass(frozen=True, slots=True)
class Workload:
    """What every server of a benchmark is asked.

    Attributes:
        sets: prompts by data set.
        sampling: how; greedy unless told otherwise.
        template: SHA-256 of the chat template.
    """

    sets: tuple[PromptSet, ...]
    sampling: ResolvedSampling
    template: str

    @property
    def n_prompts(self) -> int:
        """Prompts of all sets."""
        return sum(len(s.prompts) for s in self.sets)

    @property
    def digest(self) -> str:
        """What identifies it: every prompt id, the sampling, the template."""
        sets = [[s.name, *map(list, s.prompts)] for s in self.sets]
        return sha256_json([sets, self.sampling_dict(), self.template])

    def sampling_dict(self) -> dict[str, Any]:
        """Return the sampling as JSON-ready values."""
        x = self.sampling
        return {
            "temperature": x.temperature, "top_p": x.top_p, "top_k": x.top_k, "min_p": x.min_p,
            "max_new_tokens": x.max_new_tokens, "seed": x.seed,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return what a report says about it."""
        sets = {
            s.name: {"prompts": len(s.prompts), "too_long": s.too_long, "looping": s.looping}
            for s in self.sets
        }
        return {
            "digest": self.digest, "sets": sets, "sampling": self.sampling_dict(),
            "template": self.template,
        }  # fmt: skip

    def requests(self) -> list[tuple[str, GenerateRequest]]:
        """Return every request once with its set's name, the sets mixed evenly."""
        members, most = self.sampling.json_members(), self.sampling.max_new_tokens
        every = [
            (i / len(s.prompts), s.name, i, prompt)
            for s in self.sets
            for i, prompt in enumerate(s.prompts)
        ]
        found = []
        for _, name, i, prompt in sorted(every):
            seed = self.sampling.seed_of(make_uid(name, str(i)))
            rid = f"bench-{uuid.uuid4().hex}"
            ids = np.asarray(prompt, np.uint32)
            found.append((name, GenerateRequest(rid, ids, most, members, seed)))
        return found

    def fitting(self, context: int | None, max_input: int | None) -> Workload:
        """Return it without the prompts that a server of these limits refuses.

        Raises:
            ConfigError: if none is left.
        """
        room = (context or _ANY) - self.sampling.max_new_tokens
        most = min(room, (max_input or _ANY) - 1)
        sets = []
        for s in self.sets:
            kept = tuple(p for p in s.prompts if len(p) <= most)
            sets.append(replace(s, prompts=kept, too_long=len(s.prompts) - len(kept)))
        left = replace(self, sets=tuple(sets))
        if not left.n_prompts:
            raise ConfigError(
                f"no prompt fits: with answers of {self.sampling.max_new_tokens} tokens the server "
                f"takes prompts of up to {most}; lower --max-new-tokens"
            )
        return left

    def without(self, looping: Mapping[str, set[Ids]]) -> Workload:
        """Return it without these prompts, whose answers loop.

        Raises:
            ArtifactError: if none is left.
        """
        sets = []
        for s in self.sets:
            kept = tuple(p for p in s.prompts if p not in looping.get(s.name, ()))
            sets.append(replace(s, prompts=kept, looping=len(s.prompts) - len(kept)))
        left = replace(self, sets=tuple(s for s in sets if s.prompts or s.looping))
        if not left.n_prompts:
            raise ArtifactError(
                "every answer loops: an accepted length measured on loops says nothing; use other "
                "prompts, a target that answers, or --sampled"
            )
        return left

    def narrowed(self, kept: Sequence[Mapping[str, Any]]) -> Workload:
        """Return it with the sets that an earlier run was left with (`PromptSet.to_dict`)."""
        return replace(self, sets=tuple(PromptSet.from_dict(value) for value in kept))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which prompts: files, and held-out samples of the newest corpus.

    Attributes:
        files: JSON or JSONL files of prompts.
        per_set: most prompts of a file or of a held-out dataset.
        holdout: whether held-out samples are asked too.
    """

    files: Sequence[Path]
    per_set: int
    holdout: bool


def make_workload(
    config: Config, renderer: Renderer, wanted: Wanted, sampling: ResolvedSampling
) -> Workload:
    """Return the workload of a run.

    Raises:
        ConfigError: if a file holds no prompt, or there is nothing to ask.
        ArtifactError: if held-out samples are wanted and there is no corpus.
    """
    sets = [_of_file(config, renderer, path, wanted.per_set) for path in wanted.files]
    if wanted.holdout:
        sets += _held_out(StatePaths(config.run.state_dir), wanted.per_set)
    names = [s.name for s in sets]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ConfigError(f"two sets of prompts are called {double[0]!r}: rename a file")
    if not sets:
        raise ConfigError("there is nothing to ask: give --prompts FILE, --mt-bench or --holdout")
    return Workload(tuple(sets), sampling, renderer.template_hash)


def _of_file(config: Config, renderer: Renderer, path: Path, most: int) -> PromptSet:
    thinking = config.sampling.thinking
    prompts = [
        tuple(renderer.prompt_ids([Message(Role.USER, text)], None, thinking=thinking))
        for text in read_prompts(path)[:most]
    ]
    return PromptSet(path.stem, tuple(dict.fromkeys(prompts)))


def _held_out(paths: StatePaths, most: int) -> list[PromptSet]:
    found: dict[str, dict[Ids, None]] = {}
    for row in latest_corpus(paths.corpora).rows(HOLDOUT):
        prompts = found.setdefault(row.dataset, {})
        if len(prompts) < most:
            prompts[tuple(row.input_ids[: row.n_prompt].tolist())] = None
    if not found:
        raise ArtifactError(
            f"the newest corpus in {paths.corpora} holds nothing out: set merge.holdout"
        )
    return [PromptSet(name, tuple(prompts)) for name, prompts in sorted(found.items())]
