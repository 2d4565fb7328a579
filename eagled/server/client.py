"""The client of one SGLang server.

Guarantee: `generate` returns a whole, natural reply or raises an error whose class says who is to
blame. Ids are checked against the vocabulary before they are sent (one id too high kills an SGLang
server). A request that met a dead kept-alive connection is sent once more, at once, on a fresh
connection. Nothing in here limits how many requests run at once, so nothing here makes one wait.
Price: `bench/generation_cpu.py` measures it beside a bare aiohttp loop.

Decisions:
- Requests go over `wire.py`, which costs half of what aiohttp does; the rare control calls use
  aiohttp, each on a connection of its own, so that no stale one can fail it.
- The request is put together from bytes that are made once a dataset; only ids are encoded.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp
import numpy as np
import orjson
from yarl import URL

from eagled.config import GenerationConfig, ServerConfig
from eagled.credentials import read_key
from eagled.errors import (
    ContentError,
    EagledError,
    FingerprintError,
    ReplyBrokenError,
    ServerTimeoutError,
    ServerUnavailableError,
    StaleConnectionError,
)
from eagled.printable import printable
from eagled.server.gauges import parse_metrics, tokens_made
from eagled.server.load import LoadPath, load_of_metrics, load_of_ranks, objects
from eagled.server.protocol import (
    GenerateReply,
    GenerateRequest,
    Load,
    ModelInfo,
    ServerFlags,
    ServerInfo,
    ServerLimits,
)
from eagled.server.reply import OK, error_message, read_error, read_reply
from eagled.server.wire import ConnectionLostError, NoConnectionError, Wire, WireReply
from eagled.sglang_plugin.spoolfile import FORMAT
from eagled.types import OutputReason

HEALTH_TIMEOUT_S = 25.0  # SGLang itself takes up to 20 s to say 503
INFO_TIMEOUT_S = 10.0
ABORT_TIMEOUT_S = 5.0
ABORT_GRACE_S = 15.0  # an aborted request comes back within 4 s; then the socket is closed
PROBE_RID = "probe-"  # a capturing server's files of this name are nobody's
NOT_CAPTURING = (
    "{url} does not write hidden states: it runs without eagled's plugin, or without its flags "
    "(docs/capture.md)"
)
OTHER_PLUGIN = (
    "{url} writes hidden states in the form {theirs}, this eagled reads {ours}: install the same "
    "version of eagled in SGLang's environment and here (docs/capture.md)"
)
SEARCH_S = 60.0  # between two searches for a load endpoint
_NOT_FOUND = 404
_NAME_CHARS = 4096  # the longest path


class SglangClient:
    """Requests to one endpoint; an async context manager that owns its connections.

    Attributes:
        url: base address, as configured.
        limits: what the server can take; set it after `server_info`.
        stale_resends: requests that were sent again after a dead kept-alive connection.
        is_router: what answers there stands in front of several servers.
    """

    def __init__(
        self, server: ServerConfig, generation: GenerationConfig, *, vocab_size: int
    ) -> None:
        self.url = server.url.rstrip("/")
        self.limits = ServerLimits()
        self.stale_resends = 0
        self.max_in_flight = server.max_in_flight
        self.is_router = server.kind == "router"
        self._load_path: LoadPath | None = None
        self._search_at = float("-inf")
        self._generation = generation
        self._vocab_size = vocab_size
        self._key_file = server.api_key_file
        self._session: aiohttp.ClientSession | None = None
        self._wire: Wire | None = None
        self._health_probe: asyncio.Task[bool] | None = None

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key_file is not None:
            headers["Authorization"] = f"Bearer {read_key(self._key_file)}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._wire = Wire(
            URL(self.url + "/generate"),
            headers,
            connect_timeout_s=self._generation.connect_timeout_s,
            timeout_s=self._generation.request_timeout_s + ABORT_GRACE_S,
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._health_probe is not None:
            self._health_probe.cancel()
        try:
            if self._wire is not None:
                self._wire.close()
                await asyncio.sleep(0)  # closed transports need one turn of the loop to be gone
        finally:
            if self._session is not None:  # also when this task is cancelled while it waits
                await asyncio.shield(self._session.close())

    # -- generation

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """Send one request and return its whole reply.

        Raises:
            ContentError: an id is outside the vocabulary (nothing was sent), or the server
                refuses the request for good.
            RetryableError: the server or the way to it failed; the class says how.
            AuthError: the server wants another key.
            FingerprintError: states were asked for, and the server does not capture.
        """
        assert self._wire is not None, "used outside its context"  # noqa: S101 - a bug, not input
        self._check_prompt(request)
        payload = encode_request(request)
        try:
            reply, again = await self._wire.post(payload), False
        except StaleConnectionError:
            reply, again = await self._send_again(self._wire, payload), True
        if reply.status == OK:
            return read_reply(reply.body, request, self._vocab_size, reply.connected_at)
        error = self._error(reply.status, reply.headers, reply.body, request)
        if request.states and isinstance(error, ContentError):
            fault = await self.capture_fault()
            if fault:
                raise FingerprintError(fault)
        if again and isinstance(error, ContentError) and not _is_too_long(error):
            # perhaps the first sending did arrive and this one is refused as its double
            raise ReplyBrokenError(f"refused after it was sent again: {error.detail}")
        raise error

    async def _send_again(self, wire: Wire, payload: bytes) -> WireReply:
        """Send once more, on a fresh connection; nobody there says that it was no stale one."""
        self.stale_resends += 1
        try:
            return await wire.post(payload, fresh=True)
        except NoConnectionError as exc:
            raise ConnectionLostError(f"the server went away over this request: {exc}") from exc

    def _check_prompt(self, request: GenerateRequest) -> None:
        if not len(request.prompt):
            raise ContentError(OutputReason.REFUSED_BY_SERVER, "the prompt is empty; not sent")
        highest = int(np.maximum.reduce(request.prompt))  # half the cost of .max()
        if highest >= self._vocab_size:
            raise ContentError(
                OutputReason.ID_OUT_OF_VOCABULARY,
                f"prompt id {highest} is outside the vocabulary of {self._vocab_size}; not sent",
            )
        if self.limits.too_long(len(request.prompt), request.max_new):
            raise ContentError(
                OutputReason.TOO_LONG_FOR_SERVER,
                f"{len(request.prompt)} + {request.max_new} tokens do not fit "
                f"{self.limits}; not sent",
            )

    def _error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: GenerateRequest | None
    ) -> EagledError:
        now_ms = time.time_ns() // 1_000_000
        return read_error(status, headers, body, request, self.limits, now_ms)

    # -- control

    async def abort(self, rid: str) -> None:
        """Ask the server to end a request; it says nothing about whether there was one.

        Raises:
            RetryableError: the server could not be asked.
        """
        if self.is_router:
            return  # it has no such call; whoever closes the connection ends the request
        async with self._call("POST", "/abort_request", ABORT_TIMEOUT_S, {"rid": rid}) as response:
            await response.read()

    async def health(self) -> bool:
        """Return whether the server's own one-token probe passes; takes 1 to 25 seconds.

        Only one probe is outstanding at a time: callers that come meanwhile share its result.
        """
        if self._health_probe is None or self._health_probe.done():
            self._health_probe = asyncio.create_task(self._status_ok("/health", HEALTH_TIMEOUT_S))
        return await asyncio.shield(self._health_probe)

    async def ready(self) -> bool:
        """Return whether the server answers `/ready` with 200; at once, without a probe token."""
        return await self._status_ok("/ready", INFO_TIMEOUT_S)

    async def reachable(self) -> bool:
        """Return whether anything answers at the address, whatever its status."""
        try:
            async with self._call("GET", "/ready", INFO_TIMEOUT_S) as response:
                await response.read()
        except EagledError:
            return False
        return True

    async def server_info(self) -> ServerInfo:
        """Return `/server_info`, its context filled in from `/v1/models` if it is left open."""
        if self.is_router:
            return ServerInfo("router", await self._model_context(), None, None, None, None)
        raw = await self._get_object("/server_info", "/get_server_info")
        context = _count(raw.get("context_length")) or await self._model_context()
        return ServerInfo(
            version=printable(raw.get("version", "unknown"), 80),
            context=context,
            max_input=_count(raw.get("max_req_input_len")),
            max_running=_count(raw.get("max_running_requests")),
            max_total_tokens=_count(raw.get("max_total_num_tokens")),
            speculative=_text(raw.get("speculative_algorithm")),
            graph_batch=_count(raw.get("cuda_graph_max_bs")) or None,
        )

    async def model_info(self) -> ModelInfo:
        """Return `/model_info`."""
        try:
            raw = await self._get_object("/model_info", "/get_model_info")
        except _MissingError:
            if not self.is_router:
                raise
            raw = {"model_path": await self._model_name()}
        path = str(raw.get("model_path", ""))
        return ModelInfo(
            model_path=path,
            served_name=str(raw.get("served_model_name") or path),
            tokenizer_path=str(raw.get("tokenizer_path") or path),
        )

    async def flags(self) -> ServerFlags:
        """Return how the server says that it was started; a router or other server says little."""
        try:
            raw = await self._get_object("/server_info", "/get_server_info")
        except _MissingError:
            return ServerFlags()
        aux = raw.get("return_aux_hidden_state_layer_ids")
        return ServerFlags(
            speculative=_text(raw.get("speculative_algorithm")),
            draft=_name(raw.get("speculative_draft_model_path")),
            radix_cache_off=bool(raw.get("disable_radix_cache")),
            metrics=bool(raw.get("enable_metrics")),
            hidden_states=bool(raw.get("enable_return_hidden_states")),
            reasoning_parser=_text(raw.get("reasoning_parser")),
            tool_call_parser=_text(raw.get("tool_call_parser")),
            truncates=bool(raw.get("allow_auto_truncate")),
            aux_layers=tuple(k for k in aux if isinstance(k, int)) if isinstance(aux, list) else (),
        )

    async def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids that the server's own tokenizer gives a text; it makes one token.

        Raises:
            EagledError: if the server does not take text, or does not answer.
        """
        one = {"max_new_tokens": 1, "temperature": 0}
        body = {"text": text, "sampling_params": one, "return_logprob": True,
                "logprob_start_len": 0}  # fmt: skip
        async with self._call("POST", "/generate", HEALTH_TIMEOUT_S, body) as response:
            raw = await response.read()
            if response.status != OK:
                raise self._error(response.status, response.headers, raw, None)
        meta = _json_object("/generate", raw).get("meta_info")
        rows = meta.get("input_token_logprobs") if isinstance(meta, dict) else None
        if not isinstance(rows, list) or not rows:
            raise ReplyBrokenError("/generate gave no ids of its prompt")
        return tuple(int(row[1]) for row in rows)

    async def capture_fault(self) -> str:
        """Return why the server writes no hidden states that we could read; empty if it does.

        It is asked with a prompt of one token.

        Raises:
            RetryableError: the server could not be asked.
        """
        body = {
            "rid": PROBE_RID + uuid.uuid4().hex,
            "input_ids": [0],
            "sampling_params": {"max_new_tokens": 0},
            "return_hidden_states": True,
        }
        async with self._call("POST", "/generate", HEALTH_TIMEOUT_S, body) as response:
            raw = await response.read()
            if response.status == OK:
                meta = _json_object("/generate", raw).get("meta_info")
                receipt = meta.get("hidden_states") if isinstance(meta, dict) else None
                return self._receipt_fault(receipt)
            error = self._error(response.status, response.headers, raw, None)
        if isinstance(error, ContentError):
            return NOT_CAPTURING.format(url=self.url)  # it was not even started for hidden states
        raise error

    def _receipt_fault(self, receipt: object) -> str:
        """Return what is wrong with what stands in a receipt's place."""
        theirs = receipt.get("eagled_capture") if isinstance(receipt, dict) else None
        if theirs == FORMAT:
            return ""
        if theirs is None:
            return NOT_CAPTURING.format(url=self.url)
        return OTHER_PLUGIN.format(url=self.url, theirs=printable(theirs, 40), ours=FORMAT)

    async def loads(self, timeout_s: float = INFO_TIMEOUT_S) -> Load | None:
        """Return the server's load; None when no endpoint of it tells one.

        The endpoint that was found is asked from then on; where there is none, the older two are
        looked for again every `SEARCH_S`.

        Raises:
            RetryableError: the server could not be asked.
        """
        if self.is_router:
            return None
        for path in self._load_paths():
            found = await self._load_at(path, timeout_s)
            if found is not None:
                self._load_path = path
                return found
        self._load_path = None
        return None

    def _load_paths(self) -> tuple[LoadPath, ...]:
        if self._load_path is not None:
            return (self._load_path,)
        now = time.monotonic()
        if now < self._search_at:
            return (LoadPath.LOADS,)
        self._search_at = now + SEARCH_S
        return tuple(LoadPath)

    async def _load_at(self, path: LoadPath, timeout_s: float) -> Load | None:
        """Return the load at one endpoint; None if the server has none there."""
        async with self._call("GET", path, timeout_s) as response:
            body = await response.read()
            if response.status == _NOT_FOUND:
                return None
            if response.status != OK:
                raise self._error(response.status, response.headers, body, None)
        if path is LoadPath.METRICS:
            return load_of_metrics(parse_metrics(body.decode("utf-8", "replace")))
        return load_of_ranks(_json(path, body))

    async def tokens_made(self, timeout_s: float = INFO_TIMEOUT_S) -> float | None:
        """Return a counter of the tokens made so far; None when `/metrics` is off or lacks it.

        Raises:
            RetryableError: the server could not be asked.
        """
        async with self._call("GET", "/metrics", timeout_s) as response:
            body = await response.read()
            if response.status != OK:
                return None
        return tokens_made(parse_metrics(body.decode("utf-8", "replace")))

    async def _model_name(self) -> str:
        raw = await self._get_object("/v1/models")
        return next((name for m in objects(raw.get("data")) if (name := _name(m.get("id")))), "")

    async def _model_context(self) -> int | None:
        try:
            raw = await self._get_object("/v1/models")
        except EagledError:
            return None
        return next(
            (n for m in objects(raw.get("data")) if (n := _count(m.get("max_model_len")))), None
        )

    async def _status_ok(self, path: str, timeout_s: float) -> bool:
        try:
            async with self._call("GET", path, timeout_s) as response:
                await response.read()
                return response.status == OK
        except EagledError:
            return False

    async def _get_object(self, *paths: str, timeout_s: float = INFO_TIMEOUT_S) -> dict[str, Any]:
        """Return the JSON object at the first of `paths` that exists."""
        for path in paths:
            async with self._call("GET", path, timeout_s) as response:
                body = await response.read()
                if response.status == _NOT_FOUND:
                    continue
                if response.status != OK:
                    raise self._error(response.status, response.headers, body, None)
                return _json_object(path, body)
        raise _MissingError(f"{self.url} has no {paths[0]}: it is no SGLang server")

    @asynccontextmanager
    async def _call(
        self, method: str, path: str, timeout_s: float, data: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make one short call on a connection of its own."""
        assert self._session is not None, "used outside its context"  # noqa: S101 - a bug, not input
        started_at = time.monotonic()
        timeout = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=self._generation.connect_timeout_s
        )
        body = None if data is None else orjson.dumps(data)
        try:
            async with self._session.request(
                method, self.url + path, data=body, timeout=timeout
            ) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise _lost(exc, time.monotonic() - started_at) from None


class _MissingError(ServerUnavailableError):
    """The server does not have this address."""


def encode_request(request: GenerateRequest) -> bytes:
    """Return the JSON body: constant members as they are, ids straight from the numpy view."""
    seed = b"" if request.seed is None else b',"sampling_seed":%d' % request.seed
    states = b'"return_hidden_states":true,' if request.states else b""
    return b'{"stream":false,"rid":"%b",%b"sampling_params":{%b,"max_new_tokens":%d%b},%b}' % (
        request.rid.encode("ascii"),
        states,
        request.sampling,
        request.max_new,
        seed,
        b'"input_ids":' + orjson.dumps(request.prompt, option=orjson.OPT_SERIALIZE_NUMPY),
    )


def _is_too_long(error: ContentError) -> bool:
    return error.reason == OutputReason.TOO_LONG_FOR_SERVER


def _lost(exc: BaseException, after_s: float) -> EagledError:
    """Return what a transport error of a control call means."""
    text = f"{type(exc).__name__} after {after_s:.1f} s: {printable(exc)}"
    if isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return NoConnectionError(f"no connection: {text}")
    if isinstance(exc, TimeoutError):
        return ServerTimeoutError(f"no complete reply: {text}")
    if isinstance(exc, aiohttp.ClientPayloadError | aiohttp.ClientResponseError):
        return ReplyBrokenError(f"the reply is broken: {text}")
    return ConnectionLostError(f"the connection was lost: {text}")


def _json(path: str, body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ReplyBrokenError(f"{path} is not JSON: {exc}") from None


def _json_object(path: str, body: bytes) -> dict[str, Any]:
    value = _json(path, body)
    if not isinstance(value, dict):
        raise ReplyBrokenError(f"{path} is no JSON object: {error_message(body)}")
    return value


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _name(value: object) -> str | None:
    """Return a path or a name, printable, but not cut: it is compared."""
    return printable(value, _NAME_CHARS) if isinstance(value, str) and value else None


def _text(value: object) -> str | None:
    return printable(value, 80) if isinstance(value, str) and value else None
