"""Prep against `datasets.map` and against the tokenizer alone, in one run at equal cores.

    python -m bench.prep --rows 100000 --rounds 3

Generates a JSON Lines file of chat rows and takes it from the file to token ids three ways, each in
its own processes, all pinned to the same `--cores` cores:

- eagled: `eagled prep` (reading, rules, duplicates, rendering, tokenising, writing);
- map: `datasets.load_dataset("json")` and `.map(num_proc=cores)` with the tokenizer's
  `apply_chat_template`, one row a call, as its documentation shows it; no rules, no duplicates;
- tokenizer: the same rendered texts, already in memory, through the tokenizer and nothing else: the
  limit of any program that makes these ids in these processes.

Reference: map, file to ids, with libraries and tokenizer already loaded; eagled's time holds the
start of its processes, which load them. The legs take turns for `--rounds` rounds and the medians
are compared: `ratio` is eagled's rows/s over map's (over 1 is faster), `cpu_ratio` map's seconds of
CPU (user and system, all processes) over eagled's. `start_s` is what map needs before its clock
runs. Peak memory is the largest sum of resident sizes over a leg's processes (shared pages count
once for each), looked at every quarter second. `memory` and `questions` are explained in
`bench/prep_memory.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.prep_memory import memory, questions
from eagled.config import Config
from eagled.text.tokenizer import keep_torch_out, load_tokenizer

REAL_TOKENIZER = Path.home() / ".cache" / "eagled" / "tokenizers" / "qwen3"  # fetch_tokenizers.sh
TOY_TOKENIZER = Path(__file__).parents[1] / "tests" / "data" / "toy"
LEGS = ("eagled", "map", "tokenizer")
WHAT = ("speed", "memory", "questions")
SAMPLE_ROWS = 20_000  # of the tokenizer leg: a rate, not a job
RSS_EVERY_S = 0.25
NEAR = "BENCH_PREP_NEAR"  # tells the eagled leg what to do about near duplicates
PAGE = os.sysconf("SC_PAGE_SIZE")
_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sta", "tre", "vin")


def write_rows(path: Path, rows: int, seed: int = 5) -> int:
    """Write chat rows of about 1.5 kB, a twentieth of them repeated questions; return the bytes."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))) for _ in range(20_000)]
    weights = [1 / (i + 3) for i in range(len(words))]
    pool = rng.choices(words, weights, k=200_000)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            shown = number if number % 20 else number // 2
            start = (shown * 7919) % (len(pool) - 400)
            asked = f"Question {shown}: " + " ".join(pool[start : start + 20 + shown * 31 % 180])
            answer = " ".join(pool[start + 200 : start + 200 + rng.randint(20, 200)])
            row = {"id": f"row-{number}", "messages": [
                {"role": "user", "content": asked}, {"role": "assistant", "content": answer},
            ]}  # fmt: skip
            file.write(json.dumps(row) + "\n")
    return path.stat().st_size


def config_of(folder: Path, tokenizer: str, cores: int) -> Config:
    """Return the configuration of the eagled leg."""
    return Config.model_validate({
        "run": {"state_dir": folder / "state"},
        "target": {"model": tokenizer},
        "datasets": [{"name": "rows", "source": str(folder / "rows.jsonl")}],
        "prep": {"workers": cores, "near": os.environ.get(NEAR, "off")},
    })  # fmt: skip


def leg_eagled(folder: Path, tokenizer: str, cores: int) -> dict[str, Any]:
    """Prepare the file."""
    from eagled.workers.prepare import prepare_all

    took = Took()
    [result] = prepare_all(config_of(folder, tokenizer, cores))
    assert result.rows == result.kept + sum(result.rejected.values())
    return {"rows": result.rows, **took.so_far(), "kept": result.kept, "tokens": result.tokens}


