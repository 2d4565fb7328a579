"""What a back end returns is accepted only when everything about it holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eagled.errors import StatesRejectedError
from eagled.shards.accept import (
    Offer,
    StatesRequest,
    accept_batch,
    accept_states,
    check_ids,
)
from eagled.types import OutputReason
from tests.faults import fault_file

NAME = "s-1"


def request(**changes: object) -> StatesRequest:
    """Return the request of hidden/request.json with some fields changed."""
    asked = json.loads(fault_file("hidden/request.json").read_text(encoding="utf-8"))
    fields = {
        "sample": NAME,
        "token_ids": np.asarray(asked["token_ids"]),
        "layers": tuple(asked["aux_layers"]),
        "hidden_size": asked["hidden_size"],
        "dtype": asked["dtype"],
    }
    return StatesRequest(**{**fields, **changes})


def offer(path: Path) -> Offer:
    """Return a result file as a back end would offer it."""
    tensors = load_file(path)
    states = tensors["hidden_states"]
    dtype = str(states.dtype).removeprefix("torch.")
    if states.dtype == torch.bfloat16:
        states = states.view(torch.int16)
        return Offer(tensors["token_ids"].numpy(), dtype, states.numpy().view(np.uint16))
    return Offer(tensors["token_ids"].numpy(), dtype, states.numpy())


def refusal(name: str, **changes: object) -> str:
    """Return the message with which the file `hidden/<name>.safetensors` is refused."""
    with pytest.raises(StatesRejectedError) as caught:
        accept_states(request(**changes), offer(fault_file(f"hidden/{name}.safetensors")))
    assert caught.value.reason == OutputReason.BAD_STATES
    return str(caught.value)


def test_good_states_pass_unchanged() -> None:
    """The good result is accepted bit for bit."""
    good = offer(fault_file("hidden/good.safetensors"))

    assert np.array_equal(accept_states(request(), good), good.values)
    assert good.values.shape == (10, 3, 8)


@pytest.mark.fault("F57")
def test_rows_missing_by_prefix_cache() -> None:
    """Too few rows: the message has sample, both counts and prefix caching."""
    message = refusal("prefix_cut")

    assert f"sample {NAME}: 4 rows for 10 tokens" in message
    assert "prefix caching" in message


@pytest.mark.fault("F59")
def test_rows_of_a_batch_in_one_result() -> None:
    """Both samples of a mixed-up batch are refused, and the message says what happened."""
    offers = [offer(fault_file(f"hidden/batch_{x}.safetensors")) for x in "ab"]
    results = accept_batch([request(sample="a"), request(sample="b")], offers)

    messages = [str(r) for r in results if isinstance(r, StatesRejectedError)]
    assert len(messages) == 2
    assert "sample a: 20 rows for 10 tokens" in messages[0]
    assert "sample b: 0 rows for 10 tokens" in messages[1]
    assert all("in the wrong results" in m for m in messages)


def test_one_bad_result_does_not_spoil_a_batch() -> None:
    """In a batch, a refused sample leaves the others accepted."""
    offers = [offer(fault_file(f"hidden/{x}.safetensors")) for x in ("good", "nan", "good")]
    results = accept_batch([request(sample=x) for x in "abc"], offers)

    assert [isinstance(r, StatesRejectedError) for r in results] == [False, True, False]


@pytest.mark.fault("F60")
def test_only_the_last_piece_of_a_prompt() -> None:
    """A prompt worked off in pieces of which one came back is refused with both counts."""
    message = refusal("one_chunk")

    assert "2 rows for 10 tokens" in message
    assert "worked off in pieces" in message


@pytest.mark.fault("F62")
def test_missing_layer() -> None:
    """Two of three layers: both widths and both layer counts are named."""
    message = refusal("two_of_three")

    assert "width 16, expected 24 (2 layers of 8, planned 3 of 8)" in message


@pytest.mark.fault("F63")
def test_final_layer_that_nobody_asked_for() -> None:
    """A fourth layer is refused, unless the plan says that a final layer comes along."""
    message = refusal("extra_last")
    kept = accept_states(
        request(final_layer=True), offer(fault_file("hidden/extra_last.safetensors"))
    )

    assert "width 32, expected 24" in message
    assert kept.shape == (10, 4, 8)


@pytest.mark.fault("F65")
def test_same_layer_three_times() -> None:
    """Identical layers are refused."""
    assert "the 3 layers are identical" in refusal("same_layer_thrice")


@pytest.mark.fault("F66")
def test_not_finite_and_wrong_dtype() -> None:
    """Infinity in float16 and NaN in bfloat16 are refused with their place; nothing is cast."""
    half, nan = refusal("inf_half"), refusal("nan")

    assert "not finite (position 1, layer index 1" in half
    assert "dtype float16, bfloat16 is planned" in half
    assert "not finite (position 1, layer index 1" in nan
    assert "dtype" not in nan


@pytest.mark.fault("F68")
def test_axes_swapped() -> None:
    """[layers, tokens, hidden] is named as such and never reshaped."""
    message = refusal("axes_swapped")

    assert "axes are [layers, tokens, hidden]" in message
    assert "scramble" in message


@pytest.mark.fault("F69")
@pytest.mark.parametrize("left", [False, True])
def test_padding_is_refused(*, left: bool) -> None:
    """Padded rows, on either side, are refused as padding; the good rows stay what they were."""
    padded = offer(fault_file("hidden/padded.safetensors"))
    if left:
        padded = Offer(
            np.roll(padded.token_ids, 6), padded.dtype, np.roll(padded.values, 6, axis=0)
        )
    with pytest.raises(StatesRejectedError, match="16 rows for 10 tokens: padding"):
        accept_states(request(), padded)


@pytest.mark.fault("F70")
def test_one_copy_per_rank() -> None:
    """An exact multiple of the rows is refused and named as copies per rank."""
    message = refusal("rank_copies")

    assert "40 rows for 10 tokens: the exact multiple 4" in message
    assert "tensor-parallel rank" in message


def test_other_samples_states() -> None:
    """Right shape, other ids: refused with the first position at which they differ."""
    good = offer(fault_file("hidden/good.safetensors"))
    other = good.token_ids.copy()
    other[4] = 7

    with pytest.raises(StatesRejectedError, match="differ from position 4 on: 7, sent 44"):
        accept_states(request(), Offer(other, good.dtype, good.values))


def test_one_pass_capture_has_one_row_fewer() -> None:
    """One-pass capture yields T - 1 rows, and T rows are then refused."""
    good = offer(fault_file("hidden/good.safetensors"))
    short = Offer(good.token_ids, good.dtype, good.values[:-1])

    assert accept_states(request(capture="one_pass"), short).shape == (9, 3, 8)
    with pytest.raises(StatesRejectedError, match="the last token is never fed"):
        accept_states(request(capture="one_pass"), good)


def test_ids_outside_the_vocabulary() -> None:
    """An id past the end of the target's vocabulary is refused with its position."""
    with pytest.raises(
        StatesRejectedError, match=r"id 300 at position 1 is outside 0\.\.299"
    ) as info:
        check_ids(NAME, np.asarray([1, 300, 5]), 300)

    assert info.value.reason == OutputReason.ID_OUT_OF_VOCABULARY
