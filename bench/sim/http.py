"""The engine as an HTTP server in scaled time, speaking the part of SGLang's protocol we use.

`python -m bench.sim_server --host-shape flat-1500k --scale 50` prints its port. One second of wall
time is `scale` seconds of the engine's. How long an answer gets is decided by the prompt's ids and
the seed, so a repeated request gets the same answer. Time moves in ticks of `TICK_S` of wall time:
what a client sees is late by at most that.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from array import array
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from bench.sim.engine import Ended, Engine
from bench.sim.hosts import Host, Job, Part

TICK_S = 0.002
MAX_BODY = 64 << 20
VOCAB = 32_000
FIRST_ID = 100  # below it are the special ids
STOP_ID = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What the server pretends to be.

    `loads` is the load endpoint it has. `by_rid` makes each attempt's answer one of its own, so
    that an answer stored under a wrong attempt is seen.
    """

    host: Host
    part: Part
    scale: float
    seed: int = 0
    context: int = 40_000
    loads: str = "v1"  # v1, get_load, metrics, none
    vocab: int = VOCAB
    first_id: int = FIRST_ID
    stop_id: int = STOP_ID
    by_rid: bool = False


@dataclass(slots=True)
class _Live:
    """A request that waits for its answer."""

    rid: str
    n_prompt: int
    ids_seed: int
    done: asyncio.Future[Ended]


