"""Throughput of eagled's admission on real SGLang, beside `bench_serving` at its best constant.

    python3 -m bench.admission_gpu run --site /tmp/site --out $OUT --until 560
    python3 -m bench.admission_gpu run --site /tmp/site --out $OUT --until 560 --steps 128,64
    python3 -m bench.admission_gpu sum --out OUT      # the JSON line, from all runs in OUT
    python3 -m bench.admission_gpu plot --out OUT     # tokens/s over time, OUT/admission.svg
    … run --dry --python .sglang-venv/bin/python      # the same on SGLang for the CPU, tiny

One server (Qwen3-8B's shape, dummy weights), the same seeded mixed requests for everybody: short
and long prompts in one queue, answers of lognormal length. A step is `auto` (eagled's generator
with its real store, synced, no limit set) or a number C (SGLang's own benchmark client with
`--max-concurrency C`). Each answer has its own length, which is sent to the server as the most it
may be, with `ignore_eos`, in both; eagled is not told: its controller has to learn what to expect.
Reference of the ratio: the best C. Goal: >= 0.99. Each step ends with a line in
OUT/admission.jsonl; none starts after `--until` seconds, and OUT can be used again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.capture import models
from bench.capture.load import Shape, run_load
from bench.capture.machine import Machine, Server, serving, tail
from eagled.config import Config, SamplingConfig
from eagled.errors import EagledError
from eagled.server.client import SglangClient
from eagled.server.protocol import EndCause, GenerateReply, GenerateRequest
from tests.servers.kit import add_prompts, make_config, make_generator, open_store

GOAL = 0.99
STEPS = "auto,512,1024,256,auto,128,64"
AUTO = "auto"
_SERVING = Path(__file__).with_name("admission_serving.py")
_LONGEST_S = 1500.0


@dataclass(frozen=True)
class Work:
    """The requests.

    Attributes:
        count: how many.
        vocab: ids are below it.
        short: median tokens of a short prompt; 70% are short.
        long: median tokens of a long prompt.
        answer: median tokens of an answer.
        most: longest answer, and what eagled is told of all.
    """

    count: int
    vocab: int
    short: int
    long: int
    answer: int
    most: int


REAL = Work(2000, 150_000, 300, 3500, 300, 2048)
DRY = Work(60, 2000, 30, 200, 12, 60)


@dataclass(frozen=True)
class Row:
    """One request: its ids, and how many tokens its answer has."""

    ids: tuple[int, ...]
    answer: int


def make_rows(work: Work, seed: int = 1) -> list[Row]:
    """Return the requests, the same each time."""
    rng = random.Random(seed)

    def length(median: int, spread: float, most: int) -> int:
        return max(4, min(most, round(rng.lognormvariate(0, spread) * median)))

    rows = []
    for number in range(work.count):
        long = rng.random() >= 0.7
        n = length(work.long, 0.4, 3 * work.long) if long else length(work.short, 0.5, work.long)
        head = divmod(number, 1000)  # no two are the same
        ids = (10 + head[0], 10 + head[1], *(rng.randrange(10, work.vocab) for _ in range(n)))
        rows.append(Row(ids, length(work.answer, 0.9, work.most)))
    return rows


class LengthClient(SglangClient):
    """Our client; the server is told each answer's own length, and the caller is not."""

    lengths: dict[bytes, int]
    made: int = 0

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """Ask for the whole answer and for no token more; give it as one that ended by itself."""
        wanted = self.lengths[request.prompt.tobytes()]
        members = request.sampling + b',"ignore_eos":true'
        reply = await super().generate(replace(request, max_new=wanted, sampling=members))
        self.made += len(reply.output)
        return replace(reply, cause=EndCause.STOP)


@dataclass
class Series:
    """What the server says, once a second: seconds, tokens made so far, running, waiting, used."""

    points: list[list[float]] = field(default_factory=list)

    @asynccontextmanager
    async def watched(self, url: str) -> AsyncIterator[None]:
        """Look until the block ends."""
        config = make_config(url)
        async with SglangClient(config.servers[0], config.generation, vocab_size=1) as client:
            task = asyncio.create_task(self._watch(client))
            try:
                yield
            finally:
                task.cancel()

    async def _watch(self, client: SglangClient) -> None:
        began = time.monotonic()
        while True:
            with contextlib.suppress(EagledError):
                load, made = await client.loads(), await client.tokens_made()
                at = round(time.monotonic() - began, 2)
                if load is not None:
                    self.points.append(
                        [at, made or 0, load.running, load.waiting, load.used_tokens]
                    )
            await asyncio.sleep(1.0)


