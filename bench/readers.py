"""Rows and megabytes a second of each reader, from the file to the canonical conversation.

    python -m bench.readers

Rows are generated in the shape of each dataset, about as long as its real ones, and read from JSON
Lines and from Parquet: source, reader, rules. No tokenizer. Reference: the same file read with
orjson or pyarrow into Python objects and nothing else. `ratio` is eagled's speed over the
reference's; the one at the top is the median. Megabytes are those of the JSON Lines file in both
cases. Seconds are CPU seconds of this one process, medians of some rounds.
Prints one line a format to stderr, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eagled.config import DatasetConfig
from eagled.readers import format_named, formats, read_row
from eagled.readers.sources import open_source
from eagled.text.canonical import canonical

Row = dict[str, Any]
_rng = random.Random(20261130)
_WORDS = ["".join(_rng.choices("etaoinshrdlucmf", k=_rng.randrange(2, 9))) for _ in range(4000)]
_PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
_FUNCTION = {"name": "find", "description": "d", "parameters": _PARAMETERS}
_DEEPSWE = (
    "Mend.\n\nWe have access to the following functions:\n\n-- BEGIN FUNCTION #1: bash --\n"
    "Description:\nRun.\nParameters:\n  1. cmd (string, required)\nIt.\n-- END FUNCTION #1 --\n"
)
_BATCH_ROWS = 500


def _text(n_words: int) -> str:
    return " ".join(_rng.choices(_WORDS, k=n_words))


def _chat(role: str, text: str, names: tuple[str, str], turns: int, words: int) -> list[Row]:
    return [{role: names[i % 2], text: _text(words)} for i in range(turns)]


def _messages(turns: int, words: int) -> list[Row]:
    return _chat("role", "content", ("user", "assistant"), turns, words)


def _values(turns: int, words: int) -> list[Row]:
    return _chat("from", "value", ("human", "gpt"), turns, words)


def _nebius(i: int) -> Row:
    turns: list[Row] = [{"role": "system", "system_prompt": _text(300)}]
    turns.append({"role": "user", "text": _text(400)})
    for _ in range(20):
        turns.append({"role": "ai", "text": f"DISCUSSION\n{_text(40)}\n```\n{_text(12)}\n```"})
        turns.append({"role": "user", "text": _text(120)})
    return {"instance_id": f"t-{i}", "trajectory": turns, "exit_status": "submitted"}


def _deepswe(_: int) -> Row:
    turns = [{"role": "system", "content": _DEEPSWE}, {"role": "user", "content": _text(400)}]
    for _step in range(20):
        call = f"<function=bash>\n<parameter=cmd>{_text(20)}</parameter>\n</function>"
        turns.append({"role": "assistant", "content": f"{_text(40)}\n\n{call}"})
        turns.append({"role": "user", "content": f"Execution output of [bash]:\n{_text(150)}"})
    return {"messages": turns[:-1]}


def _glaive(_: int) -> Row:
    call = 'ASSISTANT: <functioncall> {"name": "find", "arguments": \'{"q": "x"}\'} <|endoftext|>'
    parts = [f"USER: {_text(20)}", call, "FUNCTION RESPONSE: {}", f"ASSISTANT: {_text(40)}"]
    return {"system": f"SYSTEM: - {json.dumps(_FUNCTION)}", "chat": "\n\n\n".join(parts * 3)}


def _thought(_: int) -> Row:
    answer = f"<|begin_of_thought|>\n\n{_text(1500)}\n\n<|end_of_thought|>\n\n{_text(100)}"
    return {
        "system": "use <|begin_of_thought|>",
        "conversations": [{"from": "user", "value": _text(60)}, {"from": "gpt", "value": answer}],
    }


MAKERS: dict[str, Callable[[int], Row]] = {
    "nebius-swe-agent-trajectories": _nebius,
    "deepswe-kimi-k2": _deepswe,
    "glaive-function-calling-v2": _glaive,
    "glaive-function-calling-v1": lambda _: {
        "sample": f"USER: {_text(20)}\nASSISTANT: {_text(200)} <|endoftext|>"
    },
    "opencodeinstruct": lambda i: {
        "id": str(i), "input": _text(150), "output": _text(200), "llm_judgement": "{}",
        "average_test_score": 1.0,
    },
    "magicoder-evol-instruct": lambda _: {"instruction": _text(120), "response": _text(250)},
    "mixture-of-thoughts": lambda _: {
        "messages": [
            {"role": "user", "content": _text(80)},
            {"role": "assistant", "content": f"<think>\n{_text(2500)}\n</think>\n{_text(150)}"},
        ],
        "num_tokens": 4000, "source": "x",
    },
    "openthoughts-114k": _thought,
    "ultrachat-200k": lambda i: {
        "prompt": "p", "prompt_id": str(i), "messages": _messages(6, 150)
    },
    "sharegpt-vicuna-unfiltered": lambda i: {"id": str(i), "conversations": _values(6, 180)},
    "kimi-k25-2000x": lambda i: {
        "id": str(i), "problem": _text(60), "thinking": _text(900), "solution": _text(200)
    },
    "open-perfectblend": lambda _: {"conversations": _values(2, 150), "source": "x"},
    "infinity-instruct": lambda i: {
        "id": i, "conversations": _values(2, 150), "langdetect": "en", "source": "x"
    },
    "bfcl": lambda i: {
        "id": str(i), "question": [_messages(1, 30)], "function": [_FUNCTION] * 3
    },
    "tooltalk": lambda i: {
        "conversation_id": str(i),
        "conversation": _chat("role", "text", ("user", "assistant"), 6, 30),
    },
    "codeio": lambda _: {
        "task_description": _text(60), "input_output_spec": _text(80), "code_sample": _text(200)
    },
    "openai": lambda i: {"id": str(i), "messages": _messages(4, 150)},
    "sharegpt": lambda _: {"conversations": _values(4, 150)},
    "alpaca": lambda _: {"instruction": _text(30), "input": _text(30), "output": _text(100)},
    "instruction": lambda _: {"prompt": _text(60), "response": _text(150)},
    "prompt": lambda _: {"prompt": _text(60)},
}  # fmt: skip


def write(folder: Path, name: str, n_rows: int) -> tuple[Path, Path]:
    """Write generated rows of a format as JSON Lines and as Parquet."""
    lines, columns = folder / f"{name}.jsonl", folder / f"{name}.parquet"
    rows = [MAKERS[name](i) for i in range(min(n_rows, _BATCH_ROWS))]
    some = "".join(json.dumps(row) + "\n" for row in rows)
    whole, rest = divmod(n_rows, len(rows))
    with lines.open("w", encoding="utf-8") as file:
        for _ in range(whole):
            file.write(some)
        file.writelines(json.dumps(row) + "\n" for row in rows[:rest])
    table = pa.Table.from_pylist(rows)
    with pq.ParquetWriter(columns, table.schema) as writer:
        for _ in range(whole):
            writer.write_table(table)
        writer.write_table(table.slice(0, rest))
    return lines, columns


def plain(path: Path) -> int:
    """Read a file with orjson or pyarrow and nothing else; return the rows."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            return sum(len(batch.to_pylist()) for batch in file.iter_batches(256))
    with path.open("rb") as file:
        return sum(1 for line in file if orjson.loads(line) is not None)


