"""Runs of the capture plugin on a GPU machine, one step a command, each within ten minutes.

    python3 -m bench.capture.gpu_run rows  --site /tmp/site --out $OUT    # correctness first
    python3 -m bench.capture.gpu_run shm   --site /tmp/site --out $OUT    # Qwen3-8B, to /dev/shm
    python3 -m bench.capture.gpu_run disk  --site /tmp/site --out $OUT    # the same, disk, fsync
    python3 -m bench.capture.gpu_run stock --site /tmp/site --out $OUT    # no plugin; JSON route
    python3 -m bench.capture.gpu_run kimi  --site /tmp/site --out $OUT    # 7,168 wide, MLA
    python3 -m bench.capture.gpu_run onepass --site /tmp/site --out $OUT  # to shards: one pass, two
    python3 -m bench.capture.gpu_run tp2   --site /tmp/site --out $OUT    # two GPUs: rows again
    … --dry --python PYTHON    # the same steps, tiny, on SGLang for the CPU

Plain and capturing runs alternate on one server: capture is asked for per request. Every result is
one JSON line, on stdout and in OUT/capture.jsonl, written as soon as it is there; a step that
fails writes the end of the server's log and the next one goes on. No run starts after `--until`
seconds. The reference of each ratio is the plain run of the same pair. Steps side by side, a GPU
each,
need a `--work` each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from bench.capture import models, rows
from bench.capture.load import Shape, empty, free_gb, run_load
from bench.capture.machine import Machine, Server, capture_variables, serving, tail

_PAIRS = 3
_STATES_FLAG = "--enable-return-hidden-states"


@dataclass
class Run:
    """One command's state: where results go and when to stop."""

    machine: Machine
    out: Path
    until: float
    began: float

    def left_s(self) -> float:
        """Return the seconds until no more runs are started."""
        return self.until - (time.monotonic() - self.began)

    def say(self, step: str, **found: object) -> None:
        """Write a result at once."""
        at_s = round(time.monotonic() - self.began, 1)
        line = json.dumps({"step": step, "at_s": at_s, **found})
        print(line, flush=True)
        with (self.out / "capture.jsonl").open("a") as file:
            file.write(line + "\n")

    def shape(self, shape: Shape) -> Shape:
        """Return `shape`, or on a dry run a tiny one of its kind."""
        if not self.machine.dry:
            return shape
        return replace(
            shape,
            requests=6,
            at_once=4,
            prompt=min(shape.prompt, 300),
            answer=min(shape.answer, 6),
        )


def pairs(
    run: Run, server: Server, spool: Path, name: str, shape: Shape, *, vocab: int, count: int
) -> None:
    """Run plain and capturing in turns on one server, and say their ratio."""
    shape = run.shape(shape)
    key = "out_tok_per_s" if shape.answer > 1 else "in_tok_per_s"
    speeds: dict[bool, list[float]] = {False: [], True: []}
    took = 0.0
    for index in range(count):
        if run.left_s() < 2.2 * took + 5:
            run.say(name, skipped=f"pair {index}: {run.left_s():.0f} s left")
            break
        began = time.monotonic()
        for states in (False, True) if index % 2 == 0 else (True, False):
            found = asyncio.run(
                run_load(
                    server.url,
                    shape,
                    vocab=vocab,
                    states=states,
                    tag=f"{name}{index}",
                    spool=spool if states else None,
                )
            )
            speeds[states].append(found[key])
            run.say(name, pair=index, **found, memory=server.memory() if states else None)
            empty(spool)
        took = (time.monotonic() - began) / 2
    if speeds[True]:
        plain, with_states = (statistics.median(speeds[s]) for s in (False, True))
        each = [round(c / p, 4) for p, c in zip(speeds[False], speeds[True], strict=True)]
        run.say(
            f"{name}_ratio",
            ratio=round(with_states / plain, 4),
            each=each,
            plain=plain,
            capturing=with_states,
            unit=key,
        )


