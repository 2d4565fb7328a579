"""How a handler is run: body checked, never cancelled half way, counted once by its key.

Guarantee: a caller that goes away does not stop a change half way; a call repeated with the same
Idempotency-Key gets the first one's answer and changes nothing again (while the daemon remembers:
the last `REMEMBERED` keys, and of their answers the newest `REMEMBERED_BYTES`: a claim's answer
holds the work itself). Errors of ours travel with their class; anything else is a bug, logged with
its traceback and answered with 500.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError

from eagled.control.bodies import Body
from eagled.control.context import CONTROL, Control
from eagled.control.peers import peer_of
from eagled.control.protocol import (
    API_HEADER,
    API_VERSION,
    IDEMPOTENCY_HEADER,
    check_version,
    error_to_wire,
)
from eagled.errors import (
    ContentError,
    EagledError,
    LockedError,
    RetryableError,
    StoreError,
    UnreachableError,
    UsageError,
)

logger = logging.getLogger(__name__)
B = TypeVar("B", bound=Body)
REMEMBERED = 1024
REMEMBERED_BYTES = 16 << 20  # some dozens of large claims; who repeats a call does so at once
_JSON = "application/json"
_WORK_PATH = "/v1/work/"  # too many to log
_STATUS_OF_ERROR: tuple[tuple[type[EagledError], int], ...] = (
    (UsageError, 400),
    (ContentError, 422),
    (LockedError, 409),
    (UnreachableError, 503),
    (RetryableError, 503),
    (StoreError, 500),
)


def json_reply(value: object, status: int = 200) -> web.Response:
    """Return a JSON response."""
    return web.Response(body=orjson.dumps(value), status=status, content_type=_JSON)


def error_reply(exc: EagledError) -> web.Response:
    """Return the response that carries an error."""
    status = next((code for kind, code in _STATUS_OF_ERROR if isinstance(exc, kind)), 409)
    return json_reply(error_to_wire(exc), status)


@web.middleware
async def speak(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check the version, and turn errors into answers."""
    try:
        check_version(request.headers.get(API_HEADER))
        response = await handler(request)
    except EagledError as exc:
        response = error_reply(exc)
    except web.HTTPException as exc:
        response = error_reply(UsageError(f"{request.method} {request.path}: {exc.reason}"))
        response.set_status(exc.status)
    except Exception:
        logger.exception("a control call failed path=%s", request.path)
        response = error_reply(EagledError("the daemon met a bug in this call; see its log"))
        response.set_status(500)
    if not response.prepared:
        response.headers[API_HEADER] = str(API_VERSION)
    return response


async def body_of(request: web.Request, kind: type[B]) -> B:
    """Return the checked body of a call.

    Raises:
        UsageError: naming every wrong, missing or unknown field.
    """
    raw = await request.read()
    try:
        return kind.model_validate_json(raw or b"{}")
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_input=False)
        told = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in found)
        raise UsageError(f"{request.path}: {told}") from None


def number_in(request: web.Request, name: str, default: int, ceiling: int) -> int:
    """Return a whole number of the query.

    Raises:
        UsageError: if it is none, or not within 0 and `ceiling`.
    """
    text = request.query.get(name, str(default))
    if not text.isdecimal() or int(text) > ceiling:
        raise UsageError(f"{name} = {text[:40]!r}: must be a whole number from 0 to {ceiling}")
    return int(text)


class Replies:
    """The answers of the last mutating calls, by their key."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, asyncio.Future[tuple[bytes, int]]] = OrderedDict()
        self._answered: deque[tuple[str, int]] = deque()  # keys and sizes, oldest first
        self._bytes = 0

    def get(self, key: str) -> asyncio.Future[tuple[bytes, int]] | None:
        """Return the (coming) answer of a key, or None."""
        return self._known.get(key)

    def open(self, key: str) -> asyncio.Future[tuple[bytes, int]]:
        """Remember a key whose answer is being made."""
        future: asyncio.Future[tuple[bytes, int]] = asyncio.get_running_loop().create_future()
        self._known[key] = future
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return future

    def answered(
        self, key: str, future: asyncio.Future[tuple[bytes, int]], body: bytes, status: int
    ) -> None:
        """Keep the answer of a key, and forget the oldest ones beyond the bound; never this one."""
        if future.done():
            return
        future.set_result((body, status))  # also of a key that is forgotten: somebody may wait
        if self._known.get(key) is not future:
            return
        self._answered.append((key, len(body)))
        self._bytes += len(body)
        while len(self._answered) > 1 and (
            self._bytes > REMEMBERED_BYTES or len(self._answered) > REMEMBERED
        ):
            oldest, size = self._answered.popleft()
            self._known.pop(oldest, None)
            self._bytes -= size


REPLIES: web.AppKey[Replies] = web.AppKey("replies", Replies)
Mutation = Callable[[web.Request, Control], Awaitable[Any]]


def mutation(work: Mutation) -> Handler:
    """Return a handler that runs `work` to its end, once a key."""

    async def handler(request: web.Request) -> web.StreamResponse:
        control, replies = request.app[CONTROL], request.app[REPLIES]
        await request.read()  # a caller that goes away now has changed nothing
        key = request.headers.get(IDEMPOTENCY_HEADER, "")
        name = f"{request.path} {key}"
        known = replies.get(name) if key else None
        if known is not None:
            body, status = await asyncio.shield(known)
            return web.Response(body=body, status=status, content_type=_JSON)
        if not request.path.startswith(_WORK_PATH):
            peer = peer_of(request)
            logger.info("control call path=%s by=%s key=%s", request.path, peer, key)
        future = replies.open(name) if key else None
        task = asyncio.create_task(_answer(work, request, control, name, future))
        control.tasks.add(task)
        task.add_done_callback(control.tasks.discard)
        return await asyncio.shield(task)

    return handler


async def _answer(
    work: Mutation,
    request: web.Request,
    control: Control,
    name: str,
    future: asyncio.Future[tuple[bytes, int]] | None,
) -> web.Response:
    try:
        response = json_reply(await work(request, control))
    except EagledError as exc:
        response = error_reply(exc)
    except Exception:
        logger.exception("a control call failed path=%s", request.path)
        response = error_reply(EagledError("the daemon met a bug in this call; see its log"))
        response.set_status(500)
    if future is not None:
        body = bytes(response.body or b"")  # type: ignore[arg-type] # json_reply sets bytes
        request.app[REPLIES].answered(name, future, body, response.status)
    return response
