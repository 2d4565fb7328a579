"""A state folder with everything that training reads: corpus and shards of the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from eagled.shards.backend_transformers import TransformersBackend
from eagled.shards.format import ShardManifest, StatesSample, last_positions
from eagled.shards.target import read_target
from eagled.shards.writer import ShardWriter
from eagled.train.greedy import GreedyAnswer, greedy_answers
from tests.unit.train.helpers import Answer, make_corpus

LAYERS = (2, 4, 5)
NEVER = 299  # an id that is used as the stop token: answers have their full length
ANSWER_TOKENS = 24
HELD_OUT = 3
PROMPTS = tuple([5 + i, *range(20 + 3 * i, 26 + 4 * i)] for i in range(12))


def tiny_backend(model: Path) -> TransformersBackend:
    """Return the tiny model in float32 on one thread."""
    torch.set_num_threads(1)
    return TransformersBackend(read_target(model), layers=LAYERS, device="cpu", dtype="float32")


def training_state(folder: Path, model: Path, backend: TransformersBackend) -> list[GreedyAnswer]:
    """Write `eagled.toml` and a state folder of greedy answers with their states; return them.

    The first `HELD_OUT` are held out.
    """
    found = greedy_answers(backend, PROMPTS, stop_ids={NEVER}, max_new_tokens=ANSWER_TOKENS)
    given = [
        Answer(f"set{i % 2}", a.ids[: a.n_prompt], a.ids[a.n_prompt :],
               split="holdout" if i < HELD_OUT else "train")
        for i, a in enumerate(found)
    ]  # fmt: skip
    state = folder / "state"
    corpus = make_corpus(state, given)
    writer = ShardWriter(state / "shards", manifest_of(model))
    for number, row in enumerate(corpus.rows()):
        mask = (np.arange(len(row.input_ids)) >= row.n_prompt).astype(np.uint8)
        positions = last_positions(mask, "supervised")
        (made,) = backend.capture([row.input_ids])
        n = len(row.input_ids)
        aux, last = made.aux[: n - 1].reshape(n - 1, -1), made.last[positions]
        writer.append(
            StatesSample(row.uid, number, 1, row.dataset, row.input_ids, mask, aux, last, positions)
        )
    writer.finish()
    (folder / "asked.json").write_text(json.dumps(["One, two?", "And then?", "Why not?"]))
    (folder / "eagled.toml").write_text(
        f'[run]\nseed = 3\n[target]\nmodel = "{model}"\n[vocab]\nsize = 300\n'
        '[lanes.short]\ncontext = 0\n[train]\ndevice = "cpu"\nthreads = 1\nttt_steps = 3\n'
        "epochs = 24\nbatch_tokens = 400\nlr = 1e-2\nwarmup = 0.0\n"
    )
    return found


def manifest_of(model: Path) -> ShardManifest:
    """Return what shards of this model say."""
    facts = read_target(model)
    return ShardManifest(
        target=model.name, revision=None, target_hash=facts.target_hash,
        tokenizer_hash=facts.tokenizer_hash, n_layers=facts.n_layers,
        hidden_size=facts.hidden_size, vocab_size=facts.vocab_size, layers=LAYERS,
        last="supervised", compute_dtype="float32", backend="test", eagled="0",
    )  # fmt: skip