def raw_disk(run: Run, folder: Path, *, sync: bool) -> None:
    """Say how fast four threads write 67 MB files there, synced if asked."""
    piece = os.urandom(1 << 20)
    size, files = (4 << 20, 8) if run.machine.dry else (64 << 20, 128)

    def one(index: int) -> None:
        with (folder / f"raw-{index}").open("wb", buffering=0) as file:
            for _ in range(size >> 20):
                file.write(piece)
            if sync:
                os.fsync(file.fileno())

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(files)))
    took = time.monotonic() - began
    empty(folder)
    gb = size * files / 1e9
    run.say(
        "raw_write", folder=str(folder), sync=sync, gb=round(gb, 2), gb_per_s=round(gb / took, 3)
    )


def check_rows(run: Run, model: Path, layers: tuple[int, ...], name: str, *flags: str) -> None:
    """Say how far the rows of many requests are from transformers'."""
    spool = run.machine.work / f"spool_{name}"
    spool.mkdir(exist_ok=True)
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    count, at_once, longest = (16, 8, 700) if run.machine.dry else (240, 64, 2600)
    bodies = rows.correctness_bodies(count, vocab, longest)
    env = capture_variables(spool, layers, fsync="off")
    chunk = ("--chunked-prefill-size", "512", _STATES_FLAG)
    small = () if run.machine.dry else ("--mem-fraction-static", "0.5")
    with serving(run.machine, model, name, *chunk, *small, *flags, env=env) as server:
        began = time.monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            replies = list(pool.map(lambda b: post(server.url, b), bodies))
        run.say(
            f"{name}_served",
            start_s=server.started_s,
            seconds=round(time.monotonic() - began, 2),
            version=server.info.get("version"),
            retracted=sum((r.get("meta_info") or {}).get("num_retractions") or 0 for r in replies),
        )
    device = "cpu" if run.machine.dry else "cuda"
    run.say(f"{name}_rows", **rows.compare(model, bodies, replies, layers, device))
    empty(spool)


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one request, or what went wrong."""
    request = Request(  # noqa: S310 - our own http address
        url + "/generate", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urlopen(request, timeout=240) as reply:  # noqa: S310 - as above
            return dict(json.loads(reply.read()))
    except (OSError, ValueError) as exc:
        return {"error": f"{type(exc).__name__}: {exc}"}


def step_rows(run: Run, arguments: argparse.Namespace) -> None:
    """Correctness on a real small model, or on one that is given."""
    model = Path(arguments.model) if arguments.model else models.tiny(run.machine.work / "tiny")
    layers = tuple(int(k) for k in arguments.layers.split(","))
    check_rows(run, model, layers, "rows")


def step_tp2(run: Run, arguments: argparse.Namespace) -> None:
    """Correctness on two GPUs: rank 0 writes, once."""
    del arguments
    model = models.tiny(run.machine.work / "tiny")
    plain = ("--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion")
    check_rows(run, model, models.TINY_LAYERS, "tp2", "--tp-size", "2", *plain)


def _qwen(run: Run, spool: Path, name: str, fsync: str) -> AbstractContextManager[Server]:
    spool.mkdir(parents=True, exist_ok=True)
    model = models.qwen3_8b_shape(run.machine.work / "qwen3_8b", dry=run.machine.dry)
    env = capture_variables(spool, models.QWEN3_8B_LAYERS, fsync=fsync)
    return serving(run.machine, model, name, "--load-format", "dummy", _STATES_FLAG, env=env)


def step_shm(run: Run, arguments: argparse.Namespace) -> None:
    """Prefill and generation with capture to memory."""
    del arguments
    spool = in_memory(run, "spool")
    vocab = 2000 if run.machine.dry else 150000
    raw_disk_once(run, spool, sync=False)
    with _qwen(run, spool, "shm", "off") as server:
        say_server(run, server, "shm_server", spool)
        warm(run, server, spool, vocab)
        pairs(run, server, spool, "prefill", Shape(256, 32, 2048, 0), vocab=vocab, count=_PAIRS)
        pairs(run, server, spool, "gen200", Shape(400, 200, 1024, 512), vocab=vocab, count=_PAIRS)
        pairs(run, server, spool, "gen64", Shape(64, 64, 1024, 512), vocab=vocab, count=_PAIRS)
        say_server(run, server, "shm_server_after", spool)


def step_disk(run: Run, arguments: argparse.Namespace) -> None:
    """Prefill with capture to a disk, synced; then long prompts."""
    spool = Path(arguments.disk) / "eagled_spool"
    vocab = 2000 if run.machine.dry else 150000
    raw_disk_once(run, spool, sync=True)
    with _qwen(run, spool, "disk", "file") as server:
        say_server(run, server, "disk_server", spool)
        warm(run, server, spool, vocab)
        pairs(
            run, server, spool, "disk_prefill", Shape(256, 32, 2048, 0), vocab=vocab, count=_PAIRS
        )
        pairs(run, server, spool, "disk_gen200", Shape(200, 200, 1024, 512), vocab=vocab, count=1)
        pairs(run, server, spool, "long", Shape(48, 16, 8192, 256), vocab=vocab, count=_PAIRS)


def step_stock(run: Run, arguments: argparse.Namespace) -> None:
    """No plugin: the same loads, and hidden states by SGLang's own JSON route."""
    del arguments
    model = models.qwen3_8b_shape(run.machine.work / "qwen3_8b", dry=run.machine.dry)
    vocab = 2000 if run.machine.dry else 150000
    with serving(run.machine, model, "stock", "--load-format", "dummy", _STATES_FLAG) as server:
        say_server(run, server, "stock_server", None)
        for name, shape in (
            ("stock_warm", Shape(32, 32, 512, 16)),
            ("stock_prefill", Shape(256, 32, 2048, 0)),
            ("stock_gen200", Shape(400, 200, 1024, 512)),
        ):
            found = run_load(
                server.url, run.shape(shape), vocab=vocab, states=False, tag=name, spool=None
            )
            run.say(name, **asyncio.run(found))
        for name, shape in (
            ("json_prefill", Shape(8, 8, 2048, 1)),
            ("json_gen", Shape(8, 8, 256, 128)),
        ):
            shape = run.shape(shape)  # noqa: PLW2901 - the dry run's
            began = time.monotonic()
            bodies = rows.correctness_bodies(shape.requests, vocab, 1)
            for body in bodies:
                body["input_ids"] = body["input_ids"] * shape.prompt
                body["sampling_params"] = {"max_new_tokens": shape.answer, "ignore_eos": True}
            with ThreadPoolExecutor(shape.at_once) as pool:
                sizes = list(pool.map(lambda b: len(json.dumps(post(server.url, b))), bodies))
            took = time.monotonic() - began
            run.say(
                name,
                seconds=round(took, 2),
                tok_per_s=round(shape.requests * (shape.prompt + shape.answer) / took, 1),
                reply_mb=round(sum(sizes) / 1e6, 1),
            )