def leg_map(folder: Path, tokenizer: str, cores: int) -> dict[str, Any]:
    """Load the file into Arrow and map it."""
    start = Took()
    import datasets

    datasets.disable_progress_bars()
    loaded = _tokenizer(folder, tokenizer, cores)
    start_s = start.so_far()["seconds"]
    took = Took()
    rows = datasets.load_dataset(
        "json", data_files=str(folder / "rows.jsonl"), split="train", cache_dir=str(folder / "hf")
    )
    load_s = took.so_far()["seconds"]

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        ids = loaded.apply_chat_template(
            row["messages"][:1], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return {"input_ids": ids}

    mapped = rows.map(encode, num_proc=cores, remove_columns=rows.column_names)
    return {"rows": len(mapped), **took.so_far(), "load_s": load_s, "start_s": start_s}


def leg_tokenizer(folder: Path, tokenizer: str, cores: int) -> dict[str, Any]:
    """Encode rendered texts in as many processes."""
    loaded = _tokenizer(folder, tokenizer, cores)
    texts = []
    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        for line, _ in zip(file, range(SAMPLE_ROWS), strict=False):
            messages = json.loads(line)["messages"][:1]
            texts.append(
                loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            )
    context = multiprocessing.get_context("fork")
    ready, times = context.Barrier(cores), context.Queue()
    children = [
        context.Process(target=_encode_all, args=(loaded, texts[n::cores], ready, times))
        for n in range(cores)
    ]
    for child in children:
        child.start()
    found = [times.get() for _ in children]
    for child in children:
        child.join()
    seconds = max(one["seconds"] for one in found)
    return {"rows": len(texts), "seconds": seconds, "cpu_s": sum(one["cpu_s"] for one in found)}


def _encode_all(tokenizer: Any, texts: Sequence[str], ready: Any, times: Any) -> None:  # noqa: ANN401 - untyped libraries
    ready.wait()
    took = Took()
    for text in texts:
        tokenizer(text, add_special_tokens=False)["input_ids"]
    times.put(took.so_far())


def _tokenizer(folder: Path, tokenizer: str, cores: int) -> Any:  # noqa: ANN401 - transformers has no types
    return load_tokenizer(config_of(folder, tokenizer, cores).target)


class Took:
    """Wall seconds, and CPU seconds of this process and its ended children, since it was made."""

    def __init__(self) -> None:
        self._started = (time.perf_counter(), _cpu_s())

    def so_far(self) -> dict[str, float]:
        """Return `seconds` and `cpu_s`."""
        wall_s, cpu_s = self._started
        return {"seconds": time.perf_counter() - wall_s, "cpu_s": _cpu_s() - cpu_s}


def _cpu_s() -> float:
    return sum(os.times()[:4])


class PeakMemory:
    """Looks at the resident size of a process and all below it until stopped."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Return the peak in bytes."""
        self._stop.set()
        self._thread.join()
        return self.peak_bytes

    def _watch(self) -> None:
        while not self._stop.wait(RSS_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident, _tree(self._pid))))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:
        return  # it has ended


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def run_leg(leg: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one leg in its own processes and return its rates."""
    command = [sys.executable, "-m", "bench.prep", "--leg", leg, "--folder", str(folder),
               "--cores", str(args.cores), "--tokenizer", args.tokenizer]  # fmt: skip
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        memory = PeakMemory(child.pid)
        output, _ = child.communicate()
        peak = memory.stop()
    assert child.returncode == 0, f"{leg} ended with {child.returncode}"
    return {**json.loads(output.splitlines()[-1]), "peak_mib": round(peak / (1 << 20))}


def rounds(args: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run the legs in turns; each leg of each round begins with nothing of an earlier one."""
    legs: dict[str, list[dict[str, Any]]] = {leg: [] for leg in LEGS}
    for number in range(args.rounds):
        for leg in LEGS if number % 2 == 0 else LEGS[::-1]:
            legs[leg].append(run_leg(leg, args, folder))
            for name in ("state", "hf"):
                shutil.rmtree(folder / name, ignore_errors=True)
    return legs


def median_of(found: Sequence[dict[str, Any]], row_bytes: float) -> dict[str, Any]:
    """Return the medians of a leg's rounds, with its rates."""
    out = {key: statistics.median(one[key] for one in found) for key in found[0]}
    out["rows_per_s"] = round(out["rows"] / out["seconds"])
    out["mb_per_s"] = round(out["rows"] * row_bytes / 1e6 / out["seconds"], 2)
    out["cpu_us_per_row"] = round(out["cpu_s"] / out["rows"] * 1e6)
    return {key: round(value, 2) if isinstance(value, float) else value
            for key, value in out.items()}  # fmt: skip


def _default_tokenizer(what: str = "speed") -> Path:
    real = what == "speed" and REAL_TOKENIZER.is_dir()
    return REAL_TOKENIZER if real else TOY_TOKENIZER


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=WHAT, default="speed")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--tokenizer")
    parser.add_argument("--near", action="store_true", help="memory, questions: near duplicates")
    parser.add_argument("--keep-in", type=Path, help="folder for the generated file")
    parser.add_argument("--leg", choices=LEGS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run all legs, or one of them inside a child."""
    args = arguments()
    if args.leg:
        run_here(args)
        return
    if args.what == "questions":
        questions(args)
        return
    args.tokenizer = args.tokenizer or str(_default_tokenizer(args.what))
    with tempfile.TemporaryDirectory(dir=args.keep_in) as name:
        folder = Path(name)
        n_bytes = write_rows(folder / "rows.jsonl", args.rows)
        if args.what == "memory":
            os.environ[NEAR] = "report" if args.near else "off"
            memory(args, run_leg("eagled", args, folder), n_bytes)
        else:
            _report(args, n_bytes, rounds(args, folder))


def run_here(args: argparse.Namespace) -> None:
    """Run one leg in this process and print what it found."""
    if args.leg != "map":
        keep_torch_out()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    leg = {"eagled": leg_eagled, "map": leg_map, "tokenizer": leg_tokenizer}[args.leg]
    print(json.dumps(leg(args.folder, args.tokenizer, args.cores)))


def _report(args: argparse.Namespace, n_bytes: int, found: dict[str, list[dict[str, Any]]]) -> None:
    legs = {leg: median_of(several, n_bytes / args.rows) for leg, several in found.items()}
    for leg, one in legs.items():
        print(f"{leg:9}  {one['rows_per_s']:9,} rows/s  {one['mb_per_s']:6.2f} MB/s  "
              f"{one['cpu_us_per_row']:6,} us of CPU a row  {one['peak_mib']:6,} MiB",
              file=sys.stderr)  # fmt: skip
    ours, theirs, limit = (legs[leg] for leg in LEGS)
    print(json.dumps({
        "bench": "prep", "reference": "datasets.load_dataset + map",
        "ratio": round(theirs["seconds"] / ours["seconds"], 3),
        "ratios": [round(b["seconds"] / a["seconds"], 3)
                   for a, b in zip(found["eagled"], found["map"], strict=True)],
        "cpu_ratio": round(theirs["cpu_s"] / ours["cpu_s"], 3),
        "cpu_of_tokenizer": round(limit["cpu_us_per_row"] / ours["cpu_us_per_row"], 3),
        "rows": args.rows, "rounds": args.rounds, "file_mb": round(n_bytes / 1e6),
        "cores": args.cores, "tokenizer": args.tokenizer, "legs": legs,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