def read(path: Path, name: str) -> int:
    """Read a file up to canonical conversations; return the rows."""
    known = format_named(name)
    assert known is not None
    source = open_source(DatasetConfig(name="b", source=str(path)), identify=False)
    rows = 0
    for row in source.rows():
        canonical(read_row(row.value, known), known.mode)
        rows += 1
    return rows


def cpu_s(work: Callable[[], int], n_rows: int) -> float:
    """Return the CPU seconds of reading a whole file."""
    started = time.process_time()
    rows = work()
    assert rows == n_rows
    return time.process_time() - started


def measure(name: str, n_rows: int, rounds: int) -> dict[str, Any]:
    """Return a reader's rates from both kinds of files, medians of some rounds."""
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), name, n_rows)
        size = paths[0].stat().st_size
        for path in paths:
            times = [
                (cpu_s(partial(plain, path), n_rows), cpu_s(partial(read, path, name), n_rows))
                for _ in range(rounds)
            ]
            reference_s, own_s = (statistics.median(column) for column in zip(*times, strict=True))
            out[path.suffix.removeprefix(".")] = {
                "rows_per_s": round(n_rows / own_s),
                "mb_per_s": round(size / 1e6 / own_s, 1),
                "plain_mb_per_s": round(size / 1e6 / reference_s, 1),
                "ratio": round(reference_s / own_s, 3),
            }
    return out


def main() -> None:
    """Measure every format, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("names", nargs="*", default=[known.name for known in formats()])
    options = parser.parse_args()
    readers = {}
    for name in options.names:
        readers[name] = measure(name, options.rows, options.rounds)
        shown = "  ".join(
            f"{kind} {one['rows_per_s']:8,} rows/s {one['mb_per_s']:6.1f} MB/s "
            f"(plain {one['plain_mb_per_s']:6.1f})"
            for kind, one in readers[name].items()
        )
        print(f"{name:30} {shown}", file=sys.stderr, flush=True)
    ratios = [one["ratio"] for kinds in readers.values() for one in kinds.values()]
    print(json.dumps({
        "bench": "readers", "ratio": round(statistics.median(ratios), 3),
        "reference": "orjson or pyarrow reading the same file", "rows": options.rows,
        "rounds": options.rounds, "readers": readers,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
