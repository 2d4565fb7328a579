"""A canned SGLang for the crash harness: quick, its answers follow from the request id.

Each attempt of a sample has its own `rid`, and the answer is made from it. So an answer that is
stored under the wrong attempt, or twice, differs from what the witness saw acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sys
from typing import Any

import orjson
from aiohttp import web

MAX_ANSWER = 48
CONTEXT = 2048


class CannedServer:
    """Answers `/generate` after a few milliseconds with ids that follow from the rid."""

    def __init__(self, *, vocab: int, first_plain_id: int, eos: int, mean_ms: float) -> None:
        self._plain = range(first_plain_id, vocab)
        self._eos = eos
        self._mean_s = mean_ms / 1000
        self.served = 0
        self.running = 0

    def app(self) -> web.Application:
        """Return the routes that eagled's client uses."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", _ok)
        for path in ("/health", "/health_generate", "/ready"):
            app.router.add_get(path, _ok)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/model_info", self._model)
        app.router.add_get("/v1/loads", self._loads)
        return app

    def _answer(self, rid: str, limit: int) -> list[int]:
        rng = random.Random(hashlib.sha256(rid.encode()).digest())
        length = min(rng.randint(1, MAX_ANSWER), max(limit - 1, 1))
        return [*(rng.choice(self._plain) for _ in range(length)), self._eos]

    async def _generate(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.running += 1
        try:
            await asyncio.sleep(random.expovariate(1 / self._mean_s))
        finally:
            self.running -= 1
        ids = self._answer(body["rid"], body["sampling_params"]["max_new_tokens"])
        self.served += 1
        return _json(
            {
                "text": "",
                "output_ids": ids,
                "meta_info": {
                    "id": body["rid"],
                    "finish_reason": {"type": "stop", "matched": self._eos},
                    "prompt_tokens": len(body["input_ids"]),
                    "completion_tokens": len(ids),
                    "cached_tokens": 0,
                    "e2e_latency": self._mean_s,
                },
            }
        )

    async def _info(self, _request: web.Request) -> web.Response:
        return _json(
            {
                "version": "canned",
                "model_path": "canned",
                "context_length": CONTEXT,
                "max_total_num_tokens": 10_000_000,
                "max_req_input_len": CONTEXT - 6,
                "speculative_algorithm": None,
                "served": self.served,
            }
        )

    async def _model(self, _request: web.Request) -> web.Response:
        return _json({"model_path": "canned", "tokenizer_path": "canned"})

    async def _loads(self, _request: web.Request) -> web.Response:
        load = {"num_running_reqs": self.running, "num_waiting_reqs": 0, "num_used_tokens": 0}
        return _json({"loads": [load]})


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


async def _ok(_request: web.Request) -> web.Response:
    return _json({})


async def serve(server: CannedServer, port: int) -> None:
    """Serve (0 is a free port), print the port, run until killed."""
    runner = web.AppRunner(server.app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--vocab", type=int, required=True)
    parser.add_argument("--first-plain-id", type=int, required=True)
    parser.add_argument("--eos", type=int, required=True)
    parser.add_argument("--mean-ms", type=float, default=25)
    args = parser.parse_args()
    server = CannedServer(
        vocab=args.vocab, first_plain_id=args.first_plain_id, eos=args.eos, mean_ms=args.mean_ms
    )
    asyncio.run(serve(server, args.port))


if __name__ == "__main__":
    main()
