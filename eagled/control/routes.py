"""The handlers that people use: status, lanes, datasets, samples, merge, events, metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from eagled.control import bodies
from eagled.control.calls import body_of, json_reply, mutation, number_in
from eagled.control.context import CONTROL, Control
from eagled.control.disk_routes import add_disk_routes
from eagled.control.events import stream_events
from eagled.control.look_routes import add_look_routes
from eagled.control.peers import uid_of
from eagled.control.server_routes import add_server_routes
from eagled.errors import UsageError
from eagled.store.ops.change import MOVED_FROM, REJECTED_FROM, RETRIED_FROM
from eagled.store.records import SampleFilter
from eagled.types import SampleState

_MAX_ROWS = 500
_MAX_ID = (1 << 63) - 1
_METRICS_TYPE = "text/plain; version=0.0.4"


def add_routes(app: web.Application) -> None:
    """Add the handlers to `app`."""
    app.router.add_get("/v1/status", status)
    app.router.add_get("/v1/events", stream_events)
    app.router.add_get("/v1/samples", samples)
    app.router.add_get("/v1/samples/{uid}", sample)
    app.router.add_get("/v1/failures", failures)
    app.router.add_get("/v1/shards", shards)
    app.router.add_get("/metrics", metrics)
    add_disk_routes(app)
    add_server_routes(app)
    add_look_routes(app)
    for path, work in (
        ("/v1/lanes/{name}", change_lane),
        ("/v1/datasets/{name}", change_dataset),
        ("/v1/pause", pause),
        ("/v1/resume", resume),
        ("/v1/drain", drain),
        ("/v1/enqueue", enqueue),
        ("/v1/merge", merge),
        ("/v1/extract", extract),
        ("/v1/undo", undo),
        ("/v1/retry", retry),
        ("/v1/reject", reject),
        ("/v1/move", move),
        ("/v1/shards/{name}/drop", drop_shard),
    ):
        app.router.add_post(path, mutation(work))


def _plain(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any record
    """Return a record as JSON can hold it; enums are their words, packed ids are left out."""
    out = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value) and hasattr(value, "crc"):
            continue
        out[field.name] = _plain_value(value)
    return out


def _plain_value(value: Any) -> Any:  # noqa: ANN401 - JSON
    if dataclasses.is_dataclass(value):
        return _plain(value)
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return value


async def status(request: web.Request) -> web.StreamResponse:
    """GET /v1/status: the status document (docs/status.md)."""
    return json_reply(await request.app[CONTROL].actions.status())


async def metrics(request: web.Request) -> web.StreamResponse:
    """GET /metrics: Prometheus text."""
    text = await request.app[CONTROL].actions.metrics()
    return web.Response(body=text, headers={"Content-Type": _METRICS_TYPE})


async def samples(request: web.Request) -> web.StreamResponse:
    """GET /v1/samples?state=&dataset=&lane=&reason=&after=&limit=: rows of ascending id."""
    wanted = _filter(request.query)
    limit = number_in(request, "limit", 50, _MAX_ROWS)
    after = number_in(request, "after", 0, _MAX_ID)
    rows = await request.app[CONTROL].store.samples(wanted, after=after, limit=limit)
    return json_reply({"samples": [_plain(row) for row in rows]})


def _filter(query: Mapping[str, str]) -> SampleFilter:
    word = query.get("state")
    if word is not None and word not in list(SampleState):
        known = ", ".join(state.value for state in SampleState)
        raise UsageError(f"state = {word[:40]!r}: accepted: {known}")
    state = SampleState(word) if word is not None else None
    return SampleFilter(
        dataset=query.get("dataset"), lane=query.get("lane"), state=state,
        reason=query.get("reason"),
    )  # fmt: skip


async def sample(request: web.Request) -> web.StreamResponse:
    """GET /v1/samples/{uid}: everything known of one sample."""
    found = await request.app[CONTROL].store.sample(request.match_info["uid"])
    if found is None:
        raise UsageError(f"there is no sample {request.match_info['uid'][:40]!r}")
    return json_reply(_plain(found))


async def failures(request: web.Request) -> web.StreamResponse:
    """GET /v1/failures: what was given up, by its cause, and what trying it again would cost."""
    control = request.app[CONTROL]
    rows = await control.store.causes(number_in(request, "limit", 50, _MAX_ROWS))
    lanes = (await control.actions.status()).get("lanes", {}).values()
    rate = sum(lane.get("out_tok_per_s") or 0 for lane in lanes)
    found = []
    for row in rows:
        known = row.tokens_out is not None and rate > 0
        retry_s = round(row.tokens_out / rate, 1) if known else None  # type: ignore[operator] # known says so
        found.append({**_plain(row), "retry_s": retry_s})
    return json_reply({"failures": found})


async def shards(request: web.Request) -> web.StreamResponse:
    """GET /v1/shards: every shard that the database knows."""
    rows = await request.app[CONTROL].store.shards()
    return json_reply({"shards": [_plain(row) for row in rows]})


async def change_lane(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/lanes/{name}: pause, resume, limit, share."""
    body = await body_of(request, bodies.LaneBody)
    row = await control.store.set_lane(
        request.match_info["name"],
        paused=body.paused,
        limit=body.limit,
        share=body.share,
        uid=uid_of(request),
    )
    await control.actions.changed()
    state = "paused" if row.paused else "running"
    share = f", share {row.share:g}" if row.share is not None else ""
    return {**_plain(row), "message": f"lane {row.name}: {state}, limit {row.limit}{share}"}