# -- the two


async def auto(url: str, rows: Sequence[Row], work: Work) -> dict[str, Any]:
    """Work the requests off as the daemon does; return seconds, tokens and what was decided."""
    config = make_config(
        url, lanes={"all": {"context": 0, "limit": 0}}, probe_interval_s=5.0,
        retry_max_s=120.0, request_timeout_s=3600.0,
    )  # fmt: skip
    sampling = SamplingConfig(temperature=1.0, max_new_tokens=work.most)
    config = config.model_copy(update={"sampling": sampling})
    arrays: list[npt.NDArray[np.uint32]] = [np.array(row.ids, np.uint32) for row in rows]
    with tempfile.TemporaryDirectory(prefix="admission-") as folder:
        store = await open_store(Path(folder), config)
        try:
            await add_prompts(store, config, [row.ids for row in rows])
            client = LengthClient(
                config.servers[0], config.generation, vocab_size=work.vocab + 2000
            )
            client.lengths = {a.tobytes(): r.answer for a, r in zip(arrays, rows, strict=True)}
            async with client:
                return await _generate(store, client, config, len(rows))
        finally:
            await store.close()


async def _generate(store: Any, client: LengthClient, config: Config, n: int) -> dict[str, Any]:  # noqa: ANN401 - the store, as the kit gives it
    generator = make_generator(store, [client], config, vocab=client._vocab_size)  # noqa: SLF001 - ours
    peak = retracted = 0
    seen: list[str] = []
    began = time.monotonic()
    await generator.start()
    try:
        while (metrics := generator.metrics()).lanes["all"].completions < n:
            if time.monotonic() > began + _LONGEST_S:
                raise TimeoutError(f"not done: {metrics}")
            peak = max(peak, metrics.lanes["all"].in_flight)
            decided = metrics.servers[0].admission
            if decided is not None:
                retracted = decided.retractions
                if seen[-1:] != [decided.reason]:
                    seen.append(decided.reason)
            await asyncio.sleep(0.02)
        took = time.monotonic() - began
    finally:
        await generator.stop(5.0)
    return {
        "seconds": round(took, 2), "tokens": client.made, "peak": peak, "reasons": seen[:40],
        "retractions": retracted,
    }  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A running server, and the requests, also as a file for SGLang's client."""

    machine: Machine
    server: Server
    model: Path
    requests: Path
    rows: Sequence[Row]
    work: Work


async def constant(scene: Scene, at_once: int) -> dict[str, Any]:
    """Run SGLang's benchmark client; return its seconds and tokens.

    Raises:
        RuntimeError: with what it printed, if it failed.
    """
    machine = scene.machine
    out = machine.work / f"serving_{at_once}.jsonl"
    out.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        machine.python, str(_SERVING), str(scene.requests), scene.server.url,
        str(scene.model), str(at_once), str(out), env=machine.environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    if process.returncode or not out.exists():
        raise RuntimeError(said.decode(errors="replace")[-2000:])
    found = json.loads(out.read_text().splitlines()[-1])
    return {
        "seconds": round(found["duration"], 2),
        "tokens": found["total_output_tokens"],
        "failed": found.get("num_prompts", found["completed"]) - found["completed"],
    }


# -- runs


@dataclass
class Book:
    """OUT/admission.jsonl."""

    path: Path

    def say(self, **line: object) -> None:
        """Write a line at once, and print it without its series."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({k: v for k, v in line.items() if k != "series"}), flush=True)

    def steps(self) -> list[dict[str, Any]]:
        """Return the lines of finished steps."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if "tok_per_s" in line]


