"""What a reply means: an answer that counts, or the error that says why not.

Guarantee: an answer leaves `read_reply` only from HTTP 200 with a natural end, with our prompt's
token count, with at least one id, with as many ids as the server counted, and with every id inside
the vocabulary. Ids come from `output_ids`; the reply's text is never looked at. Everything is pure
and works on whole bodies. Server text that gets into a message is made printable here.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from eagled.errors import (
    AuthError,
    EagledError,
    ReplyBrokenError,
    RequestAbortedError,
    RequestRejectedError,
    ServerBusyError,
    ServerUnavailableError,
)
from eagled.printable import printable
from eagled.retry import parse_retry_after
from eagled.server.protocol import EndCause, GenerateReply, GenerateRequest, ServerLimits
from eagled.types import OutputReason

OK = 200
_AUTH = frozenset({401, 403})
_BUSY = frozenset({429, 503})
_FOR_GOOD = frozenset({400, 413, 422})
_NAN_MARK = "NaN happened"  # SGLang's own sign of broken logits, not free text
_MAX_RETRY_AFTER_S = 600.0  # a longer wish of the server is cut to ten minutes
_NUMBER = re.compile(rb"\d{2,9}")  # one digit is a parameter's bound, not a length
_STREAM_LINE = b"data:"
_U32 = "I"  # `array` code whose items are four bytes on every platform CPython 3.11 runs on


def read_reply(
    body: bytes, request: GenerateRequest, vocab_size: int, connected_at: float = 0.0
) -> GenerateReply:
    """Return the answer in the body of an HTTP 200.

    Raises:
        RequestAbortedError: the finish reason is "abort".
        ReplyBrokenError: anything else that is not a whole answer, an error object included.
    """
    reply = _object(body)
    if "error" in reply:
        raise ReplyBrokenError(f"error inside a 200 reply: {error_message(body)}")
    meta = reply.get("meta_info")
    if not isinstance(meta, dict):
        raise ReplyBrokenError("the reply has no meta_info: not a native /generate reply")
    finish = _finish(meta.get("finish_reason"))
    output = _output_ids(reply.get("output_ids"), vocab_size)
    _check_counts(meta, len(request.prompt), len(output))
    retractions = meta.get("num_retractions")
    return GenerateReply(
        output=output,
        cause=_cause(finish, len(output), request),
        retractions=retractions if isinstance(retractions, int) else 0,
        connected_at=connected_at,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        if body.startswith(_STREAM_LINE):
            raise _stream_fault(body) from None
        raise ReplyBrokenError(f"the reply is not JSON ({len(body)} bytes): {exc}") from None
    if not isinstance(reply, dict):
        raise ReplyBrokenError(f"the reply is a JSON {type(reply).__name__}, not an object")
    return reply


def _stream_fault(body: bytes) -> EagledError:
    """Return what to say of an event stream, which was never asked for."""
    for line in body.splitlines():
        payload = line.removeprefix(_STREAM_LINE).strip()
        if payload.startswith(b'{"error"'):
            return ReplyBrokenError(f"error inside a stream: {error_message(payload)}")
    return ReplyBrokenError("an event stream came instead of one reply: stream ended early")


def _finish(finish: object) -> str:
    """Return "stop" or "length"."""
    if not isinstance(finish, dict):
        raise ReplyBrokenError("the reply ended without a finish reason: stream ended early")
    kind = finish.get("type")
    if kind == "abort":
        raise RequestAbortedError(f"aborted by the server: {printable(finish.get('message'))}")
    if finish.get("matched") == _NAN_MARK:
        raise ReplyBrokenError("the server's logits were not a number")
    if kind not in ("stop", "length"):
        raise ReplyBrokenError(f"unknown finish reason {printable(kind, 80)!r}")
    return str(kind)


def _output_ids(ids: object, vocab_size: int) -> array[int]:
    """Return the ids, u32 [n], after every check that needs no other field."""
    if not isinstance(ids, list) or not ids:
        raise ReplyBrokenError("the reply has no output_ids")
    try:
        # array() refuses text, fractions and what does not fit, six times faster than numpy
        output = array(_U32, ids)
    except (TypeError, OverflowError) as exc:
        raise ReplyBrokenError(f"output_ids holds something that is no token id: {exc}") from None
    highest = int(np.maximum.reduce(np.frombuffer(output, dtype=np.uint32)))
    if highest >= vocab_size:
        raise ReplyBrokenError(f"output id {highest} is outside the vocabulary of {vocab_size}")
    return output


def _check_counts(meta: Mapping[str, Any], n_prompt: int, n_output: int) -> None:
    seen = meta.get("prompt_tokens")
    if seen != n_prompt:
        raise ReplyBrokenError(f"the server counted {seen!r} prompt tokens, {n_prompt} were sent")
    counted = meta.get("completion_tokens", n_output)
    if counted != n_output:
        raise ReplyBrokenError(f"the server counted {counted!r} answer tokens, sent {n_output}")


def _cause(finish: str, n_output: int, request: GenerateRequest) -> EndCause:
    """Tell a reply limit from a full window: a cut before our limit is the server's."""
    if finish == "stop":
        return EndCause.STOP
    return EndCause.LIMIT if n_output >= request.max_new else EndCause.WINDOW


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    request: GenerateRequest | None,
    limits: ServerLimits,
    now_ms: int,
) -> EagledError:
    """Return the error that a status other than 200 stands for; header names are lower case."""
    text = f"HTTP {status}: {error_message(body)}"
    if status in _AUTH:
        return AuthError(f"{text}; set servers.api_key_file")
    wish = parse_retry_after(headers.get("retry-after"), now_ms, _MAX_RETRY_AFTER_S)
    if status in _BUSY or (wish is not None and status not in _FOR_GOOD):
        return ServerBusyError(text, wish)
    if status in _FOR_GOOD and request is not None:
        too_long = status == 413 or is_too_long(request, limits, body)  # noqa: PLR2004 - its name
        reason = OutputReason.TOO_LONG_FOR_SERVER if too_long else OutputReason.REFUSED_BY_SERVER
        return RequestRejectedError(reason, text, status)
    return ServerUnavailableError(text)


def is_too_long(request: GenerateRequest, limits: ServerLimits, body: bytes) -> bool:
    """Return whether lengths are why a request was refused, decided by numbers.

    Either the known limits say so, or the body names our own count (prompt, or prompt + answer)
    together with the limit it was held against: a smaller number that is not one of ours, or the
    same number once more.
    """
    n_prompt, n_total = len(request.prompt), len(request.prompt) + request.max_new
    if limits.too_long(n_prompt, request.max_new):
        return True
    numbers = [int(n) for n in _NUMBER.findall(body)]
    ours = {n_prompt, n_total, request.max_new}
    return any(
        numbers.count(count) > 1
        or (count in numbers and any(n < count and n not in ours for n in numbers))
        for count in (n_prompt, n_total)
    )


def error_message(body: bytes) -> str:
    """Return the message of an error body of either shape, printable and short.

    Native: `{"error": {"message": ...}}` or `{"error": "text"}`; OpenAI routes:
    `{"object": "error", "message": ...}`. Anything else is shown as it is.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = body.decode("utf-8", "replace")
    if isinstance(value, dict):
        inner = value.get("error", value.get("message", value))
        value = inner.get("message", inner) if isinstance(inner, dict) else inner
    return printable(value) or "no message"
