"""A server of SGLang's native protocol that does wrong what it is told to do wrong.

Runs as a process: `python -m tests.servers.misbehaving [port [settings]]` prints its port.
`POST /_set` merges a JSON object into the settings, `GET /_seen` returns what it saw. Settings:

- generate: list of steps; each /generate takes the next one, the last one stays. A step is an
  object with `do` and its arguments (`Steps`).
- poison: {"id": token, "step": step}: the step for every prompt that holds this token
- info, model: the bodies of /server_info and /model_info.
- health: {"status": int, "delay_s": float}
- loads: "moving", "flat" or "missing"
- metrics: text of /metrics, or "moving": a counter that grows with each look; empty is 404
- prefix_abort: whether an abort ends every request whose rid begins with the given one
- deaf_aborts: how many aborts are not heard
- bodies: {path: body} answered as they are, before anything else
- open: whether what is `held` may be answered
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.servers.wire import Request, native_reply, read_request, response

INFO = {"version": "0.5.23", "context_length": 10_240, "max_req_input_len": 10_234}
MODEL = {"model_path": "/models/toy", "served_model_name": "toy", "tokenizer_path": "/models/toy"}
IDS = [282, 256, 258, 271]
END = 271


def continuation(ids: list[int], until: int) -> list[int]:
    """Return what follows `ids`: each id depends on all before it; END is number `until`."""
    whole = list(ids)
    state = 7
    for each in whole:
        state = (state * 31 + each) % 1_000_003
    while len(whole) < until - 1:
        whole.append(state % 256)
        state = (state * 31 + whole[-1]) % 1_000_003
    return [*whole[len(ids) :], END]


class Cut(Exception):  # noqa: N818 - not an error: the step wants the connection to end
    """The connection ends here."""


class Server:
    """Settings, what was seen, and the steps."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {
            "generate": [{"do": "answer"}],
            "poison": {"id": None, "step": None},
            "info": INFO,
            "model": MODEL,
            "health": {"status": 200, "delay_s": 0.0},
            "loads": "missing",
            "metrics": "",
            "prefix_abort": True,
            "deaf_aborts": 0,
            "bodies": {},
            "open": True,
        }
        self.opened = asyncio.Event()
        self.count: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        self.sent: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.running: dict[str, asyncio.Event] = {}

    def seen(self) -> dict[str, Any]:
        """Return what was seen since the start."""
        return {
            "count": dict(self.count),
            "now": dict(self.now),
            "peak": dict(self.peak),
            "sent": self.sent,
            "aborted": self.aborted,
        }

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        self.count["connections"] += 1
        with contextlib.suppress(Cut, ConnectionError):
            while (request := await read_request(reader)) is not None:
                await self._counted(request, writer)
        writer.close()

    async def _counted(self, request: Request, writer: asyncio.StreamWriter) -> None:
        path = request.path
        self.count[path] += 1
        self.now[path] += 1
        self.peak[path] = max(self.peak[path], self.now[path])
        try:
            await self._route(request, writer)
            await writer.drain()
        finally:
            self.now[path] -= 1

    async def _route(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/generate":
            await self._generate(request, writer)
            return
        if request.path == "/health":
            await asyncio.sleep(self.settings["health"]["delay_s"])
        if request.path == "/metrics" and self.settings["metrics"]:
            writer.write(response(200, self._metrics().encode()))
            return
        status, body = self._control(request)
        writer.write(response(status, json.dumps(body).encode()))

    def _control(self, request: Request) -> tuple[int, Any]:
        """Return status and body of everything but /generate."""
        bodies = {
            "/server_info": self.settings["info"],
            "/model_info": self.settings["model"],
            "/ready": "",
            "/_seen": self.seen(),
        } | self.settings["bodies"]
        if self.settings["loads"] != "missing":
            bodies.setdefault("/v1/loads", self._loads())
        match request.path:
            case path if path in bodies:
                return 200, bodies[path]
            case "/health":
                return self.settings["health"]["status"], ""
            case "/_set":
                self.settings |= request.json()
                self.gate()
            case "/abort_request":
                self._abort(request.json()["rid"])
            case _:
                return 404, {"detail": "Not Found"}
        return 200, ""

    def gate(self) -> None:
        """Let through what is held, or hold it."""
        if self.settings["open"]:
            self.opened.set()
        else:
            self.opened.clear()

    def _abort(self, rid: str) -> None:
        self.aborted.append(rid)
        if self.settings["deaf_aborts"] > 0:
            self.settings["deaf_aborts"] -= 1
            return
        for each, event in self.running.items():
            if each == rid or (self.settings["prefix_abort"] and each.startswith(rid)):
                event.set()

    def _metrics(self) -> str:
        text: str = self.settings["metrics"]
        if text != "moving":
            return text
        made = self.count["/metrics"] * 40
        return f'# TYPE x counter\nsglang:realtime_tokens_total{{mode="decode"}} {made}\n'

    def _loads(self) -> dict[str, Any]:
        moved = self.count["/v1/loads"] if self.settings["loads"] == "moving" else 0
        rank = {"dp_rank": 0, "num_running_reqs": self.now["/generate"], "num_waiting_reqs": 0}
        return {"loads": [rank | {"num_used_tokens": 100 + moved, "max_total_num_tokens": 9999}]}

    async def _generate(self, request: Request, writer: asyncio.StreamWriter) -> None:
        asked = request.json()
        poison, steps = self.settings["poison"], self.settings["generate"]
        if poison["id"] in asked["input_ids"]:
            step = dict(poison["step"])
        else:
            step = dict(steps.pop(0) if len(steps) > 1 else steps[0])
        n_prompt = len(asked["input_ids"])
        summary = {"rid": asked["rid"], "n_prompt": n_prompt, "prompt": asked["input_ids"][:8]}
        summary["last"] = asked["input_ids"][-1]
        summary["key"] = request.headers.get("authorization")
        self.sent.append(summary | {"sampling": asked["sampling_params"]})
        await getattr(self, "_do_" + step.pop("do"))(asked, writer, **step)

    # -- steps

    async def _do_answer(
        self,
        asked: dict[str, Any],
        writer: asyncio.StreamWriter,
        *,
        ids: list[int] | None = None,
        delay_s: float = 0.0,
        close: bool = False,
        meta: dict[str, Any] | None = None,
        text_bytes: int = 0,
    ) -> None:
        """Answer well, or with `meta` replacing members; `close` ends the connection unsaid."""
        await asyncio.sleep(delay_s)
        n_prompt = len(asked["input_ids"])
        reply = native_reply(asked["rid"], n_prompt, IDS if ids is None else ids, **(meta or {}))
        reply["text"] += "x" * text_bytes
        writer.write(response(200, json.dumps(reply).encode()))
        if close:
            await writer.drain()
            raise Cut

    async def _do_held(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer well once the setting `open` is true."""
        await self.opened.wait()
        await self._do_answer(asked, writer)

    async def _do_model(
        self,
        asked: dict[str, Any],
        writer: asyncio.StreamWriter,
        *,
        until: int,
        delay_s: float = 0.0,
    ) -> None:
        """Answer as `continuation` of the ids says, cut at the asked length."""
        await asyncio.sleep(delay_s)
        ids, most = asked["input_ids"], asked["sampling_params"]["max_new_tokens"]
        whole = continuation(ids, until)
        cut = len(whole) > most
        finish = {"type": "length", "length": most} if cut else {"type": "stop", "matched": END}
        reply = native_reply(asked["rid"], len(ids), whole[:most], finish_reason=finish)
        writer.write(response(200, json.dumps(reply).encode()))

    async def _do_file(
        self, _asked: dict[str, Any], writer: asyncio.StreamWriter, *, path: str
    ) -> None:
        """Send the bytes of a file and close."""
        writer.write(Path(path).read_bytes())  # noqa: ASYNC240 - a few hundred bytes
        await writer.drain()
        raise Cut

    async def _do_status(
        self,
        _asked: dict[str, Any],
        writer: asyncio.StreamWriter,
        *,
        status: int,
        body: Any = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer with a status and a body."""
        writer.write(response(status, json.dumps(body).encode(), **(headers or {})))

    async def _do_reset(self, _asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Reset the connection."""
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Cut

    async def _do_vanish(self, _asked: dict[str, Any], _writer: asyncio.StreamWriter) -> None:
        """Close the connection without one byte of reply."""
        raise Cut

    async def _do_half(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Send half a body and close."""
        reply = native_reply(asked["rid"], len(asked["input_ids"]), IDS)
        whole = response(200, json.dumps(reply).encode())
        writer.write(whole[: len(whole) - 40])
        await writer.drain()
        raise Cut

    async def _do_slow(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer well, a few bytes at a time."""
        reply = native_reply(asked["rid"], len(asked["input_ids"]), IDS)
        whole = response(200, json.dumps(reply).encode())
        for at in range(0, len(whole), 16):
            writer.write(whole[at : at + 16])
            await writer.drain()
            await asyncio.sleep(0.005)

    async def _do_never(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer only when aborted, as SGLang does: 200 with what there is."""
        event = self.running[asked["rid"]] = asyncio.Event()
        await event.wait()
        abort = {"type": "abort", "message": "Abort in waiting queue", "status_code": None}
        reply = native_reply(asked["rid"], len(asked["input_ids"]), [5], finish_reason=abort)
        writer.write(response(200, json.dumps(reply).encode()))

    async def _do_ghost(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Cut the connection in the middle of the reply, and go on till aborted."""
        reply = native_reply(asked["rid"], len(asked["input_ids"]), IDS)
        writer.write(response(200, json.dumps(reply).encode())[:120])
        await writer.drain()
        writer.close()
        event = self.running[asked["rid"]] = asyncio.Event()
        await event.wait()
        self.count["ghosts ended"] += 1
        raise Cut

    async def _do_garbage(self, _asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Send what is not HTTP."""
        writer.write(b"\x00\xffSSH-2.0 hello\r\n\r\n")
        await writer.drain()
        raise Cut

    async def _do_die(self, _asked: dict[str, Any], _writer: asyncio.StreamWriter) -> None:
        """End the whole process."""
        os._exit(1)


async def main(port: int, settings: dict[str, Any]) -> None:
    """Serve until killed."""
    server = Server()
    server.settings |= settings
    server.gate()
    listener = await asyncio.start_server(
        server.connection, "127.0.0.1", port, limit=64 << 20, backlog=1024
    )
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await listener.serve_forever()


if __name__ == "__main__":
    port, settings = [*sys.argv[1:], "0", "{}"][:2] if len(sys.argv) != 2 else [sys.argv[1], "{}"]
    asyncio.run(main(int(port), json.loads(settings)))
