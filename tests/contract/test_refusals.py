"""What the server refuses, and with which status and shape."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.contract.server import Peer

PROMPT = [20, 33, 47, 60]


@pytest.mark.parametrize(
    "sampling",
    [
        {"no_such_parameter": 1},
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"max_new_tokens": -1},
    ],
)
async def test_bad_sampling_is_400(peer: Peer, sampling: dict[str, Any]) -> None:
    """A wrong or unknown sampling parameter is refused, and the server lives on."""
    reply = await peer.generate(PROMPT, **sampling)

    assert 400 == reply.status
    assert reply.message
    assert 200 == (await peer.generate(PROMPT)).status


async def test_an_empty_prompt_is_400(peer: Peer) -> None:
    """input_ids must hold something."""
    assert 400 == (await peer.generate([])).status


async def test_a_body_that_is_not_json_is_refused(peer: Peer) -> None:
    """Half a body is a client error."""
    assert 400 == (await peer.post("/generate", b'{"input_ids": [1')).status


async def test_lengths_at_their_limits(peer: Peer) -> None:
    """A prompt one short of max_req_input_len passes, one more does not."""
    most = int(peer.info["max_req_input_len"])
    prompt = [20 + i % 200 for i in range(most)]

    fits = await peer.generate(prompt[:-1], max_new_tokens=1)
    over = await peer.generate(prompt, max_new_tokens=1)

    assert (200, most - 1) == (fits.status, fits.body["meta_info"]["prompt_tokens"])
    assert 400 == over.status
    assert str(most) in over.message


async def test_a_prompt_beyond_the_context_is_400(peer: Peer) -> None:
    """A prompt as long as the context is refused with both numbers."""
    reply = await peer.generate([20] * peer.context, max_new_tokens=1)

    assert 400 == reply.status
    assert "longer than the model's context length" in reply.message


async def test_prompt_and_answer_must_fit_the_context(peer: Peer) -> None:
    """Prompt plus max_new_tokens beyond the context is refused, equal to it is not."""
    over = await peer.generate(PROMPT, max_new_tokens=peer.context - len(PROMPT) + 1)

    assert 400 == over.status
    assert "Requested token count exceeds" in over.message


async def test_a_live_rid_is_refused_and_free_afterwards(peer: Peer) -> None:
    """A rid cannot be live twice; when its request has ended it may come again."""
    first = asyncio.create_task(
        peer.generate(PROMPT, rid="contract-twice", max_new_tokens=peer.endless)
    )
    await peer.until(running=1)

    second = await peer.generate(PROMPT, rid="contract-twice")
    await peer.post("/abort_request", {"rid": "contract-twice"})
    await first
    third = await peer.generate(PROMPT, rid="contract-twice")

    assert (400, 200) == (second.status, third.status)
    assert "Duplicate request ID detected: contract-twice" in second.message


@pytest.mark.parametrize("outside", [-1, 10**9])
async def test_an_id_outside_the_vocabulary_is_400(peer: Peer, outside: int) -> None:
    """Deliberate difference: SGLang dies of such an id, the embedded server refuses it."""
    if not peer.server.embedded:
        pytest.skip("this request would end a real SGLang server")

    assert 400 == (await peer.generate([20, outside])).status
    assert 200 == (await peer.generate(PROMPT)).status


async def test_a_full_queue_is_503_at_once(peer: Peer) -> None:
    """Beyond slots and queue limit requests are refused; those taken are all answered."""
    limit = peer.info.get("max_queued_requests")
    if limit is None:
        pytest.skip("the server has no queue limit")
    room = int(peer.info["max_running_requests"]) + int(limit)
    tasks = [
        asyncio.create_task(peer.generate(PROMPT, rid=f"contract-q{n}", max_new_tokens=400))
        for n in range(room + 5)
    ]

    replies = await asyncio.gather(*tasks)

    refused = [r for r in replies if r.status == 503]
    assert len(replies) == len(refused) + sum(r.status == 200 for r in replies)
    assert 5 <= len(refused)
    expected = {"object": "error", "message": "The request queue is full.", "type": "503"}
    assert expected | {"param": None, "code": 503} == refused[0].body


async def test_a_wrong_key_is_401(peer: Peer) -> None:
    """Without the key nothing but health and readiness answers."""
    if peer.server.key is None:
        pytest.skip("the server wants no key")
    async with aiohttp.ClientSession(peer.server.url) as session:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with session.get("/server_info", headers=headers) as response:
                assert (401, {"error": "Unauthorized"}) == (
                    response.status,
                    await response.json(content_type=None),
                )
        async with session.get("/health") as response:
            assert 200 == response.status