def run(given: argparse.Namespace, book: Book) -> None:
    """Start the server and go through the steps until the time is up."""
    began = time.monotonic()
    machine = Machine(given.python, given.site, given.work, given.dry, start_s=420.0)
    model = models.qwen3_8b_shape(given.work / "qwen3_8b", dry=given.dry)
    work = replace(DRY if given.dry else REAL, **({"count": given.count} if given.count else {}))
    rows = make_rows(work)
    requests = given.work / "requests.jsonl"
    requests.write_text("".join(f"{json.dumps(vars(row))}\n" for row in rows))
    graphs = () if given.dry else ("--cuda-graph-max-bs", str(given.graphs))
    room = "16" if given.dry else "1024"
    flags = ("--load-format", "dummy", "--enable-metrics", "--max-running-requests", room)
    with serving(machine, model, "admission", *flags, *graphs) as server:
        info = server.info
        keys = ("version", "max_total_num_tokens", "max_running_requests", "chunked_prefill_size")
        book.say(step="server", start_s=server.started_s, **{k: info.get(k) for k in keys})
        warm = Shape(16, 8, 64, 8) if given.dry else Shape(128, 128, 512, 64)
        asyncio.run(
            run_load(server.url, warm, vocab=work.vocab, states=False, tag="warm", spool=None)
        )
        scene, longest = Scene(machine, server, model, requests, rows, work), 0.0
        for step in given.steps.split(","):
            if time.monotonic() - began + longest > given.until:
                book.say(step=step, skipped="no time left")
                continue
            at = time.monotonic()
            asyncio.run(_step(step, scene, book))
            longest = max(longest, time.monotonic() - at)


async def _step(step: str, scene: Scene, book: Book) -> None:
    series, url = Series(), scene.server.url
    async with series.watched(url):
        if step == AUTO:
            found = await auto(url, scene.rows, scene.work)
        else:
            found = await constant(scene, int(step))
    rate = round(found["tokens"] / found["seconds"], 1)
    book.say(step=step, requests=len(scene.rows), **found, tok_per_s=rate, series=series.points)


def summary(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return auto's median throughput over the best constant's."""
    by_step: dict[str, list[float]] = {}
    for line in steps:
        by_step.setdefault(line["step"], []).append(line["tok_per_s"])
    medians = {step: statistics.median(rates) for step, rates in by_step.items()}
    constants = {step: rate for step, rate in medians.items() if step != AUTO}
    if not constants or AUTO not in medians:
        return {"bench": "admission_gpu", "medians": medians, "met": None}
    best = max(constants, key=lambda step: constants[step])
    ratio = round(medians[AUTO] / constants[best], 4)
    return {
        "bench": "admission_gpu",
        "reference": f"SGLang's bench_serving, best of C = {', '.join(sorted(constants, key=int))}",
        "best": int(best),
        "ratio": ratio,
        "goal": GOAL,
        "met": ratio >= GOAL,
        "medians": medians,
        "runs": by_step,
    }


def plot(steps: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw tokens/s over time, one line a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for line in steps:
        points = line["series"]
        pairs = list(zip(points, points[5:], strict=False))  # over five looks
        at = [b[0] for _, b in pairs]
        rate = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]
        name = "eagled, auto" if line["step"] == AUTO else f"bench_serving, C={line['step']}"
        axes.plot(at, rate, label=name, linewidth=2 if line["step"] == AUTO else 1)
    axes.set(xlabel="seconds", ylabel="tokens/s, read and made (mean of 5 s)", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def main() -> int:
    """Run, add up or draw; return 0 if it went to its end."""
    parser = argparse.ArgumentParser(description="Auto against bench_serving on real SGLang.")
    parser.add_argument("what", choices=["run", "sum", "plot"])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--site", type=Path, help="folder with SGLang's packages")
    parser.add_argument("--work", type=Path, default=Path("/tmp/eagled_admission"))  # noqa: S108 - a bench's scratch
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--steps", default=STEPS)
    parser.add_argument("--count", type=int, default=0, help="requests; 0: 2000, dry 60")
    parser.add_argument("--graphs", type=int, default=512, help="largest batch with a CUDA graph")
    parser.add_argument("--until", type=float, default=560.0, help="seconds; no step starts later")
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    given.work.mkdir(parents=True, exist_ok=True)
    book = Book(given.out / "admission.jsonl")
    if given.what == "plot":
        plot(book.steps(), given.out / "admission.svg")
        return 0
    failed = False
    if given.what == "run":
        try:
            run(given, book)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is a result
            log = tail(given.work / "admission.log", 3000)
            book.say(step="failed", error=f"{type(exc).__name__}: {exc}"[:2000], log=log)
            failed = True
    print(json.dumps(summary(book.steps())))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
