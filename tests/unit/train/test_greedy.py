"""Greedy answers of a target: what the acceptance of a draft is estimated on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from eagled.decontaminate import read_prompts
from eagled.errors import ConfigError
from eagled.shards.backend_transformers import TransformersBackend
from eagled.shards.target import read_target
from eagled.train.greedy import GreedyAnswer, first_choices, greedy_answers, sample_of

NEVER = 299  # an id that is used as the stop token
PROMPTS = ([5, 9, 2], [7], [11, 3, 8, 1, 4, 6])
LONG = 12


@pytest.fixture(scope="module")
def backend(tiny_model: Path) -> TransformersBackend:
    """The tiny model in float32 on one thread."""
    torch.set_num_threads(1)
    target = read_target(tiny_model)
    return TransformersBackend(target, layers=(2, 4, 5), device="cpu", dtype="float32")


@torch.inference_mode()
def _one_by_one(backend: TransformersBackend, prompt: list[int], n: int) -> list[int]:
    """Return the greedy answer as its definition says: alone, whole pass after whole pass."""
    ids = list(prompt)
    for _ in range(n):
        logits = backend.model(input_ids=torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_answers_in_padded_batches_are_those_made_alone(backend: TransformersBackend) -> None:
    """Prompts of unlike lengths together, in batches of two: each as if it were alone."""
    answers = greedy_answers(
        backend, PROMPTS, stop_ids={NEVER}, max_new_tokens=LONG, batch=2
    )  # fmt: skip
    expected = [(*p, *_one_by_one(backend, p, LONG)) for p in PROMPTS]

    assert expected == [a.ids for a in answers]
    assert [LONG] * 3 == [a.n_answer for a in answers]


def test_an_answer_ends_with_its_stop_token(backend: TransformersBackend) -> None:
    """The stop token is kept, what a batch padded behind it is not."""
    full = _one_by_one(backend, PROMPTS[0], LONG)
    stop = full[4]
    end = full.index(stop) + 1
    (answer,) = greedy_answers(backend, PROMPTS[:1], stop_ids={stop}, max_new_tokens=LONG)

    assert full[:end] == list(answer.ids[len(PROMPTS[0]) :])


@pytest.mark.parametrize("wrong", [0, 3, 11])
def test_what_is_not_the_first_choice_ends_the_answer(
    backend: TransformersBackend, wrong: int
) -> None:
    """Only the tokens before the first other one count, although later ones may fit again."""
    answer = _one_by_one(backend, PROMPTS[0], LONG)
    answer[wrong] = (answer[wrong] + 1) % 300

    assert wrong == first_choices(backend, [*PROMPTS[0], *answer], len(PROMPTS[0]))


def test_an_answer_that_loops_is_marked(backend: TransformersBackend) -> None:
    """A model that always says the same loops; its first twenty tokens are no loop yet."""
    head = backend.model.get_output_embeddings().weight
    kept = head.detach().clone()
    with torch.no_grad():
        head[17] = 0
        head[:17], head[18:] = head[:17] * 1e-9, head[18:] * 1e-9
        states = backend.model.get_decoder()(input_ids=torch.tensor([[5, 17, 17]]))
        head[17] = states.last_hidden_state[0].mean(0)
        found = [
            greedy_answers(backend, [[5]], stop_ids={NEVER}, max_new_tokens=n)[0] for n in (20, 40)
        ]
        head.copy_(kept)

    assert [(5, *[17] * 20), (5, *[17] * 40)] == [a.ids for a in found]
    assert [False, True] == [a.looping for a in found]


def test_a_sample_has_the_rows_that_a_shard_has(backend: TransformersBackend) -> None:
    """Rows 0 to T-2 of the states; `last` for those whose next token is the answer's."""
    answer = GreedyAnswer(3, (5, 9, 2, 40, 41, 42), looping=False)
    got = sample_of(backend, answer, name="d", uid="0" * 32)
    whole = backend.capture([np.asarray(answer.ids, np.int32)])[0]

    assert [False] * 3 + [True] * 3 == got["loss_mask"].tolist()
    assert [2, 3, 4] == got["last_positions"].tolist()
    assert (5, 3 * whole.aux.shape[2]) == got["aux"].shape
    assert np.array_equal(got["aux"].view(torch.uint16).numpy(), whole.aux[:5].reshape(5, -1))
    assert np.array_equal(got["last"].view(torch.uint16).numpy(), whole.last[2:5])


def test_of_a_row_with_turns_the_first_is_asked(tmp_path: Path) -> None:
    """A follow-up is no question of its own."""
    path = tmp_path / "mt.jsonl"
    path.write_text('{"turns": ["Name a river.", "Now rhyme it."]}\n{"prompt": "Why?"}\n')

    assert ["Name a river.", "Why?"] == read_prompts(path)


@pytest.mark.parametrize(("text", "words"), [("[]", "holds no prompt"), ("{", "cannot be read")])
def test_a_file_without_prompts_is_named(tmp_path: Path, text: str, words: str) -> None:
    """The message is about this file, not about a setting."""
    path = tmp_path / "p.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=rf"^{path} {words}"):
        read_prompts(path)
