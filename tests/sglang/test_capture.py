"""Every row that the plugin writes equals transformers', whatever the scheduler does."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.sglang.kit import (
    VOCAB,
    Reference,
    Server,
    check_reply,
    request_body,
    seeded,
    wait_for,
)

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
_AT_ONCE = 12


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(10, VOCAB) for _ in range(length)]


def _leftovers(server: Server) -> list[str]:
    return [p.name for p in server.spool.iterdir() if p.suffix == ".tmp"]


def test_rows_of_many_lengths_equal_the_reference(
    server: Server, qwen3_reference: Reference
) -> None:
    """Prompts around the chunk size, answers of 0 to 30 tokens and stop ids: all rows, all right.

    Requests between them do not ask, and get neither a receipt nor a file.
    """
    rng = seeded()
    lengths, answers = (1, 5, 40, 255, 256, 257, 300, 700, 1500), (0, 1, 2, 8, 30)
    bodies = []
    for index in range(40):
        body = request_body(f"many-{index}", _prompt(rng, rng.choice(lengths)), rng.choice(answers))
        body["return_hidden_states"] = index % 5 != 4
        if index % 7 == 3:
            stops = list(range(0, VOCAB, 9))
            body["sampling_params"] |= {"stop_token_ids": stops, "ignore_eos": False}
        bodies.append(body)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        replies = list(pool.map(lambda b: server.post("/generate", b)[1], bodies))

    for body, reply in zip(bodies, replies, strict=True):
        if body["return_hidden_states"]:
            check_reply(reply, body["input_ids"], qwen3_reference)
        else:
            assert "hidden_states" not in reply["meta_info"]
            assert not (server.spool / f"{body['rid']}.safetensors").exists()
    assert not _leftovers(server)


def test_retracted_and_mixed_batches(tight: Server, llama_reference: Reference) -> None:
    """Requests that lose their memory and start again have the rows of one computation."""
    soft = {"ignore_eos": False}  # with ignore_eos the scheduler reserves all of the memory ahead
    rng = seeded()
    bodies = [
        request_body(f"tight-{index}", _prompt(rng, rng.choice((30, 150, 260))), 120, **soft)
        for index in range(14)
    ]
    with ThreadPoolExecutor(14) as pool:
        replies = list(pool.map(lambda b: server_reply(tight, b), bodies))

    assert sum(reply["meta_info"]["num_retractions"] for reply in replies) > 0
    for body, reply in zip(bodies, replies, strict=True):
        check_reply(reply, body["input_ids"], llama_reference)


def server_reply(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to `body`."""
    status, reply = server.post("/generate", body)
    assert status == 200, reply
    return dict(reply)


def test_batch_request_has_a_receipt_each(server: Server, qwen3_reference: Reference) -> None:
    """One HTTP request with two prompts, one of which asks."""
    rng = seeded()
    prompts = [_prompt(rng, 20), _prompt(rng, 33)]
    body = request_body("", [], 5) | {
        "input_ids": prompts,
        "rid": ["pair-0", "pair-1"],
        "return_hidden_states": [False, True],
    }
    _, replies = server.post("/generate", body)

    assert "hidden_states" not in replies[0]["meta_info"]
    check_reply(replies[1], prompts[1], qwen3_reference)


def test_streamed_request_has_its_receipt_at_the_end(
    server: Server, qwen3_reference: Reference
) -> None:
    """Only the last event of a stream carries a receipt."""
    prompt = _prompt(seeded(), 50)
    body = request_body("streamed", prompt, 12) | {"stream": True}
    request = urllib.request.Request(  # noqa: S310 - our own http address
        server.url + "/generate",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - as above
        lines = [line[6:] for line in reply.read().decode().splitlines() if line.startswith("data")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]

    # A busy server puts several tokens into one event, so their number is not fixed.
    assert [e for e in events[:-1] if "hidden_states" in e["meta_info"]] == []
    check_reply(events[-1], prompt, qwen3_reference)


def test_abort_leaves_nothing(server: Server) -> None:
    """An aborted request's receipt says so; neither file nor note nor temporary file stays."""
    with ThreadPoolExecutor(1) as pool:
        body = request_body("gone", _prompt(seeded(), 300), 3000)
        running = pool.submit(server.post, "/generate", body)
        wait_for(lambda: bool(_leftovers(server)))
        server.post("/abort_request", {"rid": "gone"})
        _, reply = running.result()

    assert reply["meta_info"]["hidden_states"]["state"] == "aborted"
    wait_for(lambda: not [p for p in server.spool.iterdir() if p.name.startswith("gone")])


def test_disconnected_client_leaves_nothing(server: Server) -> None:
    """A client that closes its socket takes its temporary file with it."""
    raw = json.dumps(request_body("left", _prompt(seeded(), 300), 3000)).encode()
    where = urllib.parse.urlsplit(server.url)
    with contextlib.closing(socket.create_connection((where.hostname or "", where.port))) as sock:
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
        sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
        wait_for(lambda: bool(_leftovers(server)))

    wait_for(lambda: not [p for p in server.spool.iterdir() if p.name.startswith("left")])


def test_earlier_file_of_the_same_rid_is_not_taken(
    server: Server, qwen3_reference: Reference
) -> None:
    """A second request under one rid gets its own states."""
    rng = seeded()
    first, second = _prompt(rng, 40), _prompt(rng, 41)
    server.generate("twice", first, 3)
    (server.spool / "twice.failed").write_text('{"error": "of an earlier try"}')

    check_reply(server.generate("twice", second, 3), second, qwen3_reference)


@pytest.mark.parametrize("rid", ["../escape", ".hidden", "a/b", "x" * 201])
def test_rid_that_is_no_file_name_is_refused(server: Server, rid: str) -> None:
    """A rid cannot lead out of the spool."""
    status, body = server.post("/generate", request_body(rid, [5, 6, 7], 2))

    assert status == 400
    assert "plain file name" in json.dumps(body)


def test_killed_writer_is_replaced(server: Server, qwen3_reference: Reference) -> None:
    """SIGKILL of the writer fails what it had in work and nothing after it."""
    with ThreadPoolExecutor(1) as pool:
        body = request_body("hit", _prompt(seeded(), 300), 400)
        running = pool.submit(server.post, "/generate", body)
        wait_for(lambda: bool(_leftovers(server)))
        os.kill(int(_leftovers(server)[0].split(".")[-2]), signal.SIGKILL)
        _, reply = running.result()

    assert reply["meta_info"]["hidden_states"]["state"] == "failed"
    assert "writer process died" in reply["meta_info"]["hidden_states"]["error"]
    prompt = _prompt(seeded(), 60)
    check_reply(server.generate("after", prompt, 5), prompt, qwen3_reference)
    assert not _leftovers(server)
