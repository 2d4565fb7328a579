"""The handler that adds, drains and removes servers while the daemon runs."""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web
from pydantic import Field

from eagled.control.bodies import MAX_WORD, Body
from eagled.control.calls import body_of, mutation
from eagled.control.context import Control
from eagled.control.peers import uid_of
from eagled.errors import UsageError


class ServerBody(Body):
    """POST /v1/servers: one change; what is beside `url` counts for `add` only."""

    action: Literal["add", "drain", "remove"]
    url: str = Field(min_length=1, max_length=MAX_WORD)
    max_in_flight: int = Field(default=0, ge=0)
    kind: Literal["replica", "router"] = "replica"
    api_key_file: str | None = None


def add_server_routes(app: web.Application) -> None:
    """Add the handler to `app`."""
    app.router.add_post("/v1/servers", mutation(change_server))


async def change_server(request: web.Request, control: Control) -> dict[str, Any]:
    """POST /v1/servers: add, drain or remove one."""
    body = await body_of(request, ServerBody)
    if control.servers is None:
        raise UsageError("the servers of this daemon cannot be changed")
    uid = uid_of(request)
    match body.action:
        case "add":
            message = await control.servers.add(body.model_dump(exclude={"action"}), uid)
        case "drain":
            message = await control.servers.drain(body.url, uid)
        case "remove":
            message = await control.servers.remove(body.url, uid)
    await control.actions.changed()
    return {"message": message}
