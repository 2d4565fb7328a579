"""The handlers that workers use: claims that wait for work, and results."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from aiohttp import web

from eagled.control import bodies
from eagled.control.calls import body_of, json_reply, mutation
from eagled.control.context import CONTROL, Control
from eagled.control.peers import Peer, peer_of
from eagled.control.wire import from_wire, to_wire
from eagled.errors import UsageError
from eagled.types import Fence, ShardMember, ShardRecord, TextVerdict

_MEMBER_FIELDS = 4
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.safetensors")


def add_work_routes(app: web.Application) -> None:
    """Add the handlers to `app`."""
    app.router.add_post("/v1/work/text/claim", claim_text)
    app.router.add_post("/v1/work/extract/claim", claim_extract)
    app.router.add_post("/v1/work/hello", mutation(hello))
    app.router.add_post("/v1/work/alive", alive)
    app.router.add_post("/v1/work/text/settle", mutation(settle_text))
    app.router.add_post("/v1/work/extract/commit", mutation(commit_shard))
    app.router.add_post("/v1/work/extract/fail", mutation(fail_extract))


def _pid(request: web.Request) -> int:
    peer = peer_of(request)
    assert isinstance(peer, Peer)  # noqa: S101 - the doorkeeper has let it in
    return peer.pid


async def hello(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/work/hello: a worker starts; what its predecessor held goes back."""
    body = await body_of(request, bodies.HelloBody)
    if body.kind == "extract":
        await control.extract.hello(body.worker, _pid(request))
    return {}


async def alive(request: web.Request) -> web.StreamResponse:
    """POST /v1/work/alive: a worker's event loop turns."""
    body = await body_of(request, bodies.AliveBody)
    request.app[CONTROL].roll.heard(body.worker, _pid(request))
    return json_reply({})


async def claim_text(request: web.Request) -> web.StreamResponse:
    """POST /v1/work/text/claim: answers to check."""
    control, pid = request.app[CONTROL], _pid(request)
    body = await body_of(request, bodies.TextClaimBody)
    jobs = await _claimed(request, control.text.claim(pid, body.max))
    if jobs is None:
        control.text.release(pid)
        return json_reply({"jobs": []})
    return json_reply({"jobs": to_wire(jobs)})


async def claim_extract(request: web.Request) -> web.StreamResponse:
    """POST /v1/work/extract/claim: samples to extract."""
    control, pid = request.app[CONTROL], _pid(request)
    body = await body_of(request, bodies.ExtractClaimBody)
    work = control.extract.claim(body.worker, pid, body.max_samples, body.max_tokens)
    jobs = await _claimed(request, work)
    return json_reply({"jobs": to_wire(jobs or [])})


async def _claimed(request: web.Request, work: Any) -> Any:  # noqa: ANN401 - any claim
    """Run a claim to its end even if its caller goes away; the sweep takes back what it got."""
    control = request.app[CONTROL]
    task = asyncio.ensure_future(work)
    control.tasks.add(task)
    task.add_done_callback(control.tasks.discard)
    jobs = await asyncio.shield(task)
    gone = request.transport is None or request.transport.is_closing()
    return None if gone else jobs


async def settle_text(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/work/text/settle: verdicts."""
    body = await body_of(request, bodies.TextSettleBody)
    verdicts = [from_wire(TextVerdict, item) for item in body.verdicts]
    settled = await control.text.settle(verdicts)
    control.actions.work_added()
    return {"settled": settled}


async def commit_shard(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/work/extract/commit: a complete shard file."""
    body = await body_of(request, bodies.ExtractCommitBody)
    record = from_wire(ShardRecord, body.shard)
    if not _SHARD_NAME.fullmatch(record.name):
        raise UsageError(f"shard.name: {record.name!r} is not the name of a file among the shards")
    members = [_member(row) for row in body.members]
    result = await control.extract.commit(record, members)
    return {"accepted": result.accepted, "stale": result.stale}


def _member(row: list[int]) -> ShardMember:
    if len(row) != _MEMBER_FIELDS:
        raise UsageError(f"a member must be [sample, attempt, epoch, index], got {row!r}")
    return ShardMember(Fence(*row[:3]), row[3])


async def fail_extract(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/work/extract/fail: states that were refused."""
    body = await body_of(request, bodies.ExtractFailBody)
    fence = from_wire(Fence, body.fence)
    counted = await control.extract.fail(fence, body.reason, body.detail, final=body.final)
    return {"counted": counted}