def step_kimi(run: Run, arguments: argparse.Namespace) -> None:
    """Kimi's width: rows against transformers, then how many bytes a second."""
    del arguments
    folder = run.machine.work / "kimi"
    began = time.monotonic()
    model = models.kimi_shape(folder, dry=run.machine.dry)
    run.say("kimi_model", seconds=round(time.monotonic() - began, 1))
    if not run.machine.dry:  # MLA has no kernels on the CPU
        check_rows(run, model, models.KIMI_LAYERS, "kimi")
    spool = in_memory(run, "spool")
    raw_disk_once(run, spool, sync=False)
    if run.machine.dry:
        return
    env = capture_variables(spool, models.KIMI_LAYERS, fsync="off")
    with serving(run.machine, model, "kimi_speed", _STATES_FLAG, env=env) as server:
        say_server(run, server, "kimi_server", spool)
        warm(run, server, spool, 30000)
        shape = Shape(192, 32, 2048, 0)
        pairs(run, server, spool, "kimi_prefill", shape, vocab=30000, count=_PAIRS)
        shape = Shape(200, 200, 512, 128)
        pairs(run, server, spool, "kimi_gen200", shape, vocab=30000, count=2)


def step_onepass(run: Run, arguments: argparse.Namespace) -> None:
    """From requests to shards in memory: captured while generating, or by a second pass."""
    del arguments
    from bench.capture.packing import pack

    spool, shards = in_memory(run, "spool"), in_memory(run, "shards")
    raw_disk_once(run, spool, sync=False)
    shape = run.shape(Shape(200, 200, 1024, 256))
    again = replace(shape, prompt=shape.prompt + shape.answer, answer=0, at_once=32)
    vocab = 2000 if run.machine.dry else 150000
    layers, width = models.QWEN3_8B_LAYERS, 256 if run.machine.dry else 4096
    walls: dict[str, list[float]] = {"one": [], "two": []}
    with _qwen(run, spool, "onepass", "off") as server:
        warm(run, server, spool, vocab)
        for index in range(_PAIRS):
            if run.left_s() < 2.2 * sum(w[-1] for w in walls.values() if w) / 2 + 30:
                break
            for way in ("one", "two") if index % 2 == 0 else ("two", "one"):
                began = time.monotonic()
                steps = [(shape, way == "one")] + ([(again, True)] if way == "two" else [])
                for number, (each, states) in enumerate(steps):
                    tag = f"{way}{index}{number}"
                    load = run_load(
                        server.url, each, vocab=vocab, states=states, tag=tag, spool=spool
                    )
                    run.say(f"{way}_pass_load", **asyncio.run(load))
                packing = pack(spool, shards, layers, width, answer=shape.answer)
                walls[way].append(round(time.monotonic() - began, 2))
                run.say(f"{way}_pass", pair=index, wall_s=walls[way][-1], **packing)
                empty(spool)
    one, two = (statistics.median(walls[way]) for way in ("one", "two"))
    run.say("onepass_ratio", ratio=round(one / two, 4), one_s=one, two_s=two, each=walls)


