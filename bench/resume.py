"""Rows lost and doubled after a kill -9 in the middle: ours, and a peer's script beside it.

    python -m bench.resume ours
    python -m bench.resume peer --first "CMD" --again "CMD"

Both answer the same rows from the same canned server, whose replies take a lognormal time, so that
they end out of order. The process is killed with SIGKILL each time a third (then two thirds) of the
rows are answered, started again, and run to its end. Then every row is looked for by its own name
in what it left: `lost` has none, `doubled` more than one; `redone` counts answers beyond one a row.

A peer's script is yours to clone into a folder of its own; nothing of it is part of this project.
CMD is its command line with {input} (JSONL of ShareGPT rows with `id`), {output}, {host}, {port}
and {at_once} in it; CMD of --again is the one that resumes. For SpecForge that is
`python scripts/regenerate_train_data.py --model m --max-tokens 64 --concurrency {at_once}
--input-file-path {input} --output-file-path {output} --server-address {host}:{port}`, with
`--resume` added in --again. A script that ends before it was killed, or with an error, ends the
bench with the last lines that it printed. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from eagled.store import Store
from eagled.store.records import SampleFilter
from eagled.tokens import unpack_ids
from eagled.types import SampleState
from tests.daemon_kit import DaemonProcess, fill, look, write_config

HOST = "127.0.0.1"
END = 271
BASE = 250  # a row's number is two ids of this base
MEDIAN_S, SPREAD = 0.15, 0.8  # of a reply's time
NAME = re.compile(r"row-(\d{6})")
KILLS = (1 / 3, 2 / 3)
DEADLINE_S = 600.0
LAST_LINES = 30  # of a script that ended by itself


# -- the server


def delay_s(row: int) -> float:
    """Return how long the reply to a row takes; the same each time."""
    return random.Random(row).lognormvariate(0, SPREAD) * MEDIAN_S


class Canned:
    """Answers both protocols; counts the answers of each row."""

    def __init__(self) -> None:
        self.answered: Counter[int] = Counter()

    async def generate(self, request: web.Request) -> web.Response:
        """SGLang's native request: ids in, ids out."""
        asked = await request.json()
        ids = asked["input_ids"]
        row = ids[1] * BASE + ids[2]
        await asyncio.sleep(delay_s(row))
        self.answered[row] += 1
        meta = {
            "id": asked["rid"],
            "finish_reason": {"type": "stop", "matched": END},
            "prompt_tokens": len(ids),
            "completion_tokens": 3,
        }
        output = [ids[1], ids[2], END]
        return web.json_response({"text": "x", "output_ids": output, "meta_info": meta})

    async def chat(self, request: web.Request) -> web.Response:
        """The chat request of OpenAI's protocol: text in, text out."""
        asked = await request.json()
        found = NAME.search(str(asked["messages"]))
        if found is not None:
            await asyncio.sleep(delay_s(int(found[1])))
            self.answered[int(found[1])] += 1
        text = f"answer of {found[0]}" if found is not None else "ready"
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [5, END]}
        usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
        body = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return web.json_response(
            {**body, "choices": [choice], "usage": usage, "prompt_token_ids": [1, 2, 3, 4]}
        )

    async def seen(self, _request: web.Request) -> web.Response:
        """Return how many rows were answered, and how many answers there were."""
        total = sum(self.answered.values())
        return web.json_response({"rows": len(self.answered), "answers": total})


def serve(port: int) -> None:
    """Serve until killed."""
    canned = Canned()
    app = web.Application()
    app.router.add_post("/generate", canned.generate)
    app.router.add_post("/v1/chat/completions", canned.chat)
    app.router.add_get("/_seen", canned.seen)
    fixed: dict[str, dict[str, Any]] = {
        "/server_info": {"version": "canned", "context_length": 4096},
        "/model_info": {"model_path": "canned"},
        "/v1/models": {"data": [{"id": "m", "max_model_len": 4096}]},
        "/health": {},
        "/ready": {},
    }
    for path, body in fixed.items():
        app.router.add_get(path, _fixed(body))
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # clients are killed here
    web.run_app(app, host=HOST, port=port, print=None)


def _fixed(body: dict[str, Any]) -> Callable[[web.Request], Any]:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


@contextmanager
def server() -> Iterator[int]:
    """Run the server as a process; yield its port."""
    from tests.integration.test_launch import free_port

    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.resume", "serve", str(port)])
    try:
        _until(lambda: _seen(port) is not None, "the server")
        yield port
    finally:
        process.kill()
        process.wait()


def _seen(port: int) -> dict[str, int] | None:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/_seen", timeout=5) as reply:
            seen: dict[str, int] = json.loads(reply.read())
    except OSError:
        return None
    return seen


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about in {DEADLINE_S:g} s")
        time.sleep(0.05)


def _answered(port: int) -> int:
    seen = _seen(port)
    return seen["rows"] if seen is not None else 0


# -- ours