@dataclass(slots=True)
class SimServer:
    """Drives the engine by the wall clock and answers requests."""

    setting: Setting
    engine: Engine = field(init=False)
    _live: dict[int, _Live] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _count: int = 0
    _began: float = field(default_factory=time.monotonic)
    _busy: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Make the engine."""
        self.engine = Engine(self.setting.host, self.setting.seed)

    def app(self) -> web.Application:
        """Return the application; its clock runs while it does."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort)
        for path in ("/health", "/health_generate", "/ready"):
            app.router.add_get(path, self.fine)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self.server_info)
        app.router.add_get("/model_info", self.model_info)
        kind = self.setting.loads
        if kind == "v1":
            app.router.add_get("/v1/loads", self.loads)
        elif kind == "get_load":
            app.router.add_get("/get_load", self.old_loads)
        elif kind == "metrics":
            app.router.add_get("/metrics", self.metrics)
        app.cleanup_ctx.append(self._clock)
        return app

    # -- time

    async def _clock(self, _app: web.Application) -> Any:  # noqa: ANN401 - aiohttp's own hook
        task = asyncio.create_task(self._run())
        yield
        task.cancel()

    async def _run(self) -> None:
        while True:
            self._move()
            if self.engine.idle:
                self._busy.clear()
                await self._busy.wait()
                continue
            await asyncio.sleep(TICK_S)

    def _move(self) -> None:
        """Bring the engine up to the present."""
        now = (time.monotonic() - self._began) * self.setting.scale
        while self.engine.now < now:
            for ended in self.engine.advance(now):
                self._deliver(ended)

    def _deliver(self, ended: Ended) -> None:
        live = self._live.pop(ended.job.number, None)
        if live is None:
            return
        self._numbers.pop(live.rid, None)
        if not live.done.done():
            live.done.set_result(ended)

    # -- requests

    async def generate(self, request: web.Request) -> web.Response:
        """POST /generate: wait for the engine, and answer as SGLang does."""
        body = orjson.loads(await request.read())
        ids = array("I", body["input_ids"])
        params = body.get("sampling_params", {})
        max_new = int(params.get("max_new_tokens", 128))
        if len(ids) + max_new > self.setting.context:
            text = f"Requested token count exceeds the model's context {self.setting.context}"
            return web.json_response({"error": {"message": text}}, status=400)
        rid = str(body.get("rid", f"sim-{self._count}"))
        if rid in self._numbers:
            text = f"Duplicate request ID detected: {rid}"
            return web.json_response({"error": {"message": text}}, status=400)
        live = self._enter(rid, ids, max_new)
        try:
            ended = await live.done
        except asyncio.CancelledError:
            self._end(rid)
            raise
        return web.Response(
            body=orjson.dumps(self._reply(live, ended)), content_type="application/json"
        )

    def _enter(self, rid: str, ids: array[int], max_new: int) -> _Live:
        self._move()
        self._count += 1
        asked = rid.encode() if self.setting.by_rid else ids.tobytes()
        seed = zlib.crc32(asked, self.setting.seed)
        part = self.setting.part
        wanted = random.Random(seed).lognormvariate(0, part.output_sigma) * part.output
        n_out = max(1, min(max_new, round(wanted)))
        job = Job(self._count, part.dataset, part.lane, len(ids), max_new, n_out)
        live = _Live(rid, len(ids), seed, asyncio.get_running_loop().create_future())
        self._live[job.number] = live
        self._numbers[rid] = job.number
        self.engine.submit(job)
        self._busy.set()
        return live

    def _reply(self, live: _Live, ended: Ended) -> dict[str, Any]:
        rng = random.Random(live.ids_seed)
        n = ended.n_out
        first, end = self.setting.first_id, self.setting.vocab
        ids = [rng.randrange(first, end) for _ in range(n)]
        reason: dict[str, Any] = {"type": "length", "length": n}
        if ended.aborted:
            reason = {"type": "abort", "message": "Abort before prefill", "status_code": None}
        elif n < ended.job.max_new:
            ids[-1] = self.setting.stop_id
            reason = {"type": "stop", "matched": self.setting.stop_id}
        meta = {
            "id": live.rid,
            "finish_reason": reason,
            "prompt_tokens": live.n_prompt,
            "completion_tokens": n,
            "cached_tokens": 0,
            "num_retractions": ended.retractions,
        }
        return {"text": "", "output_ids": ids, "meta_info": meta}

    async def abort(self, request: web.Request) -> web.Response:
        """POST /abort_request."""
        body = orjson.loads(await request.read())
        for rid in list(self._numbers) if body.get("abort_all") else [str(body.get("rid"))]:
            self._end(rid)
        return web.Response()

    def _end(self, rid: str) -> None:
        number = self._numbers.get(rid)
        if number is not None:
            self._move()
            ended = self.engine.abort(number)
            if ended is not None:
                self._deliver(ended)

    # -- looking

    async def fine(self, _request: web.Request) -> web.Response:
        """GET /health and /ready."""
        return web.Response()

    async def server_info(self, _request: web.Request) -> web.Response:
        """GET /server_info."""
        host = self.setting.host
        return web.json_response(
            {
                "version": "0.5.23",
                "context_length": self.setting.context,
                "max_req_input_len": self.setting.context - 6,
                "max_running_requests": host.max_running,
                "max_total_num_tokens": host.kv_tokens,
                "schedule_conservativeness": host.conservativeness,
            }
        )

    async def model_info(self, _request: web.Request) -> web.Response:
        """GET /model_info."""
        return web.json_response({"model_path": "/models/sim", "tokenizer_path": "/models/sim"})

    async def loads(self, _request: web.Request) -> web.Response:
        """GET /v1/loads."""
        self._move()
        engine, host = self.engine, self.setting.host
        rank = {
            "dp_rank": 0,
            "num_running_reqs": len(engine.running),
            "num_waiting_reqs": engine.n_waiting,
            "num_used_tokens": engine.used,
            "max_total_num_tokens": host.kv_tokens,
            "max_running_requests": host.max_running,
            "token_usage": round(engine.used / host.kv_tokens, 4),
            "gen_throughput": round(engine.tok_per_s * self.setting.scale, 2),
        }
        return web.json_response({"version": "0.5.23", "loads": [rank]})

    async def old_loads(self, _request: web.Request) -> web.Response:
        """GET /get_load, as versions before 0.5.18 had it."""
        self._move()
        engine = self.engine
        rank = {
            "dp_rank": 0,
            "num_reqs": len(engine.running) + engine.n_waiting,
            "num_waiting_reqs": engine.n_waiting,
            "num_tokens": engine.used,
        }
        return web.json_response([rank])

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics."""
        self._move()
        engine, host = self.engine, self.setting.host
        values = {
            "num_running_reqs": len(engine.running),
            "num_queue_reqs": engine.n_waiting,
            "num_used_tokens": engine.used,
            "max_total_num_tokens": host.kv_tokens,
            "token_usage": engine.used / host.kv_tokens,
            "gen_throughput": engine.tok_per_s * self.setting.scale,
            "num_retracted_reqs": 0,
        }
        lines = [f'sglang:{name}{{model_name="sim"}} {value}' for name, value in values.items()]
        return web.Response(text="\n".join(lines) + "\n")
