"""Ten categories side by side against one after the other, on a hub that is 200 ms away.

    python -m bench.discover

A hub of about 200 made-up datasets runs in a process of its own and waits before each answer. Both
runs begin with an empty cache, look at each dataset once, with the same threads in a category;
reference: the same categories one after the other. Prints one JSON line: the ratio, requests, peak
memory of the client (with --rows 1200 the files are a hundred times as large: it should hardly
move), and precision and recall of readers, native answers and copies against the hub's truths.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from eagled.config import Config
from eagled.discover.facts import Facts
from eagled.discover.findings import Findings
from eagled.discover.run import Options, discover
from tests.discover_hub import running
from tests.discover_world import TARGET, Truth, make_world
from tests.toy import TOY

_SAME = 0.5


def _serve(pipe: Connection, latency_s: float, rows: int) -> None:
    world = make_world(rows=rows)
    with running(world.repos) as hub:
        hub.latency_s = latency_s
        pipe.send((hub.url, world.truths))
        while pipe.recv() != "end":
            pipe.send(hub.asked.total())
            hub.asked.clear()


@contextmanager
def hub_process(latency_s: float, rows: int) -> Iterator[tuple[str, dict[str, Truth], Connection]]:
    """Run the hub in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, latency_s, rows), daemon=True)
    process.start()
    try:
        url, truths = ours.recv()
        yield url, truths, ours
    finally:
        ours.send("end")
        process.join(60)


def timed(url: str, model: str, side_by_side: int) -> tuple[float, Findings]:
    """Return the seconds of one run with an empty cache, and what it found."""
    with tempfile.TemporaryDirectory() as state:
        value = {"run": {"state_dir": state}, "target": {"model": model}}
        options = Options(target=TARGET, endpoint=url, viewer=f"{url}/viewer", limit=100,
                          side_by_side=side_by_side)  # fmt: skip
        start = time.monotonic()
        found = discover(Config.model_validate(value), options, lambda _done, _known, _name: None)
        return time.monotonic() - start, found


def scores(facts: dict[str, Facts], truths: dict[str, Truth]) -> dict[str, list[float]]:
    """Return precision and recall of what is told about the datasets."""
    good = [name for name, truth in truths.items() if not truth.problem]
    pairs = {frozenset((n, o)) for n in good for o, s in facts[n].overlap.items() if s >= _SAME}
    copies = {frozenset((n, truths[n].copy_of)) for n in good if truths[n].copy_of}
    read = {n for n in good if facts[n].reader}
    right = {n for n in read if facts[n].reader in truths[n].readers}
    own = {n for n in good if facts[n].native}
    true = {n for n in good if truths[n].native}
    return {
        "reader": [len(right) / len(read), len(right) / len(good)],
        "native": [len(own & true) / len(own), len(own & true) / len(true)],
        "overlap": [len(pairs & copies) / len(pairs), len(pairs & copies) / len(copies)],
    }


def unexpected(facts: dict[str, Facts], truths: dict[str, Truth]) -> list[str]:
    """Return the datasets whose trouble is another than the true one."""
    return [
        f"{name}: {facts[name].problem} ({facts[name].detail}) instead of {truth.problem!r}"
        for name, truth in truths.items()
        if facts[name].problem != truth.problem
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds before each answer")
    parser.add_argument("--rows", type=int, default=12, help="of each dataset")
    parser.add_argument("--tokenizer", action="store_true", help="count tokens with the toy's")
    parser.add_argument("--no-serial", action="store_true", help="only side by side, for memory")
    options = parser.parse_args()
    model = str(TOY) if options.tokenizer else str(Path("/nowhere/at/all"))
    timed("http://127.0.0.1:9", model, 0)  # what is loaded once is loaded here
    base_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with hub_process(options.latency, options.rows) as (url, truths, pipe):
        cpu_s = time.process_time()
        parallel_s, found = timed(url, model, 0)
        cpu_s = time.process_time() - cpu_s
        pipe.send("count")
        calls = pipe.recv()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        serial_s = None if options.no_serial else timed(url, model, 1)[0]
    facts = {item.facts.source: item.facts for item in found.ranked}
    print(
        json.dumps(
            {
                "bench": "discover",
                "datasets": len(facts),
                "requests": calls,
                "latency_s": options.latency,
                "rows_each": options.rows,
                "side_by_side_s": round(parallel_s, 2),
                "one_after_the_other_s": serial_s and round(serial_s, 2),
                "ratio": serial_s and round(serial_s / parallel_s, 2),
                "reference": "the same categories one after the other",
                "side_by_side_cpu_s": round(cpu_s, 2),
                "base_mb": base_mb,
                "peak_mb": peak_mb,
                "precision_recall": scores(facts, truths),
                "unexpected": unexpected(facts, truths),
            }
        )
    )


if __name__ == "__main__":
    main()
