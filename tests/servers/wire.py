"""HTTP/1.1 by hand, so that a server can break it on purpose."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request on a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Request(method, path, headers, body)


def response(status: int, body: bytes, **headers: str) -> bytes:
    """Return the bytes of a whole response that keeps the connection open."""
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def native_reply(rid: str, n_prompt: int, ids: list[int], **changes: Any) -> dict[str, Any]:
    """Return the body of a good native reply; `changes` replace members of meta_info."""
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": "stop", "matched": ids[-1] if ids else None},
        "prompt_tokens": n_prompt,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "num_retractions": 0,
    }
    return {"text": "x", "output_ids": ids, "meta_info": meta | changes}