async def change_dataset(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/datasets/{name}: pause, resume, priority, limit, share."""
    body = await body_of(request, bodies.DatasetBody)
    row = await control.store.set_dataset(
        request.match_info["name"],
        paused=body.paused,
        priority=body.priority,
        limit=body.limit,
        share=body.share,
        uid=uid_of(request),
    )
    await control.actions.changed()
    state = "paused" if row.paused else "running"
    return {**_plain(row), "message": f"dataset {row.name}: {state}, priority {row.priority}"}


async def pause(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/pause: everything."""
    await body_of(request, bodies.Empty)
    return {"message": await control.actions.pause_all(uid_of(request))}


async def resume(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/resume: everything that pause or drain stopped."""
    await body_of(request, bodies.Empty)
    return {"message": await control.actions.resume_all(uid_of(request))}


async def drain(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/drain: finish what runs, start nothing."""
    await body_of(request, bodies.Empty)
    return {"message": await control.actions.drain(uid_of(request))}


async def enqueue(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/enqueue: a prepared folder, or all configured ones."""
    body = await body_of(request, bodies.EnqueueBody)
    folder = Path(body.folder) if body.folder is not None else None
    return {"message": await control.actions.enqueue(folder, uid_of(request))}


async def merge(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/merge: freeze a corpus version."""
    await body_of(request, bodies.Empty)
    return await control.actions.merge(uid_of(request))


async def extract(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/extract: start or pause extraction."""
    body = await body_of(request, bodies.PauseBody)
    uid = uid_of(request)
    return {"message": await control.actions.pause_extraction(paused=body.paused, uid=uid)}


async def undo(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/undo: take back the last change of a lane, dataset, setting or of samples."""
    await body_of(request, bodies.Empty)
    done = await control.store.undo(uid_of(request))
    await control.actions.changed()
    return {"undone": done, "message": done or "there is nothing to take back"}


async def retry(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/retry: queue given-up samples again."""
    body = await body_of(request, bodies.RetryBody)
    which = await _which(control, body, body.reason)
    if body.dry_run:
        return await _would(control, which, RETRIED_FROM, "queued again")
    await _expected(control, body, which, RETRIED_FROM)
    n = await control.store.retry(which, uid_of(request))
    await control.actions.changed()
    return {"n": n, "message": f"{n} samples are queued again"}


async def reject(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/reject: take samples out of the run."""
    body = await body_of(request, bodies.RejectBody)
    which = await _which(control, body, None)
    if body.dry_run:
        return await _would(control, which, REJECTED_FROM, "rejected")
    await _expected(control, body, which, REJECTED_FROM)
    n = await control.store.reject(which, body.reason, uid_of(request))
    await control.actions.changed()
    return {"n": n, "message": f"{n} samples are rejected"}


async def move(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/move: put samples that wait into another lane."""
    body = await body_of(request, bodies.MoveBody)
    which = await _which(control, body, body.reason)
    if body.dry_run:
        return await _would(control, which, MOVED_FROM, f"moved to lane {body.to}")
    await _expected(control, body, which, MOVED_FROM)
    n = await control.store.move(which, body.to, uid_of(request))
    await control.actions.changed()
    return {"n": n, "message": f"{n} samples are moved to lane {body.to}"}


async def _which(
    control: Control, body: bodies.ChangeBody, reason: str | None
) -> list[int] | SampleFilter:
    """Return the samples that a body means: those it names, of its cause, or all that match it."""
    if body.samples:
        return await _ids(control, body.samples)
    if body.cause is not None:
        found = await control.store.of_cause(body.cause)
        if not found:
            raise UsageError(f"no given-up sample has the cause {body.cause!r}: `eagled failures`")
        return found
    return SampleFilter(dataset=body.dataset, lane=body.lane, reason=reason)


async def _would(
    control: Control,
    which: list[int] | SampleFilter,
    states: Collection[SampleState],
    words: str,
) -> dict[str, Any]:
    n = await control.store.count_change(which, states)
    return {"n": n, "dry_run": True, "message": f"{n} samples would be {words}"}


async def _expected(
    control: Control,
    body: bodies.ChangeBody,
    which: list[int] | SampleFilter,
    states: Collection[SampleState],
) -> None:
    """Refuse a change of another number of samples than the caller has seen."""
    if body.expect is None:
        return
    n = await control.store.count_change(which, states)
    if n != body.expect:
        raise UsageError(f"the group changed: {body.expect} → {n} samples; nothing was done")


async def drop_shard(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/shards/{name}/drop: a damaged shard; its samples are extracted again."""
    body = await body_of(request, bodies.DropBody)
    n = await control.store.drop_shard(request.match_info["name"], body.reason)
    control.doorbell.ring()
    return {"n": n, "message": f"{n} samples wait for extraction again"}


async def _ids(control: Control, uids: list[str]) -> list[int]:
    """Return the numbers of samples.

    Raises:
        UsageError: naming the first one that does not exist.
    """
    ids = []
    for uid in uids:
        found = await control.store.sample(uid)
        if found is None:
            raise UsageError(f"there is no sample {uid[:40]!r}")
        ids.append(found.row.id)
    return ids