def in_memory(run: Run, name: str) -> Path:
    """Return a folder in memory that belongs to `--work`, and is emptied by the next run there."""
    return Path("/dev/shm") / f"eagled_{name}_{run.machine.work.name}"  # noqa: S108 - the point


def raw_disk_once(run: Run, spool: Path, *, sync: bool) -> None:
    """Empty the spool and measure what its file system can do."""
    spool.mkdir(parents=True, exist_ok=True)
    empty(spool)
    run.say("space", folder=str(spool), free_gb=free_gb(spool))
    raw_disk(run, spool, sync=sync)


def say_server(run: Run, server: Server, name: str, spool: Path | None) -> None:
    """Say what a server is and what memory it takes."""
    info = server.info
    keys = ("version", "max_total_num_tokens", "chunked_prefill_size", "max_running_requests")
    facts = {key: info.get(key) for key in keys}
    run.say(name, start_s=server.started_s, **facts, memory=server.memory(), spool=str(spool))


def warm(run: Run, server: Server, spool: Path, vocab: int) -> None:
    """Compile and fill caches, with and without states."""
    for states in (True, False):
        shape = run.shape(Shape(64, 64, 512, 32))
        found = run_load(
            server.url,
            shape,
            vocab=vocab,
            states=states,
            tag="warm",
            spool=spool if states else None,
        )
        run.say("warm", **asyncio.run(found))
    empty(spool)


STEPS: dict[str, Callable[[Run, argparse.Namespace], None]] = {
    "rows": step_rows,
    "shm": step_shm,
    "disk": step_disk,
    "stock": step_stock,
    "kimi": step_kimi,
    "onepass": step_onepass,
    "tp2": step_tp2,
}


def main() -> int:
    """Run one step; return 0 if it ran to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=sorted(STEPS))
    parser.add_argument("--site", type=Path, help="folder with SGLang's packages")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--work", type=Path, default=Path("/tmp/eagled_capture"))  # noqa: S108 - a bench's scratch
    parser.add_argument("--disk", default="/tmp", help="folder on the disk for `disk`")  # noqa: S108 - as above
    parser.add_argument("--until", type=float, default=570.0, help="seconds; no run starts later")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--model", help="a model folder for `rows`")
    parser.add_argument("--layers", default="2,4,5")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(given.python, given.site, given.work, given.dry)
    run = Run(machine, given.out, given.until, time.monotonic())
    try:
        STEPS[given.step](run, given)
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is a result
        logs = {p.name: tail(p, 6000) for p in sorted(given.work.glob("*.log"))}
        newest = max(given.work.glob("*.log"), key=lambda p: p.stat().st_mtime, default=None)
        run.say(
            f"{given.step}_failed",
            error=f"{type(exc).__name__}: {exc}"[:2000],
            trace=traceback.format_exc()[-2000:],
            log=logs.get(newest.name, "") if newest else "",
        )
        return 1
    run.say(f"{given.step}_done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
