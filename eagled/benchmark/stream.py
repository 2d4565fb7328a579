"""One streamed request, and when its tokens came.

Guarantee: an answer counts by the rules of `server.reply` (natural end, our prompt's count, as many
ids as the server counted); an error inside the stream and a stream that breaks off are errors,
whatever the HTTP status was. Tokens are counted by the server's own count, never by pieces: a piece
can hold several tokens, and chunks repeat what came before. Price: of each event only the count is
looked for; the last one alone is read as JSON.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Self

import aiohttp
import orjson

from eagled.benchmark.acceptance import Speculation, speculation_of
from eagled.config import ServerConfig
from eagled.credentials import read_key
from eagled.errors import ReplyBrokenError, ServerTimeoutError, ServerUnavailableError
from eagled.printable import printable
from eagled.server.client import encode_request
from eagled.server.protocol import EndCause, GenerateRequest, ServerLimits
from eagled.server.reply import OK, error_message, read_error, read_reply

_COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')  # in a text its quotes would be escaped
_ERROR = re.compile(rb'\{\s*"error"')
_DONE = b"[DONE]"
_DATA = b"data:"
_FLUSH = "/flush_cache?timeout=20"  # a pass that has just ended is still being cleared away
_LONG_S = 7200.0  # one answer of a slow machine


class Pace:
    """When the tokens of one answer came.

    Attributes:
        tokens: of the answer, by the server's count.
        first_s: from sending to the first event with a token.
        last_s: from sending to the last such event.
        last: the last event that held a count.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.last = b""
        self._in_first = 0
        self._pieces = 0

    def saw(self, payload: bytes, after_s: float) -> None:
        """Take one event in; `after_s` is the time since the request was sent.

        Raises:
            ReplyBrokenError: it is an error.
        """
        if _ERROR.match(payload):
            raise ReplyBrokenError(f"error inside a stream: {error_message(payload)}")
        count = _COUNT.search(payload)
        tokens = int(count[1]) if count else self.tokens
        if count and not tokens:
            return  # nothing was made yet
        if count:
            self.last = payload
        if not self._pieces:
            self.first_s, self._in_first = after_s, tokens
        if tokens > self.tokens or not count or not self._pieces:
            self.last_s = after_s
        self.tokens = tokens
        self._pieces += 1

    @property
    def gap_s(self) -> float | None:
        """Mean time of a token after the first event; None if no more came."""
        more = self.tokens - self._in_first
        return (self.last_s - self.first_s) / more if more > 0 else None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        output: its ids, stop token included.
        cause: why it ended.
        first_s: from sending to the first token.
        gap_s: mean time of a token after that; None for an answer of one event.
        speculation: its verify steps.
    """

    output: tuple[int, ...]
    cause: EndCause
    first_s: float
    gap_s: float | None
    speculation: Speculation


class StreamClient:
    """Streams answers from one server; an async context manager that owns its connections.

    Attributes:
        url: base address.
    """

    def __init__(self, server: ServerConfig, *, vocab_size: int, connect_s: float) -> None:
        self.url = server.url.rstrip("/")
        self._key_file = server.api_key_file
        self._vocab_size = vocab_size
        self._connect_s = connect_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key_file is not None:
            headers["Authorization"] = f"Bearer {read_key(self._key_file)}"
        self._session = aiohttp.ClientSession(
            # a connection a request: one that the server closed meanwhile would fail a pass
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_LONG_S, sock_connect=self._connect_s),
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: GenerateRequest) -> Answer:
        """Return the answer to a request, with its times.

        Raises:
            RetryableError: the server failed, or the stream is no whole answer.
            ContentError: the server refuses the request for good.
            AuthError: it wants another key.
        """
        pace = Pace()
        sent_at = time.perf_counter()
        try:
            async for payload in self._events(request):
                pace.saw(payload, time.perf_counter() - sent_at)
        except TimeoutError:
            raise ServerTimeoutError(f"{self.url}: no whole answer in {_LONG_S:g} s") from None
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as exc:
            raise ReplyBrokenError(f"{self.url}: the stream broke off: {printable(exc)}") from None
        except (aiohttp.ClientError, OSError) as exc:
            raise ServerUnavailableError(f"{self.url}: {printable(exc)}") from None
        if not pace.last:
            raise ReplyBrokenError(f"{self.url}: the stream ended without a token")
        reply = read_reply(pace.last, request, self._vocab_size)
        meta = orjson.loads(pace.last)["meta_info"]
        return Answer(
            tuple(reply.output), reply.cause, pace.first_s, pace.gap_s, speculation_of(meta)
        )

    async def states_width(self, prompt: Sequence[int]) -> int | None:
        """Return how wide the hidden states are that the server gives; None if it gives none."""
        assert self._session is not None, "used outside its context"  # noqa: S101 - a bug, not input
        body = {"input_ids": list(prompt), "return_hidden_states": True,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0}}  # fmt: skip
        data = orjson.dumps(body)
        try:
            async with self._session.post(self.url + "/generate", data=data) as response:
                reply = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as exc:
            raise ServerUnavailableError(f"{self.url}: {printable(exc)}") from None
        rows = (reply.get("meta_info") or {}).get("hidden_states") if isinstance(reply, dict) else 0
        while isinstance(rows, list) and rows and isinstance(rows[0], list):
            rows = rows[0]
        return len(rows) if isinstance(rows, list) and rows else None

    async def flush(self) -> bool:
        """Empty the server's prefix cache; return whether it said so."""
        assert self._session is not None, "used outside its context"  # noqa: S101 - a bug, not input
        try:
            async with self._session.post(self.url + _FLUSH) as response:
                await response.read()
                return response.status == OK
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _events(self, request: GenerateRequest) -> AsyncIterator[bytes]:
        assert self._session is not None, "used outside its context"  # noqa: S101 - a bug, not input
        body = encode_request(request).replace(b'"stream":false', b'"stream":true', 1)
        async with self._session.post(self.url + "/generate", data=body) as response:
            if response.status != OK:
                raw, now_ms = await response.read(), time.time_ns() // 1_000_000
                told = {name.lower(): value for name, value in response.headers.items()}
                raise read_error(response.status, told, raw, request, ServerLimits(), now_ms)
            pending = b""
            async for chunk in response.content.iter_any():
                *events, pending = (pending + chunk).split(b"\n\n")
                for payload in filter(None, map(payload_of, events)):
                    yield payload


def payload_of(event: bytes) -> bytes:
    """Return the data of one event; nothing for the mark of the end and for comments."""
    lines = [x.removeprefix(_DATA).strip() for x in event.splitlines() if x.startswith(_DATA)]
    payload = b"\n".join(lines)
    return b"" if payload == _DONE else payload
