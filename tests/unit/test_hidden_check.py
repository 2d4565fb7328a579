"""Faults injected into captured states, each of which the check must catch and name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eagled.errors import ConfigError, StatesRejectedError
from eagled.hidden_check import SampleFinding, compare, head_check, summary
from eagled.hidden_doctor import ReferenceModel, read_head
from eagled.shards.backend import Captured, Ids
from eagled.shards.backend_transformers import TransformersBackend, to_bits
from eagled.shards.layers import plan_layers
from eagled.shards.selfcheck import from_bits, probe_inputs
from eagled.shards.target import read_target
from tests.faults import fault_file, fault_row
from tests.tiny_model import make_tiny_model

LAYERS = (2, 4, 5)


class _Model:
    """The reference half of the check, on the tiny model."""

    def __init__(self, folder: Path, layers: tuple[int, ...] = LAYERS) -> None:
        self.layers = layers
        self.backend = TransformersBackend(
            read_target(folder), layers=layers, device="cpu", dtype="float32"
        )
        self.states = ReferenceModel.states.__get__(self)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> _Model:
    """The tiny model in transformers."""
    return _Model(tiny_model)


@pytest.fixture(scope="module")
def ids(model: _Model) -> Ids:
    """One real input."""
    return probe_inputs(model.backend.manifest.vocab_size)[0]


def look(model: _Model, ids: Ids, captured: Captured) -> tuple[bool, str]:
    """Return the verdict on one sample and everything that is said."""
    good, lines = summary(compare([("s1", ids)], [captured], model))
    return good, "\n".join(lines)


def test_right_states_are_good(model: _Model, ids: Ids) -> None:
    """The same states by another route pass, with the errors shown."""
    good, said = look(model, ids, model.backend.capture([ids])[0])

    assert good, said
    assert "boundary 2: relative error at most 0.00" in said


def test_head_check_beside_a_comparison(model: _Model, ids: Ids) -> None:
    """A sample that only the head judged stands beside those that were compared."""
    compared = compare([("s1", ids)], [model.backend.capture([ids])[0]], model)
    good, lines = summary([*compared, SampleFinding("s2", 20, (), 1.0)])

    assert good, lines
    assert any("head of last: 100%" in line for line in lines)


def _layers(*layers: int) -> Callable[[Path, Ids], Captured]:
    def take(folder: Path, ids: Ids) -> Captured:
        return _Model(folder, layers).backend.capture([ids])[0]

    return take


def _swapped(folder: Path, ids: Ids) -> Captured:
    captured = _Model(folder).backend.capture([ids])[0]
    return replace(captured, aux=captured.aux[:, [1, 0, 2]])


def _without_norm(folder: Path, ids: Ids) -> Captured:
    backend = _Model(folder).backend
    return replace(
        backend.capture([ids])[0], last=to_bits(torch.from_numpy(backend.before_norm(ids)))
    )


def _last_of_a_layer(folder: Path, ids: Ids) -> Captured:
    backend = _Model(folder).backend
    early = to_bits(torch.from_numpy(backend.reference(ids).boundaries[7]))
    return replace(backend.capture([ids])[0], last=early)


def _other_model(folder: Path, ids: Ids) -> Captured:
    other = make_tiny_model(folder.parent / "other", seed=9)
    return _Model(other).backend.capture([ids])[0]


def _shifted_rows(folder: Path, ids: Ids) -> Captured:
    captured = _Model(folder).backend.capture([ids])[0]
    return replace(captured, aux=np.roll(captured.aux, 1, axis=0))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_layers(3, 5, 6), r"boundary 2: it is boundary 3 \(off by \+1"),
        (_layers(1, 3, 4), r"boundary 2: it is boundary 1 \(off by -1"),
        (_swapped, "another order than planned"),
        (_without_norm, "the final norm was left out"),
        (_last_of_a_layer, "last: it is boundary 7"),
        (_other_model, "another model"),
        (_shifted_rows, "nothing of the target is near"),
    ],
)
def test_injected_fault_is_caught_and_named(
    model: _Model,
    tiny_model: Path,
    ids: Ids,
    fault: Callable[[Path, Ids], Captured],
    words: str,
) -> None:
    """Each kind of wrong capture gives a bad verdict that says which it is."""
    import re

    good, said = look(model, ids, fault(tiny_model, ids))

    assert not good
    assert re.search(words, said), said
    assert "do not start this run" in said


def test_same_layer_twice_is_refused_before_any_comparison(model: _Model, ids: Ids) -> None:
    """What cannot be right is refused without a reference."""
    captured = model.backend.capture([ids])[0]
    with pytest.raises(StatesRejectedError, match="captured twice"):
        look(model, ids, replace(captured, aux=captured.aux[:, [0, 0, 2]]))


@pytest.mark.fault("F61")
def test_one_meaning_of_layer_numbers(model: _Model, tiny_model: Path, ids: Ids) -> None:
    """The plan's ids are what is captured *before*; outputs of layers are one less.

    States of layers chosen by the other meaning are an error that says which layer matched.
    """
    given = json.loads(fault_file("hidden/layer_offset.json").read_text(encoding="utf-8"))
    planned = plan_layers(given["num_layers"])
    outputs = [k - 1 for k in planned]
    good, said = look(model, ids, _layers(*(k - 1 for k in LAYERS))(tiny_model, ids))

    assert "checked by numbers" in fault_row("F61")["expect"]
    assert (given["capture_before"], given["trained_on_outputs_of"]) == (list(planned), outputs)
    assert not good
    assert "boundary 2: it is boundary 1 (off by -1" in said


@pytest.mark.fault("F64")
def test_head_of_last_finds_an_off_by_one_without_a_reference(
    model: _Model, tiny_model: Path
) -> None:
    """On a greedy answer the head ranks the token that followed first; one row off does not."""
    asked = json.loads(fault_file("hidden/request.json").read_text(encoding="utf-8"))
    ids = np.asarray(asked["token_ids"], np.int64)
    with torch.inference_mode():
        for _ in range(16):
            logits = model.backend.model(input_ids=torch.from_numpy(ids)[None]).logits[0, -1]
            ids = np.append(ids, int(logits.argmax()))
    head = read_head(tiny_model)
    assert head is not None
    captured = model.backend.capture([ids])[0]
    shifted = replace(captured, last=np.roll(captured.last, 1, axis=0))
    right, wrong = (head_check(c, 16, head) for c in (captured, shifted))

    assert right >= 0.8
    assert summary([SampleFinding("s", len(ids), (), right)])[0]
    good, lines = summary([SampleFinding("s", len(ids), (), wrong)])
    assert not good
    assert any("off by one or of another model" in line for line in lines)


def test_last_is_bits_of_what_the_head_sees(model: _Model, ids: Ids) -> None:
    """The norm of boundary N is `last`: what the two are called is what they are."""
    norm = model.backend.model.model.norm
    after = norm(torch.from_numpy(model.backend.before_norm(ids))).detach().numpy()

    assert np.allclose(after, model.backend.reference(ids).last, atol=1e-5)
    assert from_bits(model.backend.capture([ids])[0].last).shape == after.shape


def test_a_run_without_states_has_nothing_to_check(tmp_path: Path, tiny_model: Path) -> None:
    """Backend off is said, not passed."""
    from eagled.config import Config
    from eagled.hidden_doctor import check_hidden_states

    config = Config.model_validate(
        {"target": {"model": str(tiny_model)}, "extract": {"capture": "off"},
         "run": {"state_dir": tmp_path}}
    )  # fmt: skip
    with pytest.raises(ConfigError, match="no hidden states"):
        check_hidden_states(config, samples=1, reference=True)
