"""Asynchronous client of the control socket, for the terminal UI and the workers.

Guarantee: a daemon that is absent, going away or too slow shows as `UnreachableError`; an error of
the daemon arrives as its own class. One client may be shared by tasks of one event loop.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from eagled.control.protocol import (
    API_HEADER,
    API_VERSION,
    BASE_URL,
    CALL_TIMEOUT_S,
    CLAIM_WAIT_S,
    CONNECT_TIMEOUT_S,
    IDEMPOTENCY_HEADER,
    check_socket_path,
    error_from_wire,
    unreachable,
)
from eagled.control.reading import ReadJob, ReadText
from eagled.control.wire import from_wire, to_wire
from eagled.types import ExtractJob, Fence, ShardMember, ShardRecord, TextJob, TextVerdict

_STREAM_LINE_BYTES = 1 << 20  # an event line is under 2 KiB; a status snapshot under 100 KiB
_CLAIM_TIMEOUT_S = CLAIM_WAIT_S + CALL_TIMEOUT_S
_MERGE_TIMEOUT_S = 6 * 3600.0  # merge of millions of samples; the daemon reports errors itself


class ControlClient:
    """Calls the daemon behind `socket`; use it as an async context manager."""

    def __init__(self, socket: Path, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.socket = check_socket_path(socket)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(self.socket), limit=0),
            headers={API_HEADER: str(API_VERSION)},
            read_bufsize=_STREAM_LINE_BYTES,
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calling it twice is fine."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON answer of a read-only call.

        Raises:
            UnreachableError: if no daemon answers in time.
            EagledError: whatever the daemon raised.
        """
        return await self._call("GET", path, params=query, timeout_s=self._timeout_s)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON answer of a call that changes something.

        `key` makes a repeated call count once; without one each call is its own.

        Raises:
            UnreachableError: if no daemon answers in time.
            EagledError: whatever the daemon raised.
        """
        headers = {IDEMPOTENCY_HEADER: key or uuid.uuid4().hex}
        return await self._call(
            "POST", path, data=orjson.dumps(body or {}), headers=headers,
            timeout_s=timeout_s or self._timeout_s,
        )  # fmt: skip

    async def status(self) -> dict[str, Any]:
        """Return the status document (docs/status.md)."""
        return dict(await self.get("/v1/status"))

    async def events(
        self, after: int = 0, *, follow: bool = False, acks: bool = False, last: int = 0
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events with a sequence number above `after`; with `follow` for ever.

        With `last` only the newest so many of them. With `acks` the live feed of
        acknowledgements comes in between, as `{"ack": ...}`.
        A reader that is too slow is dropped by the daemon: the stream then ends.

        Raises:
            UnreachableError: if no daemon answers.
        """
        query = {"after": after, "follow": int(follow), "acks": int(acks), "last": last}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._open().get(
                BASE_URL + "/v1/events", params=query, timeout=timeout
            ) as reply:
                if reply.status >= 400:  # noqa: PLR2004 - HTTP: errors start here
                    raise error_from_wire(_json(await reply.read()), reply.status)
                async for line in reply.content:
                    if line.strip():
                        yield orjson.loads(line)
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise unreachable(self.socket, exc.__cause__ or exc) from exc

    async def merge(self) -> dict[str, Any]:
        """Freeze a corpus; return its path, version and counts."""
        return dict(await self.post("/v1/merge", timeout_s=_MERGE_TIMEOUT_S))

    async def hello(self, worker: str, kind: str, pid: int) -> None:
        """Announce a worker that starts; what an earlier one of that name held is taken back."""
        await self.post("/v1/work/hello", {"worker": worker, "kind": kind, "pid": pid})

    async def alive(self, worker: str) -> None:
        """Tell that this worker's event loop turns."""
        await self.post("/v1/work/alive", {"worker": worker})

    async def claim_text(self, worker: str, maximum: int) -> list[TextJob]:
        """Wait up to `CLAIM_WAIT_S` for answers to check; empty when there are none."""
        body = {"worker": worker, "max": maximum}
        reply = await self.post("/v1/work/text/claim", body, timeout_s=_CLAIM_TIMEOUT_S)
        return [from_wire(TextJob, job) for job in reply["jobs"]]

    async def claim_reading(self) -> list[ReadJob]:
        """Wait up to `CLAIM_WAIT_S` for ids that somebody wants to read."""
        reply = await self.post("/v1/work/read/claim", {}, timeout_s=_CLAIM_TIMEOUT_S)
        return [from_wire(ReadJob, job) for job in reply["jobs"]]

    async def settle_reading(self, texts: list[ReadText]) -> int:
        """Report texts; return how many were still waited for."""
        reply = await self.post("/v1/work/read/settle", {"texts": to_wire(texts)})
        return int(reply["settled"])

    async def settle_text(self, verdicts: list[TextVerdict]) -> int:
        """Report verdicts; return how many still counted."""
        reply = await self.post("/v1/work/text/settle", {"verdicts": to_wire(verdicts)})
        return int(reply["settled"])

    async def claim_extract(
        self, worker: str, max_samples: int, max_tokens: int
    ) -> list[ExtractJob]:
        """Wait up to `CLAIM_WAIT_S` for samples to extract; empty when there are none."""
        body = {"worker": worker, "max_samples": max_samples, "max_tokens": max_tokens}
        reply = await self.post("/v1/work/extract/claim", body, timeout_s=_CLAIM_TIMEOUT_S)
        return [from_wire(ExtractJob, job) for job in reply["jobs"]]

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Report a complete shard file; return how many members counted and were stale."""
        rows = [[m.fence.sample_id, m.fence.attempt, m.fence.epoch, m.index] for m in members]
        reply = await self.post(
            "/v1/work/extract/commit", {"shard": to_wire(record), "members": rows}
        )
        return int(reply["accepted"]), int(reply["stale"])

    async def fail_extract(
        self, fence: Fence, reason: str, detail: str = "", *, final: bool
    ) -> bool:
        """Report a sample whose states were refused; return whether that still counted."""
        body = {"fence": to_wire(fence), "reason": reason, "detail": detail, "final": final}
        reply = await self.post("/v1/work/extract/fail", body)
        return bool(reply["counted"])

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("ControlClient is used outside its `async with`")
        return self._session

    async def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        params: Mapping[str, str | int] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._open().request(
                method, BASE_URL + path, params=params, data=data, headers=headers, timeout=timeout
            ) as reply:
                raw = await reply.read()
                status = reply.status
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise unreachable(self.socket, exc.__cause__ or exc) from exc
        body = _json(raw)
        if status >= 400:  # noqa: PLR2004 - HTTP: errors start here
            raise error_from_wire(body, status)
        return body


def _json(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
