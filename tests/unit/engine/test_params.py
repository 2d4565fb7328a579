"""What `/generate` accepts and how it refuses."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from eagled.engine.params import GenerateRequest, Limits, Sampling, parse_generate
from eagled.errors import RequestRejectedError

_LIMITS = Limits(context_length=100, max_total_tokens=1000, slots=4, vocab_size=50)


def _parse(limits: Limits = _LIMITS, **body: Any) -> GenerateRequest:
    return parse_generate(orjson.dumps({"input_ids": [1, 2, 3]} | body), limits)


def test_defaults_are_those_of_sglang() -> None:
    """Nothing given means temperature 1, no filter; 128 new tokens cut to what fits."""
    assert Sampling(max_new_tokens=97) == _parse().sampling
    assert 128 == _parse(Limits(4096, 4096, 1, 50)).sampling.max_new_tokens


def test_every_sampling_key_arrives() -> None:
    """All supported keys end up in the frozen record under our names."""
    given = {
        "max_new_tokens": 5, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
        "min_p": 0.1, "sampling_seed": 11, "stop": ["a", ""], "stop_token_ids": [4, 4, 5],
        "ignore_eos": True, "skip_special_tokens": False, "no_stop_trim": True,
        "spaces_between_special_tokens": False, "n": 1, "repetition_penalty": 1.0,
        "frequency_penalty": 0.0, "presence_penalty": 0, "regex": None,
    }  # fmt: skip

    request = _parse(rid="abc", sampling_params=given)

    assert GenerateRequest(
        "abc",
        (1, 2, 3),
        Sampling(
            5, 2, 0.5, 0.9, 7, 0.1, 11, ("a",), frozenset({4, 5}),
            ignore_eos=True, skip_special_tokens=False,
            spaces_between_special_tokens=False, no_stop_trim=True,
        ),
    ) == request  # fmt: skip


@pytest.mark.parametrize("off", [-1, 0])
def test_top_k_off(off: int) -> None:
    """Both -1 and 0 switch top-k off."""
    assert 0 == _parse(sampling_params={"top_k": off}).sampling.top_k


@pytest.mark.parametrize(
    ("params", "greedy"),
    [({"temperature": 0}, True), ({"temperature": 1e-7}, True), ({"top_k": 1}, True), ({}, False)],
)
def test_greedy(params: dict[str, Any], greedy: bool) -> None:  # noqa: FBT001 - expected value
    """Temperature 0, or one candidate, is greedy."""
    assert greedy == _parse(sampling_params=params).sampling.greedy


def test_unknown_top_level_keys_are_ignored() -> None:
    """A typo beside input_ids is not noticed, as with SGLang; a missing rid is made up."""
    first, second = _parse(priority=3, inputids=[9]), _parse()

    assert (1, 2, 3) == first.input_ids
    assert first.rid != second.rid


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": None}, "input_ids is missing"),
        ({"input_ids": [[1], [2]]}, "input_ids.0"),
        ({"input_ids": [1.0]}, "input_ids.0"),
        ({"input_ids": [True]}, "input_ids.0"),
        ({"input_ids": [50]}, "50, outside the vocabulary 0..49"),
        ({"input_ids": [-1]}, "-1, outside the vocabulary"),
        ({"input_ids": [1] * 100}, "longer than the model's context length"),
        ({"input_ids": [1] * 94}, "exceeds the maximum allowed length .94 tokens"),
        ({"sampling_params": {"max_new_tokens": 98}}, "Requested token count exceeds"),
        ({"sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"sampling_params": {"max_tokens": 4}}, "unexpected sampling parameter 'max_tokens'"),
        ({"sampling_params": {"temperature": -0.1}}, "temperature"),
        ({"sampling_params": {"top_p": 0}}, "top_p"),
        ({"sampling_params": {"min_p": 1.5}}, "min_p"),
        ({"sampling_params": {"n": 2}}, "n: "),
        ({"sampling_params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"sampling_params": {"regex": "a+"}}, "regex"),
        ({"stream": True}, "stream"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"return_logprob": True}, "return_logprob"),
        ({"rid": ""}, "rid"),
    ],
)
def test_refusals_name_the_value(body: dict[str, Any], message: str) -> None:
    """Each impossible request is refused with status 400 and a message about what is wrong."""
    with pytest.raises(RequestRejectedError, match=message) as caught:
        _parse(**body)

    assert 400 == caught.value.status


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    """Anything but a JSON object is a 400."""
    with pytest.raises(RequestRejectedError):
        parse_generate(raw, _LIMITS)


def test_the_longest_prompts_that_pass() -> None:
    """A prompt of max_req_input_len - 1 passes, and prompt + new tokens may fill the context."""
    assert 93 == len(_parse(input_ids=[1] * 93).input_ids)
    assert 97 == _parse(sampling_params={"max_new_tokens": 97}).sampling.max_new_tokens


def test_a_small_pool_limits_prompt_and_answer() -> None:
    """With a pool smaller than the context the answer is cut to what the pool can hold."""
    small = Limits(context_length=100, max_total_tokens=40, slots=4, vocab_size=50)

    assert 34 == small.max_req_input_len
    assert 37 == _parse(small, sampling_params={"max_new_tokens": 90}).sampling.max_new_tokens


def test_no_limit_fills_the_context() -> None:
    """max_new_tokens null means all that fits."""
    assert 97 == _parse(sampling_params={"max_new_tokens": None}).sampling.max_new_tokens
