"""A loaded tiny model, and a way to run requests on a slot loop without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagled.engine.forward import SlotModel, load_model
from eagled.engine.loop import SlotForward, SlotLoop
from eagled.engine.params import GenerateRequest, Limits, Sampling
from eagled.engine.rows import Result
from eagled.engine.slab import KvShape, Slab
from eagled.engine.text import TextDecoder

DEADLINE_S = 60.0


class Recorder:
    """Passes every forward on, remembers its shape, and may break or hold it first."""

    def __init__(self, model: SlotForward) -> None:
        self._model = model
        self.calls: list[tuple[int, int, int]] = []  # rows, new tokens a row, longest row
        self.before: Callable[[Sequence[Sequence[int]], Sequence[int]], None] = lambda _i, _s: None

    @property
    def shape(self) -> KvShape:
        """The real cache's shape."""
        return self._model.shape

    def forward(
        self, slab: Slab, first: int, ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        """Record and run."""
        self.before(ids, starts)
        self.calls.append((len(ids), len(ids[0]), max(starts) + len(ids[0])))
        return self._model.forward(slab, first, ids, starts)


class Runner:
    """A slot loop with futures instead of HTTP."""

    def __init__(self, model: SlotForward, limits: Limits, eos: frozenset[int]) -> None:
        self.loop = SlotLoop(model, limits, eos, TextDecoder(None))
        self._count = 0

    def send(self, ids: Sequence[int], rid: str | None = None, **sampling: Any) -> Future[Result]:
        """Submit a prompt; greedy and without end ids unless said otherwise."""
        self._count += 1
        params = {"temperature": 0.0, "ignore_eos": True} | sampling
        request = GenerateRequest(rid or f"r{self._count}", tuple(ids), Sampling(**params))
        done: Future[Result] = Future()
        self.loop.submit(request, done.set_result)
        return done


@pytest.fixture(scope="session")
def slot_model(tiny_model: Path) -> SlotModel:
    """The tiny model behind the slot forward, float32."""
    torch.set_num_threads(1)
    return load_model(tiny_model, dtype="float32", context_length=None, device="cpu")[0]


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Callable[[Sequence[int], int], list[int]]:
    """Greedy continuation by transformers' own `generate`, one prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.temperature = model.generation_config.top_p = None

    def greedy(ids: Sequence[int], new_tokens: int) -> list[int]:
        prompt = torch.tensor([list(ids)])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=new_tokens,
        )
        return [int(i) for i in out[0, len(ids) :]]

    return greedy


@pytest.fixture
def make_runner(slot_model: SlotModel) -> Iterator[Callable[..., Runner]]:
    """Build runners over the tiny model (or a wrapper of it) that are stopped afterwards."""
    made: list[Runner] = []

    def make(
        model: SlotForward | None = None,
        *,
        slots: int = 16,
        max_total_tokens: int = 32768,
        max_queued: int | None = None,
    ) -> Runner:
        info = slot_model.info
        limits = Limits(info.context_length, max_total_tokens, slots, info.vocab_size, max_queued)
        runner = Runner(model or slot_model, limits, info.eos_ids)
        runner.loop.start()
        made.append(runner)
        return runner

    yield make
    for runner in made:
        assert runner.loop.stop(0.0, DEADLINE_S)


def prompt(length: int, seed: int) -> list[int]:
    """Return a repeatable prompt of ordinary ids."""
    return [8 + (seed * 131 + i * 37 + (i * i) % 11) % 700 for i in range(length)]
