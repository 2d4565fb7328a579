"""The HTTP side of the embedded server: SGLang's shapes in and out, no network code of its own.

Guarantee: the loop of aiohttp never waits for torch; a client that goes away frees its slot at the
loop's next turn. Replies, errors and their odd shapes follow SGLang 0.5.23 so that one client
serves both; `docs/engine.md` lists the differences.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

import eagled
from eagled.engine.forward import ModelInfo
from eagled.engine.loop import PREFILL_CHUNK_TOKENS, SlotLoop
from eagled.engine.params import GenerateRequest, Limits, parse_generate
from eagled.engine.rows import Ending, Load, Result
from eagled.engine.text import TextDecoder
from eagled.errors import RequestRejectedError, ServerUnavailableError

VERSION = f"eagled-{eagled.__version__}"
_STUCK_S = 20.0  # SGLang calls itself unhealthy after as long without output
_MAX_BODY_BYTES = 64 << 20  # a prompt of millions of ids; aiohttp's default is 1 MiB
_OPEN_PREFIXES = ("/health", "/ready")


@dataclass(slots=True)
class Api:
    """Handlers over one slot loop."""

    loop: SlotLoop
    limits: Limits
    info: ModelInfo
    decoder: TextDecoder
    api_key: str | None = None
    started: float = field(default_factory=time.time)

    def app(self) -> web.Application:
        """Return the application with every route that eagled uses."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._check_key])
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort_request)
        for path in ("/health", "/health_generate", "/ready"):
            app.router.add_get(path, self.health)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self.server_info)
        for path in ("/model_info", "/get_model_info"):
            app.router.add_get(path, self.model_info)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/loads", self.loads)
        return app

    @property
    def _check_key(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self.api_key is not None and not request.path.startswith(_OPEN_PREFIXES):
                given = request.headers.get("Authorization", "").encode()
                if not hmac.compare_digest(given, f"Bearer {self.api_key}".encode()):
                    return _json({"error": "Unauthorized"}, 401)
            return await handler(request)

        return check

    async def generate(self, request: web.Request) -> web.Response:
        """Answer one prompt; 400, 500 and 503 in SGLang's shapes."""
        try:
            wanted = parse_generate(await request.read(), self.limits)
            result = await self._run(wanted)
        except RequestRejectedError as exc:
            return _json({"error": {"message": exc.detail}}, exc.status)
        except ServerUnavailableError as exc:
            return _error_object(str(exc), 503)
        if result.ending.kind == "error":
            return _error_object(result.ending.message or "", 500)
        return _json(await asyncio.to_thread(self._reply, result))

    async def abort_request(self, request: web.Request) -> web.Response:
        """Abort by `rid`, or everything with `abort_all`; 200 for unknown ids too."""
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError:
            return _json({"error": {"message": "the body is not JSON"}}, 400)
        if isinstance(body, dict) and body.get("abort_all") is True:
            self.loop.abort_all()
        elif isinstance(body, dict) and isinstance(body.get("rid"), str):
            self.loop.abort(body["rid"])
        else:
            return _json({"error": {"message": "give a rid or abort_all"}}, 400)
        return web.Response()

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 while the loop turns, 503 when it is stuck, ended or ending."""
        healthy = self.loop.load().beat_age_s < _STUCK_S and not self.loop.closing
        return web.Response(status=200 if healthy else 503)

    async def server_info(self, _: web.Request) -> web.Response:
        """Describe the server with SGLang's keys."""
        load = self.loop.load()
        internal = {
            "last_gen_throughput": load.gen_tok_per_s,
            "effective_max_running_requests_per_dp": self.limits.slots,
        }
        return _json({**self._static_info(), "internal_states": [internal]})

    async def model_info(self, _: web.Request) -> web.Response:
        """Describe the model with SGLang's keys."""
        info = self.info
        return _json(
            {
                "model_path": info.path,
                "served_model_name": info.path,
                "tokenizer_path": info.path,
                "is_generation": True,
                "model_type": info.model_type,
                "architectures": list(info.architectures),
                "reasoning_parser": None,
                "tool_call_parser": None,
                "weight_version": "default",
            }
        )

    async def models(self, _: web.Request) -> web.Response:
        """List the one model, as OpenAI servers do."""
        model = {
            "id": self.info.path,
            "object": "model",
            "created": int(self.started),
            "owned_by": "eagled",
            "root": self.info.path,
            "max_model_len": self.limits.context_length,
        }
        return _json({"object": "list", "data": [model]})

    async def loads(self, _: web.Request) -> web.Response:
        """Return the load as SGLang's one data-parallel rank."""
        return _json(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": VERSION,
                "loads": [_load_entry(self.loop.load(), self.limits)],
            }
        )

    async def _run(self, wanted: GenerateRequest) -> Result:
        """Wait for the loop; if the client goes away, take the request out."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[Result] = here.create_future()

        def settle(result: Result) -> None:
            if not done.done():
                done.set_result(result)

        def from_thread(result: Result) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(settle, result)

        self.loop.submit(wanted, from_thread)
        try:
            return await done
        except asyncio.CancelledError:
            self.loop.abort(wanted.rid)
            raise

    def _reply(self, result: Result) -> dict[str, Any]:
        request, ending = result.request, result.ending
        return {
            "text": self.decoder.answer_text(result.output_ids, request.sampling, ending.matched),
            "output_ids": list(result.output_ids),
            "meta_info": {
                "id": request.rid,
                "finish_reason": _finish_reason(ending),
                "prompt_tokens": len(request.input_ids),
                "completion_tokens": len(result.output_ids),
                "cached_tokens": 0,
                "weight_version": "default",
                "e2e_latency": result.elapsed_s,
            },
        }

    def _static_info(self) -> dict[str, Any]:
        info, limits = self.info, self.limits
        return {
            "version": VERSION,
            "engine": "eagled",
            "status": "ready",
            "model_path": info.path,
            "served_model_name": info.path,
            "tokenizer_path": info.path,
            "context_length": limits.context_length,
            "max_total_num_tokens": limits.max_total_tokens,
            "max_req_input_len": limits.max_req_input_len,
            "max_running_requests": limits.slots,
            "max_queued_requests": limits.max_queued,
            "chunked_prefill_size": PREFILL_CHUNK_TOKENS,
            "disable_radix_cache": True,
            "dtype": info.dtype,
            "device": info.device,
            "speculative_algorithm": None,
            "speculative_draft_model_path": None,
            "enable_return_hidden_states": False,
            "enable_return_aux_hidden_states": False,
        }


def _finish_reason(ending: Ending) -> dict[str, Any]:
    if ending.kind == "length":
        return {"type": "length", "length": ending.length}
    if ending.kind == "stop":
        return {"type": "stop", "matched": ending.matched}
    return {"type": "abort", "message": ending.message, "status_code": None, "err_type": None}


def _load_entry(load: Load, limits: Limits) -> dict[str, Any]:
    return {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.running + load.waiting,
        "num_used_tokens": load.used_tokens,
        "max_total_num_tokens": limits.max_total_tokens,
        "max_running_requests": limits.slots,
        "token_usage": load.used_tokens / limits.max_total_tokens,
        "gen_throughput": load.gen_tok_per_s,
        "cache_hit_rate": 0.0,
        "utilization": load.running / limits.slots,
        "queues": {"waiting": load.waiting, "retracted": 0, "paused": 0},
    }


def _error_object(message: str, status: int) -> web.Response:
    body = {
        "object": "error",
        "message": message,
        "type": str(status),
        "param": None,
        "code": status,
    }
    return _json(body, status)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
