"""SGLang's own `bench_serving` on requests from a file; runs in SGLang's environment.

    PYTHON_OF_SGLANG bench/admission_serving.py REQUESTS.jsonl URL MODEL AT_ONCE OUT.jsonl

Each line of REQUESTS.jsonl is `{"ids": [...], "answer": n}`. Client, concurrency and clock are
SGLang's, unchanged; only its data sets are replaced by the file, and its tokenizer, which counts
text that a server without tokenizer does not send, by one that counts nothing. Replies are not
streamed, which is its cheaper way. It imports nothing of eagled.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

if importlib.util.find_spec("datasets") is None:  # bench_serving imports it for sets not used here
    sys.modules["datasets"] = ModuleType("datasets")
    sys.modules["datasets"].load_dataset = None  # type: ignore[attr-defined]

import sglang.benchmark.serving as bench
from sglang.benchmark.datasets import DatasetRow


class NoTokenizer:
    """Counts nothing."""

    def encode(self, _text: str, **_options: object) -> list[int]:
        """Return no ids."""
        return []


def read_rows(path: Path) -> list[Any]:
    """Return the requests as SGLang's benchmark has them."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        DatasetRow(prompt=row["ids"], prompt_len=len(row["ids"]), output_len=row["answer"])
        for row in found
    ]


def main() -> None:
    """Run it; its result is one line in the last argument's file."""
    requests, url, model, at_once, out = sys.argv[1:]
    rows = read_rows(Path(requests))
    bench.get_dataset = lambda *_args, **_more: rows
    bench.get_tokenizer = lambda *_args, **_more: NoTokenizer()
    bench.check_chat_template = lambda _model: True
    sys.argv = [
        "bench_serving", "--backend", "sglang", "--base-url", url, "--model", model,
        "--dataset-name", "random", "--num-prompts", str(len(rows)), "--temperature", "1.0",
        "--max-concurrency", at_once, "--disable-stream", "--disable-tqdm", "--output-file", out,
    ]  # fmt: skip
    bench.cli_main()


if __name__ == "__main__":
    main()
