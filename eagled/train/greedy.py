"""Greedy answers of the target through transformers, as the samples of an acceptance estimate.

Guarantee: each token of an answer is the target's first choice in one pass over prompt and answer
alone, which is the pass that verification makes; what follows the first token that is not (a tie
that fell otherwise in a padded batch) is cut off. So walking an answer (`accept.py`) yields the
verify steps that greedy chain speculation makes on it. Answers that loop are found, not used.
Price: the target in memory, in float32 so that ties are rare.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from eagled.shards.backend import Captured
from eagled.shards.backend_transformers import TransformersBackend
from eagled.shards.codecs_torch import as_bf16
from eagled.shards.reader import Sample
from eagled.text.loops import LoopRule, find_loop

LOOPING = LoopRule(period=32, tokens=24)  # short answers: a third of 96 tokens is a loop already


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """One answer: `ids` are prompt and answer, the first `n_prompt` the prompt's."""

    n_prompt: int
    ids: tuple[int, ...]
    looping: bool

    @property
    def n_answer(self) -> int:
        """Its tokens."""
        return len(self.ids) - self.n_prompt


def greedy_answers(
    backend: TransformersBackend,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Collection[int],
    max_new_tokens: int,
    batch: int = 8,
) -> list[GreedyAnswer]:
    """Return the target's greedy answer to each prompt, its stop token included."""
    found = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        for prompt, answer in zip(part, _generated(backend, part, stop_ids, max_new_tokens),
                                  strict=True):  # fmt: skip
            looping = find_loop(answer, LOOPING) is not None
            ids = (*prompt, *answer)
            ids = ids[: len(prompt) + first_choices(backend, ids, len(prompt))]
            found.append(GreedyAnswer(len(prompt), ids, looping))
    return found


@torch.inference_mode()
def first_choices(backend: TransformersBackend, ids: Sequence[int], n_prompt: int) -> int:
    """Return how many tokens behind the prompt are the target's first choice, without a gap."""
    row = torch.tensor([ids], device=backend.device)
    logits = backend.model(input_ids=row, use_cache=False).logits[0]  # [T, V]
    same = logits[n_prompt - 1 : -1].argmax(-1) == row[0, n_prompt:]
    return int(same.int().cumprod(0).sum())


def sample_of(backend: TransformersBackend, answer: GreedyAnswer, *, name: str, uid: str) -> Sample:
    """Return an answer with its states, as shards hold it; `name` is its dataset's."""
    ids = np.asarray(answer.ids, np.int32)
    return _sample(backend.capture([ids])[0], answer.n_prompt, name, uid)


def _sample(captured: Captured, n_prompt: int, name: str, uid: str) -> Sample:
    ids = torch.from_numpy(np.asarray(captured.token_ids, np.int64))
    n = len(ids)
    mask = torch.arange(n) >= n_prompt
    positions = mask[1:].nonzero()[:, 0]  # rows whose target is supervised
    aux = as_bf16(captured.aux.reshape(n, -1)[: n - 1])  # [T-1, L*D]
    return Sample(
        uid=uid, dataset=name, skip=0, input_ids=ids, loss_mask=mask, aux=aux,
        last=as_bf16(captured.last[positions.numpy()]), last_positions=positions,
    )  # fmt: skip


@torch.inference_mode()
def _generated(
    backend: TransformersBackend,
    prompts: Sequence[Sequence[int]],
    stop_ids: Collection[int],
    max_new_tokens: int,
) -> list[list[int]]:
    stops = sorted(stop_ids)
    width = max(len(p) for p in prompts)
    padded = torch.tensor([[stops[0]] * (width - len(p)) + list(p) for p in prompts])
    lengths = torch.tensor([len(p) for p in prompts])
    real = (torch.arange(width) >= width - lengths[:, None]).long()  # padding is on the left
    made: Any = backend.model.generate(
        input_ids=padded.to(backend.device), attention_mask=real.to(backend.device),
        do_sample=False, temperature=None, top_p=None, top_k=None,
        max_new_tokens=max_new_tokens, eos_token_id=stops, pad_token_id=stops[0],
    )  # fmt: skip
    return [_until_stop(row, stops) for row in made[:, width:].tolist()]


def _until_stop(ids: list[int], stops: Sequence[int]) -> list[int]:
    end = next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))
    return ids[:end]
