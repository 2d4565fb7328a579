"""Load on a server: the same requests, with or without states, and what came of them."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

_PENDING_S = 60.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Shape:
    """One kind of load.

    Attributes:
        requests: how many.
        at_once: how many at a time.
        prompt: prompt tokens.
        answer: new tokens; 0 is a prefill-only pass.
    """

    requests: int
    at_once: int
    prompt: int
    answer: int

    @property
    def rows(self) -> int:
        """Rows of states of all requests."""
        return self.requests * (self.prompt + max(0, self.answer - 1))


async def run_load(
    url: str, shape: Shape, *, vocab: int, states: bool, tag: str, spool: Path | None
) -> dict[str, Any]:
    """Run a load and return its numbers; the time ends with the last complete file.

    With states, every receipt's row count is checked; `bad` counts those that are wrong.
    """
    rng = random.Random(0)
    gate = asyncio.Semaphore(shape.at_once)
    results: list[tuple[int, str]] = []
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(index: int) -> None:
            ids = [rng.randrange(10, vocab) for _ in range(shape.prompt)]
            sampling = {"max_new_tokens": shape.answer, "ignore_eos": True, "temperature": 1.0}
            body: dict[str, Any] = {
                "input_ids": ids,
                "sampling_params": sampling,
                "rid": f"{tag}-{index:05d}",
            }
            if states:
                body["return_hidden_states"] = True
            async with gate, session.post(url + "/generate", json=body) as reply:
                found = await reply.json()
                results.append(await _outcome(reply.status, found, shape, states=states))

        began = time.monotonic()
        await asyncio.gather(*[one(i) for i in range(shape.requests)])
        took = time.monotonic() - began
    bad = [r for r in results if r[1]]
    numbers = {
        "seconds": round(took, 3),
        "in_tok_per_s": round(shape.requests * shape.prompt / took, 1),
        "out_tok_per_s": round(shape.requests * shape.answer / took, 1),
        "bad": len(bad),
        "first_bad": bad[0][1][:500] if bad else "",
        "rows": sum(r[0] for r in results),
    }
    return asdict(shape) | {"states": states} | numbers | _on_disk(spool, tag, took)


async def _outcome(
    status: int, found: dict[str, Any], shape: Shape, *, states: bool
) -> tuple[int, str]:
    """Return the rows of a reply, and what is wrong with it."""
    if status != 200:
        return 0, str(found)
    if len(found.get("output_ids") or []) != shape.answer:
        return 0, f"{len(found.get('output_ids') or [])} tokens"
    if not states:
        return 0, ""
    receipt = found["meta_info"].get("hidden_states")
    if not isinstance(receipt, dict):
        return 0, f"no receipt: {str(receipt)[:200]}"
    if receipt["state"] == "pending":
        deadline = time.monotonic() + _PENDING_S
        path = Path(receipt["path"])
        while not path.exists() and time.monotonic() < deadline:  # noqa: ASYNC110, ASYNC240 - a stat
            await asyncio.sleep(_POLL_S)
        return (0, "pending for ever") if not path.exists() else (-1, "pending")  # noqa: ASYNC240 - a stat
    wanted = shape.prompt + max(0, shape.answer - 1)
    wrong = receipt["state"] != "complete" or receipt["rows"] != wanted
    return receipt["rows"], str(receipt) if wrong else ""


def _on_disk(spool: Path | None, tag: str, took: float) -> dict[str, Any]:
    if spool is None:
        return {}
    nbytes = sum(p.stat().st_size for p in spool.glob(f"{tag}-*.safetensors"))
    return {"gb": round(nbytes / 1e9, 3), "gb_per_s": round(nbytes / 1e9 / took, 3)}


def empty(spool: Path) -> None:
    """Remove all files of a spool."""
    for path in spool.iterdir():
        path.unlink(missing_ok=True)


def free_gb(folder: Path) -> float:
    """Return the free space of a folder's file system."""
    return round(shutil.disk_usage(folder).free / 1e9, 1)
