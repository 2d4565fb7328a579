"""/generate: replies, endings and sampling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.contract.server import Peer

PROMPT = [20, 33, 47, 60, 52, 41]


async def test_a_reply_has_the_native_shape(peer: Peer) -> None:
    """Ids, text and meta_info are all there and agree with each other."""
    reply = await peer.generate(PROMPT, rid="contract-shape", max_new_tokens=7)

    meta = reply.body["meta_info"]
    assert 200 == reply.status
    assert ("contract-shape", len(PROMPT), 7) == (
        meta["id"],
        meta["prompt_tokens"],
        meta["completion_tokens"],
    )
    assert {"type": "length", "length": 7} == reply.finish
    assert (7, True) == (len(reply.ids), isinstance(reply.body["text"], str))
    assert 0 <= meta["cached_tokens"] <= len(PROMPT)
    assert 0 < meta["e2e_latency"]


async def test_the_text_is_that_of_the_ids(peer: Peer) -> None:
    """The text is the tokenizer's decoding of output_ids without special tokens."""
    tokenizer = AutoTokenizer.from_pretrained(peer.server.model)

    reply = await peer.generate(PROMPT, max_new_tokens=12)

    assert tokenizer.decode(reply.ids, skip_special_tokens=True) == reply.body["text"]


async def test_new_tokens_default_to_128(peer: Peer) -> None:
    """Without max_new_tokens the answer ends at 128."""
    params = {"temperature": 0, "ignore_eos": True}

    reply = await peer.post("/generate", {"input_ids": PROMPT, "sampling_params": params})

    assert (128, {"type": "length", "length": 128}) == (len(reply.ids), reply.finish)


async def test_no_new_tokens_is_a_prefill(peer: Peer) -> None:
    """max_new_tokens 0 is valid and returns nothing but the count of the prompt."""
    reply = await peer.generate(PROMPT, max_new_tokens=0)

    assert (200, [], "length") == (reply.status, reply.ids, reply.finish["type"])
    assert len(PROMPT) == reply.body["meta_info"]["prompt_tokens"]


async def test_the_stop_id_stays_in_the_ids(peer: Peer) -> None:
    """An answer that a stop id ends holds it as its last id, and names it."""
    free = (await peer.generate(PROMPT, max_new_tokens=12)).ids
    stop = free[4]

    reply = await peer.generate(PROMPT, max_new_tokens=12, ignore_eos=False, stop_token_ids=[stop])

    # an end id of the model itself may come earlier
    assert free[: len(reply.ids)] == reply.ids
    assert {"type": "stop", "matched": reply.ids[-1]} == reply.finish
    assert len(reply.ids) <= free.index(stop) + 1


async def test_a_stop_id_at_the_limit_counts_as_stop(peer: Peer) -> None:
    """An answer whose last allowed id is a stop id has ended by itself."""
    free = (await peer.generate(PROMPT, max_new_tokens=12)).ids

    reply = await peer.generate(
        PROMPT, max_new_tokens=1, ignore_eos=False, stop_token_ids=[free[0]]
    )

    assert free[:1] == reply.ids
    assert {"type": "stop", "matched": free[0]} == reply.finish


async def test_ignore_eos_ignores_stop_ids_too(peer: Peer) -> None:
    """With ignore_eos no id ends the answer."""
    free = (await peer.generate(PROMPT, max_new_tokens=12)).ids

    reply = await peer.generate(PROMPT, max_new_tokens=12, stop_token_ids=free)

    assert free == reply.ids


async def test_a_stop_string_ends_the_answer_and_is_cut_from_the_text(peer: Peer) -> None:
    """The text ends before the stop string; the ids hold all that was generated."""
    free = await peer.generate(PROMPT, max_new_tokens=24)
    stop = free.body["text"][6:9]
    expected = free.body["text"][: free.body["text"].index(stop)]

    reply = await peer.generate(PROMPT, max_new_tokens=24, stop=stop)

    assert ({"type": "stop", "matched": stop}, expected) == (reply.finish, reply.body["text"])
    assert free.ids[: len(reply.ids)] == reply.ids


async def test_greedy_is_the_same_alone_and_among_others(peer: Peer) -> None:
    """In float32, answers of different lengths at once equal those of one after another."""
    prompts = [[(11 * n + 3 * i) % 200 + 20 for i in range(4 + 31 * n)] for n in range(6)]
    alone = [(await peer.generate(p, max_new_tokens=16)).ids for p in prompts]

    together = await asyncio.gather(*(peer.generate(p, max_new_tokens=16) for p in prompts))

    assert alone == [reply.ids for reply in together]


async def test_a_seed_repeats(peer: Peer) -> None:
    """The same sampling_seed gives the same ids; other seeds give others."""
    if not peer.server.embedded:
        pytest.skip("SGLang keeps seeds only with deterministic inference switched on")
    hot: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": 20}

    first, second, other = await asyncio.gather(
        *(peer.generate(PROMPT, **hot, sampling_seed=seed) for seed in (5, 5, 6))
    )

    assert first.ids == second.ids
    assert first.ids != other.ids


@pytest.mark.parametrize("top_k", [-1, 1, 20])
async def test_sampled_answers_are_whole(peer: Peer, top_k: int) -> None:
    """Sampling with every filter returns as many ids as asked for."""
    reply = await peer.generate(
        PROMPT, temperature=0.8, top_p=0.9, top_k=top_k, min_p=0.02, max_new_tokens=10
    )

    assert (200, 10) == (reply.status, len(reply.ids))


async def test_unknown_top_level_keys_are_ignored(peer: Peer) -> None:
    """A key beside the known ones changes nothing."""
    params = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": params, "no_such_key": 1}

    reply = await peer.post("/generate", body)

    assert (200, 3) == (reply.status, len(reply.ids))
