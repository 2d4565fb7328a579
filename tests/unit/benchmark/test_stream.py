"""Tokens are counted by the server, never by pieces; a stream's errors are errors."""

from __future__ import annotations

import json
import re

import pytest

from eagled.benchmark.stream import Pace, payload_of
from eagled.errors import ReplyBrokenError
from tests.faults import fault_file


def event(tokens: int, **more: object) -> bytes:
    """Return the data of one cumulative event."""
    meta = {"completion_tokens": tokens, "finish_reason": None}
    return json.dumps({"text": "x", "output_ids": [1] * tokens, "meta_info": meta} | more).encode()


@pytest.mark.fault("F92")
def test_a_piece_of_three_tokens_counts_three() -> None:
    """21 tokens by the server's count in 3 pieces; the rate is that of 21."""
    raw = fault_file("bench/three_per_chunk.http").read_bytes()
    events = [b"data:" + line for line in re.findall(rb"(?m)^data:(.*)$", raw)]
    pace = Pace()
    for i, payload in enumerate(filter(None, map(payload_of, events))):
        pace.saw(payload, 0.5 * (i + 1))

    assert (21, 0.5, 2.0) == (pace.tokens, pace.first_s, pace.last_s)
    assert pytest.approx(10.5) == pace.tokens / pace.last_s


def test_times_are_those_of_tokens() -> None:
    """First token at 0.2 s, then 6 more until 0.8 s; an event without a new token is none."""
    pace = Pace()
    for tokens, after_s in ((1, 0.2), (4, 0.5), (7, 0.8), (7, 0.9)):
        pace.saw(event(tokens), after_s)

    assert (7, 0.2, 0.8) == (pace.tokens, pace.first_s, pace.last_s)
    assert pytest.approx(0.1) == pace.gap_s


def test_an_event_before_the_first_token_is_no_first_token() -> None:
    """Some servers tell of a request that has made nothing yet."""
    pace = Pace()
    pace.saw(event(0), 0.1)
    pace.saw(event(1), 0.4)

    assert (0.4, 1) == (pace.first_s, pace.tokens)


def test_an_answer_of_one_event_has_no_gap() -> None:
    """Nothing is divided by zero."""
    pace = Pace()
    pace.saw(event(5), 0.3)

    assert pace.gap_s is None


@pytest.mark.parametrize("body", ['{"error": {"message": "oom"}}', '{ "error":"oom"}'])
def test_an_error_inside_the_stream_is_one(body: str) -> None:
    """Whatever the HTTP status was; its text is told."""
    with pytest.raises(ReplyBrokenError, match="oom"):
        Pace().saw(body.encode(), 0.1)


def test_text_that_looks_like_a_count_is_text() -> None:
    """Quotes in an answer's text are escaped, so it cannot name the count."""
    pace = Pace()
    pace.saw(event(3, text='"completion_tokens": 900, {"error": 1}'), 0.1)

    assert 3 == pace.tokens


@pytest.mark.parametrize(
    ("raw", "payload"),
    [
        (b'data: {"a": 1}', b'{"a": 1}'),
        (b"data: [DONE]", b""),
        (b": keep-alive", b""),
        (b'event: x\ndata: {"a":\ndata: 1}', b'{"a":\n1}'),
        (b"", b""),
    ],
)
def test_events_are_read_as_the_format_says(raw: bytes, payload: bytes) -> None:
    """Comments and the mark of the end hold no data; data may stand on several lines."""
    assert payload == payload_of(raw)
