"""Receipts in replies: the HTTP process waits for the file and says where it is.

Guarantee: a reply with a `complete` receipt is sent after the file has its final name; if that
takes longer than `reply_wait_s` the receipt says `pending` and the caller looks for the file or
its note. A file of an earlier request of the same rid is removed before the request starts.
Price: a stat every few milliseconds while a reply waits; the event loop is never held up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from eagled.sglang_plugin.settings import CaptureSettings
from eagled.sglang_plugin.spoolfile import (
    Receipt,
    failed_path,
    final_path,
    is_safe_rid,
    read_receipt,
)

_FIRST_POLL_S = 0.002
_LAST_POLL_S = 0.05
_KEY = "hidden_states"


async def replies(
    source: Callable[[], AsyncIterator[Any]], rid: str | list[str] | None, settings: CaptureSettings
) -> AsyncIterator[Any]:
    """Yield SGLang's replies with receipts.

    Raises:
        ValueError: if a rid cannot be a file name; SGLang answers 400.
    """
    for name in [rid] if isinstance(rid, str) else rid or []:
        if not is_safe_rid(name):
            raise ValueError(f"rid {name!r}: with hidden states it must be a plain file name")
        final_path(settings.spool, name).unlink(missing_ok=True)
        failed_path(settings.spool, name).unlink(missing_ok=True)
    stream = source()
    try:
        async for out in stream:
            for one in out if isinstance(out, list) else [out]:
                await _attach(one, settings)
            yield out
    finally:
        await stream.aclose()  # type: ignore[attr-defined] # an async generator, typed as iterator


async def _attach(out: dict[str, Any], settings: CaptureSettings) -> None:
    meta = out.get("meta_info", {})
    if meta.pop(_KEY, None) is None or not meta.get("finish_reason"):
        return
    if meta["finish_reason"].get("type") == "abort":
        receipt = Receipt("aborted", "")
    else:
        receipt = await wait_receipt(settings.spool, meta["id"], settings.reply_wait_s)
    meta[_KEY] = receipt.to_json()


async def wait_receipt(spool: Path, rid: str, wait_s: float) -> Receipt:
    """Return the receipt of `rid` once its file or its note is there, or a pending one."""
    deadline = time.monotonic() + wait_s
    pause_s = _FIRST_POLL_S
    while (receipt := look(spool, rid)).state == "pending" and time.monotonic() < deadline:
        await asyncio.sleep(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 2)
    return receipt


def look(spool: Path, rid: str) -> Receipt:
    """Return what is there of `rid` now."""
    path, note = final_path(spool, rid), failed_path(spool, rid)
    try:
        return read_receipt(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError) as exc:
        return Receipt("failed", str(path), error=f"{type(exc).__name__}: {exc}")
    try:
        error = json.loads(note.read_text(encoding="utf-8"))["error"]
    except FileNotFoundError:
        return Receipt("pending", str(path))
    except (OSError, ValueError, KeyError) as exc:
        error = f"{type(exc).__name__}: {exc}"
    return Receipt("failed", str(path), error=str(error))
