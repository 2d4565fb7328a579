"""The handlers that a screen needs beyond the status: a sample's text, training, alarms."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web
from pydantic import Field

from eagled.control.bodies import MAX_BATCH, MAX_WORD, Body, Empty
from eagled.control.calls import body_of, json_reply, mutation, number_in
from eagled.control.context import CONTROL, Control
from eagled.control.peers import uid_of
from eagled.control.reading import Piece, ReadText
from eagled.control.wire import from_wire, to_wire
from eagled.errors import UsageError
from eagled.tokens import PackedIds, unpack_ids

MAX_IDS = 400_000  # of each side of a sample that travel to a screen


class AlarmBody(Body):
    """POST /v1/alarms/ack: the alarm's kind."""

    kind: str = Field(min_length=1, max_length=MAX_WORD)


class ReadSettleBody(Body):
    """POST /v1/work/read/settle: texts in wire form."""

    texts: list[dict[str, Any]] = Field(max_length=MAX_BATCH)


def add_look_routes(app: web.Application) -> None:
    """Add the handlers to `app`."""
    app.router.add_get("/v1/samples/{uid}/text", text)
    app.router.add_get("/v1/training", training)
    app.router.add_get("/v1/report", report)
    app.router.add_post("/v1/alarms/ack", mutation(acknowledge))
    app.router.add_post("/v1/work/read/claim", claim)
    app.router.add_post("/v1/work/read/settle", mutation(settle))


async def text(request: web.Request) -> web.StreamResponse:
    """GET /v1/samples/{uid}/text: ids of prompt and answer, and their text from a text worker.

    `note` says why there is no text. The answer's ids are those that train, its stop token too.
    """
    control = request.app[CONTROL]
    found = await control.store.sample(request.match_info["uid"])
    if found is None:
        raise UsageError(f"there is no sample {request.match_info['uid'][:40]!r}")
    read = await control.reading.read(found.prompt, found.output)
    body = {
        "uid": found.row.uid,
        "prompt_ids": await asyncio.to_thread(_ids, found.prompt),
        "output_ids": await asyncio.to_thread(_ids, found.output),
        "prompt": None if isinstance(read, str) else _pieces(read.prompt),
        "output": None if isinstance(read, str) else _pieces(read.output),
        "note": read if isinstance(read, str) else "",
    }
    raw = await asyncio.to_thread(orjson.dumps, body)
    return web.Response(body=raw, content_type="application/json")


def _ids(packed: PackedIds | None) -> list[int]:
    return [] if packed is None else unpack_ids(packed.z, packed.crc)[:MAX_IDS].tolist()


def _pieces(pieces: tuple[Piece, ...]) -> list[list[Any]]:
    return [[piece.text, piece.n, piece.special] for piece in pieces]


async def training(request: web.Request) -> web.StreamResponse:
    """GET /v1/training?brief=: the newest training run; with brief=1 without its steps."""
    brief = bool(number_in(request, "brief", 0, 1))
    return json_reply(await request.app[CONTROL].actions.training(brief=brief))


async def report(request: web.Request) -> web.StreamResponse:
    """GET /v1/report: what `eagled report` draws, gathered in a thread."""
    found = await request.app[CONTROL].actions.report()
    raw = await asyncio.to_thread(orjson.dumps, found)
    return web.Response(body=raw, content_type="application/json")


async def acknowledge(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/alarms/ack: an alarm was seen; it stays until its cause is gone."""
    body = await body_of(request, AlarmBody)
    return {"message": await control.actions.acknowledge(body.kind, uid_of(request))}


async def claim(request: web.Request) -> web.StreamResponse:
    """POST /v1/work/read/claim: a text worker asks what people want to read."""
    await body_of(request, Empty)
    jobs = await request.app[CONTROL].reading.claim()
    return json_reply({"jobs": to_wire(jobs)})


async def settle(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/work/read/settle: texts."""
    body = await body_of(request, ReadSettleBody)
    return {"settled": control.reading.settle([from_wire(ReadText, t) for t in body.texts])}
