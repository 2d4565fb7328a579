"""Reading replies and errors, on bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from eagled.errors import (
    AuthError,
    EagledError,
    ReplyBrokenError,
    RequestAbortedError,
    RequestRejectedError,
    ServerBusyError,
    ServerUnavailableError,
)
from eagled.server.client import encode_request
from eagled.server.protocol import EndCause, GenerateRequest, ServerLimits
from eagled.server.reply import error_message, read_error, read_reply
from eagled.types import OutputReason

NOW_MS = 1_800_000_000_000


def request_of(ids: list[int], *, rid: str = "r1", max_new: int = 100) -> GenerateRequest:
    """Return a request for `ids`."""
    return GenerateRequest(rid, np.array(ids, dtype=np.uint32), max_new, b'"temperature":1.0')


def reply_of(ids: Any, finish: Any, n_prompt: int = 3, **meta: Any) -> bytes:
    """Return a reply body."""
    counted = {"prompt_tokens": n_prompt, "completion_tokens": len(ids) if ids else 0}
    return orjson.dumps(
        {"text": "", "output_ids": ids, "meta_info": {"finish_reason": finish} | counted | meta}
    )


def error_of(
    status: int, body: Any, request: GenerateRequest | None = None, **limits: int
) -> EagledError:
    """Return what a status and body mean."""
    return read_error(status, {}, orjson.dumps(body), request, ServerLimits(**limits), NOW_MS)


def test_a_natural_stop_is_an_answer() -> None:
    """Ids, cause and retractions come through."""
    body = reply_of([7, 8, 9], {"type": "stop", "matched": 9}, num_retractions=2)

    reply = read_reply(body, request_of([1, 2, 3]), 10, 4.5)

    assert reply.output.tolist() == [7, 8, 9]
    assert (reply.cause, reply.retractions, reply.connected_at) == (EndCause.STOP, 2, 4.5)


@pytest.mark.parametrize(
    ("n_output", "cause"), [(5, EndCause.LIMIT), (4, EndCause.WINDOW), (6, EndCause.LIMIT)]
)
def test_a_cut_before_our_limit_is_the_windows(n_output: int, cause: EndCause) -> None:
    """`length` at what was asked is the reply limit; sooner, the server's context."""
    body = reply_of([1] * n_output, {"type": "length", "length": n_output})

    reply = read_reply(body, request_of([1, 2, 3], max_new=5), 10)

    assert reply.cause is cause


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"{}",
        b'{"meta_info": 3}',
        reply_of([7], None),
        reply_of([7], {"type": "surprise"}),
        reply_of([], {"type": "stop"}),
        reply_of(None, {"type": "stop"}),
        reply_of(["7"], {"type": "stop"}),
        reply_of([1.5], {"type": "stop"}),
        reply_of([-1], {"type": "stop"}),
        reply_of([10], {"type": "stop"}),
        reply_of([7], {"type": "stop"}, n_prompt=4),
        reply_of([7], {"type": "stop"}, completion_tokens=2),
        reply_of([7], {"type": "stop"}, completion_tokens=None),
        reply_of([7], {"type": "stop", "matched": "NaN happened"}),
        b'{"error": {"message": "worker died", "code": 500}}',
        b'data: {"choices": []}\n\ndata: {"error": {"message": "x"}}\n\n',
    ],
)
def test_what_is_not_whole_is_broken(body: bytes) -> None:
    """Every such body raises ReplyBrokenError and nothing else."""
    with pytest.raises(ReplyBrokenError):
        read_reply(body, request_of([1, 2, 3]), 10)


def test_an_abort_is_no_answer() -> None:
    """The finish reason decides, whatever ids came along."""
    body = reply_of([7], {"type": "abort", "message": "full\x1b[2J"})

    with pytest.raises(RequestAbortedError, match="full␛"):
        read_reply(body, request_of([1, 2, 3]), 10)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthError),
        (403, AuthError),
        (400, RequestRejectedError),
        (413, RequestRejectedError),
        (408, ServerUnavailableError),
        (425, ServerUnavailableError),
        (429, ServerBusyError),
        (500, ServerUnavailableError),
        (502, ServerUnavailableError),
        (503, ServerBusyError),
        (504, ServerUnavailableError),
    ],
)
def test_the_status_decides_the_class(status: int, kind: type[EagledError]) -> None:
    """Each status has exactly one meaning."""
    error = error_of(status, {"error": "x"}, request_of([1, 2, 3]))

    assert type(error) is kind


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_every_retryable_status_may_ask_for_a_pause(status: int) -> None:
    """Retry-After is honoured whatever the status, and cut to ten minutes."""
    for header, expected in (("3", 3.0), ("9999", 600.0)):
        error = read_error(status, {"retry-after": header}, b"", None, ServerLimits(), NOW_MS)

        assert isinstance(error, ServerBusyError)
        assert error.retry_after_s == expected


@pytest.mark.parametrize(
    ("message", "limits", "reason"),
    [
        ("The input (60 tokens) is longer than the context length (50 tokens).", {}, True),
        ("Input length (60 tokens) exceeds the maximum allowed length (60 tokens)", {}, True),
        ("Requested token count exceeds 128: you requested 160: 60 and 100", {}, True),
        ("temperature must be in [0, 2], got 60", {}, False),
        ("Duplicate request ID detected: r60-100", {}, False),
        ("no", {"context": 100}, True),
        ("no", {"max_input": 60}, True),
        ("no", {"context": 160, "max_input": 61}, False),
    ],
)
def test_lengths_are_told_from_other_refusals_by_counts(
    message: str, limits: dict[str, int], *, reason: bool
) -> None:
    """Known limits or the numbers in the message decide; its words do not."""
    error = error_of(400, {"error": {"message": message}}, request_of([1] * 60), **limits)

    assert isinstance(error, RequestRejectedError)
    assert (error.reason == OutputReason.TOO_LONG_FOR_SERVER) is reason


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "native"}}', "native"),
        (b'{"error": "schema"}', "schema"),
        (b'{"object": "error", "message": "openai", "code": 400}', "openai"),
        (b"<html>proxy</html>", "<html>proxy</html>"),
        (b"\xff\x1b[2J", "�␛[2J"),
        (b"", "no message"),
    ],
)
def test_both_error_shapes_are_read_and_made_printable(body: bytes, text: str) -> None:
    """The message comes out of either shape; nothing a terminal acts upon stays in it."""
    assert error_message(body) == text


def test_the_request_body_is_what_the_protocol_wants() -> None:
    """The hand-joined bytes are the JSON that a plain encoder would make."""
    request = GenerateRequest(
        "r1", np.array([5, 70_000], dtype=np.uint32), 9, b'"temperature":0.6,"top_p":1.0', seed=4
    )

    assert orjson.loads(encode_request(request)) == {
        "stream": False,
        "rid": "r1",
        "input_ids": [5, 70_000],
        "sampling_params": {
            "temperature": 0.6,
            "top_p": 1.0,
            "max_new_tokens": 9,
            "sampling_seed": 4,
        },
    }
