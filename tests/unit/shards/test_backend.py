"""The transformers back end gives what `output_hidden_states` gives, whatever the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from eagled.errors import ArtifactError, ConfigError
from eagled.shards.backend import Captured
from eagled.shards.backend_transformers import TransformersBackend, pick_device, to_bits
from eagled.shards.selfcheck import (
    check_batching,
    check_layers,
    distance,
    from_bits,
    head_agreement,
    probe_inputs,
)
from eagled.shards.target import read_target
from tests.faults import fault_file

LAYERS = (2, 4, 5)


@pytest.fixture(scope="module")
def backend(tiny_model: Path) -> TransformersBackend:
    """The tiny model in float32 on one thread."""
    torch.set_num_threads(1)
    return TransformersBackend(
        read_target(tiny_model), layers=LAYERS, device="cpu", dtype="float32"
    )


def random_ids(number: int, n: int) -> npt.NDArray[np.int64]:
    """Return n ids of the tiny model's vocabulary."""
    return np.random.default_rng(number).integers(0, 300, n)


def all_states(backend: TransformersBackend, ids: npt.NDArray[np.int64]) -> tuple[Any, ...]:
    """Return what the whole model reports for every layer, [1, T, D] each."""
    with torch.inference_mode():
        out = backend.model(input_ids=torch.from_numpy(ids)[None], output_hidden_states=True)
    return tuple(out.hidden_states)


def test_states_equal_output_hidden_states(backend: TransformersBackend) -> None:
    """Alone, each layer and the final state equal the library's own, bit for bit in bf16."""
    ids = random_ids(1, 40)
    states = all_states(backend, ids)

    got = backend.capture([ids])[0]

    assert got.aux.shape == (40, 3, 64)
    for index, k in enumerate(LAYERS):
        assert np.array_equal(got.aux[:, index], to_bits(states[k][0])), k
    assert np.array_equal(got.last, to_bits(states[-1][0]))


def test_boundary_n_is_before_the_norm(tiny_model: Path) -> None:
    """Boundary N is the last layer's output: its norm is `last`; 0 is the embeddings."""
    edge = TransformersBackend(
        read_target(tiny_model), layers=(0, 8), device="cpu", dtype="float32"
    )
    ids = random_ids(2, 12)

    with edge._boundaries() as kept:
        last = edge._forward(torch.from_numpy(ids)[None])

    norm, embed = edge.model.model.norm, edge.model.model.embed_tokens
    assert torch.equal(norm(kept[8]), last)
    assert torch.equal(embed(torch.from_numpy(ids)[None]), kept[0])


@pytest.mark.fault("F58")
def test_batch_alone_and_twice_agree(backend: TransformersBackend) -> None:
    """Six samples of unequal length: one by one, in one batch, and twice give the same states."""
    given = load_file(fault_file("hidden/good.safetensors"))["token_ids"].numpy()
    samples = [given, *(random_ids(n, 5 + 7 * n) for n in range(1, 6))]
    alone = [backend.capture([ids])[0] for ids in samples]

    together, again = backend.capture(samples), backend.capture(samples)

    for one, batch, second in zip(alone, together, again, strict=True):
        assert np.array_equal(batch.aux, second.aux)
        assert batch.token_ids.tolist() == one.token_ids.tolist()
        for layer in range(3):
            ours, theirs = from_bits(batch.aux[:, layer]), from_bits(one.aux[:, layer])
            assert np.allclose(ours, theirs, rtol=1e-2, atol=1e-2)
        assert np.allclose(from_bits(batch.last), from_bits(one.last), rtol=1e-2, atol=1e-2)
    check_batching(together, alone)


@pytest.mark.fault("F58")
def test_batch_dependent_states_are_refused(backend: TransformersBackend) -> None:
    """States shifted by one row inside a batch fail the check before a long run."""
    inputs = probe_inputs(300)
    alone = [backend.capture([ids])[0] for ids in inputs]
    wrong = [Captured(c.token_ids, np.roll(c.aux, 1, axis=0), c.last) for c in alone]

    with pytest.raises(ArtifactError, match="batch check: sample 0, layer index 0"):
        check_batching(wrong, alone)


def test_off_by_one_names_the_layer_that_matched(backend: TransformersBackend) -> None:
    """States of the layers' outputs instead of inputs are refused, naming boundary 3 for 2."""
    ids = probe_inputs(300)[0]
    reference = backend.reference(ids)
    captured = backend.capture([ids])[0]
    check_layers(captured, reference, LAYERS)

    with pytest.raises(ArtifactError, match=r"planned as boundary 1.*boundary 2 matches instead"):
        check_layers(captured, reference, tuple(k - 1 for k in LAYERS))


def test_last_before_the_norm_is_refused(backend: TransformersBackend) -> None:
    """Final states before the norm fail the check."""
    ids = probe_inputs(300)[0]
    captured = backend.capture([ids])[0]
    doubled = to_bits(torch.from_numpy(from_bits(captured.last) * 2))

    with pytest.raises(ArtifactError, match="before the norm"):
        check_layers(Captured(ids, captured.aux, doubled), backend.reference(ids), LAYERS)


def test_self_check_passes(backend: TransformersBackend) -> None:
    """The check that runs before a long extraction accepts the real back end."""
    backend.self_check()


@pytest.mark.fault("F64")
def test_head_of_last_gives_the_emitted_token(backend: TransformersBackend) -> None:
    """On greedy answers the head ranks at row p the token at p + 1 first; a row off does not."""
    asked = json.loads(fault_file("hidden/request.json").read_text(encoding="utf-8"))
    ids = np.asarray(asked["token_ids"], np.int64)
    start = len(ids) - 1
    with torch.inference_mode():
        for _ in range(16):
            logits = backend.model(input_ids=torch.from_numpy(ids)[None]).logits[0, -1]
            ids = np.append(ids, int(logits.argmax()))
    captured = backend.capture([ids])[0]
    positions = np.arange(start, len(ids) - 1)
    head = backend.model.lm_head.weight.detach().numpy()
    last = from_bits(captured.last)

    # random weights make near ties, which bf16 can turn over: exact before rounding, nearly after
    exact = backend.reference(ids).last
    assert head_agreement(exact[positions], positions, ids, head) == 1.0
    assert head_agreement(last[positions], positions, ids, head) >= 0.8
    assert head_agreement(last[positions - 1], positions, ids, head) < 0.5


def test_distance_ignores_scale_of_single_tokens() -> None:
    """A token with huge activations does not hide another layer."""
    ours, theirs = np.ones((5, 4)), np.ones((5, 4)) * 2
    ours[0] = theirs[0] = 10_000

    assert distance(ours, theirs) == pytest.approx(0.5)


def test_facts_of_the_target(tiny_model: Path, tmp_path: Path) -> None:
    """Sizes come from config.json; a folder without a model is a configuration error."""
    facts = read_target(tiny_model)

    assert (facts.n_layers, facts.hidden_size) == (8, 64)
    assert read_target(tiny_model) == facts
    with pytest.raises(ConfigError, match="not a model folder"):
        read_target(tmp_path)
    (tmp_path / "config.json").write_text('{"text_config": {"hidden_size": 4}}', encoding="utf-8")
    with pytest.raises(ConfigError, match="no usable num_hidden_layers, vocab_size"):
        read_target(tmp_path)


def test_device_that_is_not_there() -> None:
    """A device that torch does not know, or a GPU that is not there, is a configuration error."""
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="not a device"):
        pick_device("toaster")