def ours(n: int, at_once: int) -> dict[str, Any]:
    """Kill our daemon in the middle, twice, and account for every row."""
    with tempfile.TemporaryDirectory(prefix="resume-") as folder, server() as port:
        lane = {"limit": at_once, "concurrency": at_once}
        config = write_config(Path(folder), f"http://{HOST}:{port}", lanes__short=lane)
        fill(config, [[1, *divmod(row, BASE)] for row in range(n)])
        began = time.monotonic()
        for share in KILLS:
            daemon = DaemonProcess(config)
            _until(lambda at=share: _answered(port) >= n * at, "a part of the rows")  # type: ignore[misc] # bound at once
            daemon.kill()
            daemon.close()
        daemon = DaemonProcess(config)
        daemon.until(lambda status: status["datasets"]["d"]["done"] == n)
        daemon.stop()
        daemon.close()
        took_s = time.monotonic() - began
        found = look(config, _rows)
        return _report("eagled", n, found, _seen(port), took_s)


async def _rows(store: Store) -> list[int]:
    """Return the number of the row that each stored answer is the answer of."""
    rows, after = [], 0
    while part := await store.samples(SampleFilter(), after=after, limit=500):
        after = part[-1].id
        for row in part:
            detail = await store.sample(row.uid)
            if row.state is SampleState.GENERATED and detail is not None and detail.output:
                ids = unpack_ids(detail.output.z, detail.output.crc)
                rows.append(int(ids[0]) * BASE + int(ids[1]))
    return rows


# -- a peer's


def peer(n: int, at_once: int, first: str, again: str) -> dict[str, Any]:
    """Kill a peer's script in the middle, twice, resume it, and account for every row."""
    with tempfile.TemporaryDirectory(prefix="resume-") as folder, server() as port:
        given, made = Path(folder) / "rows.jsonl", Path(folder) / "out.jsonl"
        given.write_text("".join(f"{json.dumps(_row(row))}\n" for row in range(n)))
        slots = {"input": given, "output": made, "host": HOST, "port": port, "at_once": at_once}
        began, command = time.monotonic(), first
        for share in KILLS:
            with _script(command, slots, Path(folder)) as script:
                script.until(lambda at=share: _answered(port) >= n * at)  # type: ignore[misc] # bound at once
            command = again
        with _script(again, slots, Path(folder)) as script:
            script.finish()
        took_s = time.monotonic() - began
        found = [int(name) for name in _names(made)]
        return _report("peer", n, found, _seen(port), took_s)


def _row(row: int) -> dict[str, Any]:
    turns = [{"role": "user", "content": f"row-{row:06}"}, {"role": "assistant", "content": "x"}]
    return {"id": f"row-{row:06}", "conversations": turns}


class _Script:
    """A peer's script as a process; what it prints goes to `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for a condition.

        Raises:
            SystemExit: if the script ends before.
        """
        _until(lambda: done() or self._process.poll() is not None, "a part of the rows")
        if not done():
            raise self._ended("before it was to be killed")

    def finish(self) -> None:
        """Wait for its end.

        Raises:
            SystemExit: if it fails.
        """
        if self._process.wait(DEADLINE_S):
            raise self._ended("when it resumed")

    def _ended(self, when: str) -> SystemExit:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = "\n".join(lines[-LAST_LINES:])
        return SystemExit(f"the script ended with {self._process.returncode} {when}:\n{said}")


@contextmanager
def _script(command: str, slots: dict[str, Any], folder: Path) -> Iterator[_Script]:
    """Start a script with all that it starts in a group of its own; SIGKILL the group after."""
    argv, log = shlex.split(command.format(**slots)), folder / "script.log"
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, start_new_session=True)
    try:
        yield _Script(process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _names(path: Path) -> Iterator[str]:
    """Yield the name in each whole line of a result; a torn line holds no row."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            json.loads(line)
        except ValueError:
            continue
        found = NAME.search(line)
        if found is not None:
            yield found[1]


def _report(
    who: str, n: int, found: list[int], seen: dict[str, int] | None, took_s: float
) -> dict[str, Any]:
    times = Counter(found)
    return {
        "bench": "resume",
        "who": who,
        "rows": n,
        "kills": len(KILLS),
        "lost": sum(row not in times for row in range(n)),
        "doubled": sum(count - 1 for count in times.values()),
        "redone": seen["answers"] - n if seen is not None else None,
        "took_s": round(took_s, 1),
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=["ours", "peer", "serve"])
    parser.add_argument("port", nargs="?", type=int, default=0)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=48)
    parser.add_argument("--first", default="")
    parser.add_argument("--again", default="")
    given = parser.parse_args()
    if given.what == "serve":
        serve(given.port)
    elif given.what == "ours":
        sys.stdout.write(json.dumps(ours(given.rows, given.at_once)) + "\n")
    else:
        done = peer(given.rows, given.at_once, given.first, given.again)
        sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
