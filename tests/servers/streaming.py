"""A server that streams as SGLang does, with or without a draft, and does wrong what it is told.

As a process: `python -m tests.servers.streaming [PORT [SETTINGS]]`; as SGLang's launcher:
`python -m tests.servers.streaming launch --port N [flags]`, with STREAMING (JSON) in the
environment for the settings. Chunks repeat what came before, as SGLang's do. Settings beside those
of `misbehaving`:

- right: right guesses of each verify step, over and over; null is a server without a draft
- step_s: time of one forward pass
- looping: a token id; prompts that hold it get an answer that repeats itself
- width: of the hidden states it gives
- fault: "", "error" (inside the stream), "cut" (the stream breaks off), "abort", "busy" (503) or
  "once" (the first request breaks off, the others do not)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from tests.servers.launchable import settings as own_flags
from tests.servers.misbehaving import END, Cut, Server, continuation
from tests.servers.wire import Request, native_reply, response

SETTINGS: dict[str, Any] = {"right": None, "step_s": 0.0, "looping": None, "fault": "", "width": 8}


def answer_to(ids: list[int], looping: int | None, most: int) -> list[int]:
    """Return what a greedy target says: the same to the same prompt."""
    if looping in ids:
        return [5, 6, 7] * 60
    return continuation(ids, len(ids) + 24 + sum(ids) % 16)[:most]


def steps_of(n: int, right: list[int] | None) -> Iterator[tuple[int, int]]:
    """Yield tokens and right guesses of each forward pass after the prefill, which makes one."""
    made = 1
    for guesses in itertools.cycle(right or [0]):
        if made >= n:
            return
        tokens = min(guesses + 1, n - made)
        made += tokens
        yield tokens, tokens - 1


class Streaming(Server):
    """The server; `/generate` streams."""

    async def _generate(self, request: Request, writer: asyncio.StreamWriter) -> None:
        asked, fault = request.json(), self.settings["fault"]
        if asked.get("return_hidden_states"):
            self._states(asked, writer)
            return
        self.sent.append({"prompt": asked["input_ids"], "sampling": asked["sampling_params"],
                          "stream": asked["stream"]})  # fmt: skip
        if fault == "busy":
            writer.write(
                response(503, b'{"object":"error","message":"The request queue is full."}')
            )
            return
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        if fault == "once":
            self.settings["fault"] = ""
            fault = "cut"
        await self._stream(asked, writer, fault)
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        raise Cut

    def _states(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Give the states of a prompt, as JSON lists: a block of rows."""
        n, row = len(asked["input_ids"]), [0.5] * self.settings["width"]
        reply = native_reply("states", n, [END], hidden_states=[[row] * n])
        writer.write(response(200, json.dumps(reply).encode()))

    async def _stream(
        self, asked: dict[str, Any], writer: asyncio.StreamWriter, fault: str
    ) -> None:
        most = asked["sampling_params"]["max_new_tokens"]
        ids = answer_to(asked["input_ids"], self.settings["looping"], most)
        made, meta, histogram = 1, {}, [0, 0, 0, 0]
        for tokens, right in itertools.chain([(0, 0)], steps_of(len(ids), self.settings["right"])):
            await asyncio.sleep(self.settings["step_s"])
            made += tokens
            if tokens and self.settings["right"] is not None:
                histogram[right] += 1
                meta = _spec_meta(made, histogram)
            reply = native_reply(asked["rid"], len(asked["input_ids"]), ids[:made], **meta)
            reply["meta_info"]["finish_reason"] = _finish(ids, made, most, fault)
            if fault == "error" and made > 4:
                reply = {"error": {"message": "out of memory", "code": 500}}
            if fault == "cut" and made > 4:
                raise Cut
            writer.write(b"data: " + json.dumps(reply).encode() + b"\n\n")
            await writer.drain()


def _finish(ids: list[int], made: int, most: int, fault: str) -> dict[str, Any] | None:
    if made < len(ids):
        return None
    if fault == "abort":
        return {"type": "abort", "message": "Abort in waiting queue", "status_code": None}
    if ids[-1] == END:
        return {"type": "stop", "matched": END}
    return {"type": "length", "length": most}


def _spec_meta(made: int, histogram: list[int]) -> dict[str, Any]:
    verifies, right = sum(histogram), sum(i * n for i, n in enumerate(histogram))
    return {
        "spec_verify_ct": verifies, "spec_num_correct_drafts": right,
        "spec_accept_length": made / verifies,  # the first token is in it, as in SGLang
        "spec_correct_drafts_histogram": list(histogram),
    }  # fmt: skip


async def main(port: int, settings: dict[str, Any]) -> None:
    """Serve until killed."""
    server = Streaming()
    server.settings |= {**SETTINGS, "bodies": {"/flush_cache?timeout=20": ""}} | settings
    listener = await asyncio.start_server(server.connection, "127.0.0.1", port, limit=64 << 20)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await listener.serve_forever()


def launched() -> tuple[int, dict[str, Any]]:
    """Return port and settings of a start with SGLang's flags."""
    told = json.loads(os.environ.get("STREAMING", "{}"))
    found = own_flags()
    if found["info"]["speculative_algorithm"] is None:
        told.pop("right", None)
    found["info"] |= told.pop("info", {})
    return int(sys.argv[sys.argv.index("--port") + 1]), found | told


if __name__ == "__main__":
    if sys.argv[1:2] == ["launch"]:
        sys.stdout.write(f"argv {json.dumps(sys.argv[2:])}\n")
        sys.stdout.flush()
        asyncio.run(main(*launched()))
    else:
        at, told = [*sys.argv[1:], "0", "{}"][:2] if len(sys.argv) != 2 else [sys.argv[1], "{}"]
        asyncio.run(main(int(at), json.loads(told)))
