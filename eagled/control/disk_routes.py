"""The handlers about disk: what-if plans, and the consumers of the ring of shards."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic import Field

from eagled.control.bodies import MAX_BATCH, MAX_WORD, Body
from eagled.control.calls import body_of, json_reply, mutation
from eagled.control.context import CONTROL, Control, RingActions
from eagled.control.peers import uid_of
from eagled.errors import UsageError

MAX_LEASE_WAIT_S = 60.0
_WHAT_IF = ("codec", "codec_last", "last", "max_tokens", "keep_prompt")


class ConsumerBody(Body):
    """POST /v1/ring/register and /v1/ring/leave."""

    consumer: str = Field(min_length=1, max_length=MAX_WORD)


class LeaseBody(ConsumerBody):
    """POST /v1/ring/lease: up to `max` shards; waits for the first at most `wait_s` seconds."""

    max: int = Field(default=1, ge=0, le=MAX_BATCH)
    wait_s: float = Field(default=0.0, ge=0, le=MAX_LEASE_WAIT_S)


class ReleaseBody(ConsumerBody):
    """POST /v1/ring/release: names of shards."""

    shards: list[str] = Field(max_length=MAX_BATCH)


class ChooseBody(Body):
    """POST /v1/plan/disk: the name of an option, or `config`."""

    choose: str = Field(min_length=1, max_length=MAX_WORD)


def add_disk_routes(app: web.Application) -> None:
    """Add the handlers to `app`."""
    app.router.add_get("/v1/plan/disk", disk_plan)
    app.router.add_get("/v1/ring", ring)
    for path, work in (
        ("/v1/plan/disk", choose),
        ("/v1/ring/register", register),
        ("/v1/ring/lease", lease),
        ("/v1/ring/release", release),
        ("/v1/ring/leave", leave),
    ):
        app.router.add_post(path, mutation(work))


async def disk_plan(request: web.Request) -> web.StreamResponse:
    """GET /v1/plan/disk?codec=&codec_last=&last=&max_tokens=&keep_prompt=: what it would take."""
    unknown = sorted(set(request.query) - set(_WHAT_IF))
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not known; accepted: {', '.join(_WHAT_IF)}")
    return json_reply(await request.app[CONTROL].actions.disk_plan(dict(request.query)))


async def choose(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/plan/disk: store states otherwise from now on."""
    body = await body_of(request, ChooseBody)
    return {"message": await control.actions.choose_storage(body.choose, uid_of(request))}


async def ring(request: web.Request) -> web.StreamResponse:
    """GET /v1/ring: shards and consumers; `full` while extraction waits for room in it."""
    control = request.app[CONTROL]
    ring = _ring(control)
    return json_reply({**ring.view(), "full": bool(ring.wait_reason(control.extract))})


async def register(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/ring/register: a consumer begins; what it held before is handed out again."""
    body = await body_of(request, ConsumerBody)
    await _ring(control).register(body.consumer)
    return {"message": f"{body.consumer} is waited for"}


async def lease(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/ring/lease: shards to read, and the uids in each by split; renews the lease."""
    body = await body_of(request, LeaseBody)
    shards = await _ring(control).lease(body.consumer, body.max, body.wait_s)
    return {"shards": shards, "message": f"{len(shards)} shards"}


async def release(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/ring/release: shards that were read."""
    body = await body_of(request, ReleaseBody)
    n = await _ring(control).release(body.consumer, body.shards)
    return {"n": n, "message": f"{n} shards released"}


async def leave(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/ring/leave: a consumer ends."""
    body = await body_of(request, ConsumerBody)
    await _ring(control).leave(body.consumer)
    return {"message": f"{body.consumer} is no longer waited for"}


def _ring(control: Control) -> RingActions:
    if control.ring is None:
        raise UsageError("this daemon has no ring of shards")
    return control.ring
