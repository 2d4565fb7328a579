"""About 200 made-up datasets of every shape that eagled reads, and what is true of each.

Same seed, same bytes. Beside plain ones there are renamed copies, licences that the card
contradicts, prompts in the answer column, claims about whose answers they are, and all that breaks:
gated, gone, torn, empty, slow, cards that name other files.
"""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagled.discover.categories import load_categories
from tests.discover_hub import HubRepo

TARGET = "kimi-k2.5"
SAMPLES = Path(__file__).parent / "data" / "samples"
_SYLLABLES = tuple(
    a + b for a in "bcdfghjklmnprstvwxz" for b in ("a", "e", "i", "o", "u", "ra", "li")
)
Row = dict[str, Any]
Shape = Callable[[str, str], Row]


@dataclass(frozen=True)
class Truth:
    """What is true of a dataset.

    `readers` are those that read it right; `copy_of` has the same questions; `flags` are those of
    its licence; `problem` is why nothing else can be known.
    """

    readers: frozenset[str] = frozenset()
    native: bool = False
    copy_of: str = ""
    flags: frozenset[str] = frozenset()
    problem: str = ""
    swapped: bool = False


@dataclass
class World:
    """Datasets by id, and their truths."""

    repos: dict[str, HubRepo] = field(default_factory=dict)
    truths: dict[str, Truth] = field(default_factory=dict)


class _Text:
    """Questions and answers that no two rows share."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - test data
        self._words = [
            "".join(self._random.choices(_SYLLABLES, k=self._random.randint(2, 4)))
            for _ in range(3000)
        ]

    def words(self, n: int) -> str:
        return " ".join(self._random.choices(self._words, k=n))

    def question(self) -> str:
        return (
            f"How can the {self.words(4)} be {self.words(3)} with a {self.words(3)} that is in the "
            f"{self.words(4)} and not {self.words(3)}?"
        )

    def answer(self) -> str:
        start, rest = f"The {self.words(3)} is {self.words(5)}.", self.words(8)
        return f"{start} It was {rest}, and that is {self.words(6)}."


def _chat(question: str, answer: str, *, user: str = "human", gpt: str = "gpt") -> list[Row]:
    return [{"from": user, "value": question}, {"from": gpt, "value": answer}]


def _messages(question: str, answer: str) -> list[Row]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _template(folder: str, name: str) -> Row:
    path = SAMPLES / folder / name
    if path.suffix == ".parquet":
        row: Row = pq.read_table(path).slice(0, 1).to_pylist()[0]
        return row
    text = path.read_text(encoding="utf-8")
    first: Row = json.loads(text)[0] if text.startswith("[") else json.loads(text.split("\n")[0])
    return first


def _from_sample(row: Row, old: str) -> Shape:
    """Return a shape that puts a question into a recorded row in place of some of its text."""
    text = json.dumps(row)
    if json.dumps(old)[1:-1] not in text:
        raise AssertionError(f"{old!r} is not in the sample")

    def make(question: str, _answer: str) -> Row:
        made: Row = json.loads(text.replace(json.dumps(old)[1:-1], json.dumps(question)[1:-1]))
        return made

    return make


def _shapes() -> dict[str, Shape]:
    deepswe = _template("deepswe-kimi-k2", "DeepSWE-Agent-Kimi-K2-Trajectories-2.8K.jsonl")
    nebius = _template("nebius-swe-agent-trajectories", "data/train-00000-of-00001.parquet")
    asked = next(t["text"] for t in nebius["trajectory"] if t["role"] == "user")
    glaive = _template("glaive-function-calling", "glaive-function-calling-v2.json")
    first = glaive["chat"].split("USER: ")[1].split("\n")[0]
    return {
        "opencodeinstruct": lambda q, a: {
            "id": q[:20], "input": q, "output": a, "generation_algorithm": "self-instruct",
            "llm_judgement": "{}", "average_test_score": "1.0",
        },
        "magicoder-evol-instruct": lambda q, a: {"instruction": q, "response": a},
        "mixture-of-thoughts": lambda q, a: {
            "messages": _messages(q, f"<think>\n{a}\n</think>\n{a}"), "num_tokens": 90,
            "source": "made up",
        },
        "openthoughts-114k": lambda q, a: {
            "system": "Think in <|begin_of_thought|> and <|begin_of_solution|> tags.",
            "conversations": _chat(
                q,
                f"<|begin_of_thought|>\n{a}\n<|end_of_thought|>\n<|begin_of_solution|>\n{a}\n"
                "<|end_of_solution|>",
                user="user", gpt="assistant",
            ),
        },
        "ultrachat-200k": lambda q, a: {
            "prompt": q, "prompt_id": q[:12], "messages": _messages(q, a),
        },
        "infinity-instruct": lambda q, a: {
            "id": 7, "conversations": _chat(q, a), "label": {"ability_zh": ["x"]},
            "langdetect": "en", "source": "made up",
        },
        "open-perfectblend": lambda q, a: {"conversations": _chat(q, a), "source": "made up"},
        "sharegpt-vicuna-unfiltered": lambda q, a: {"id": "x_0", "conversations": _chat(q, a)},
        "sharegpt": lambda q, a: {"conversations": _chat(q, a), "system": "Be short."},
        "openai": lambda q, a: {"messages": _messages(q, a)},
        "alpaca": lambda q, a: {"instruction": q, "input": "", "output": a},
        "instruction": lambda q, a: {"problem": q, "solution": a},
        "prompt": lambda q, _a: {"prompt": q},
        "codeio": lambda q, a: {
            "task_description": q, "input_output_spec": "a number", "code_sample": a,
        },
        "deepswe-kimi-k2": _from_sample(deepswe, "rounding in totals() is wrong for negative sums"),
        "nebius-swe-agent-trajectories": _from_sample(nebius, asked),
        "glaive-function-calling-v2": _from_sample(glaive, first),
    }  # fmt: skip


SAME_READERS = {
    "instruction": {"instruction", "kimi-k25-2000x"},
    "openai": {"openai", "kimi-k25-2000x"},
    "alpaca": {"alpaca", "instruction"},  # without an input both read the same
}


def jsonl(rows: Sequence[Row]) -> bytes:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: Sequence[Row]) -> bytes:
    """Return rows as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out)
    return out.getvalue()


def _files(rows: Sequence[Row], kind: int) -> dict[str, bytes]:
    match kind % 4:
        case 0:
            return {"data/train-00000-of-00001.parquet": parquet(rows)}
        case 1:
            return {"train.jsonl": jsonl(rows)}
        case 2:
            return {"train.json": json.dumps(list(rows)).encode()}
        case _:
            return {"train.jsonl.gz": gzip.compress(jsonl(rows), mtime=0)}


class Maker:
    """Makes one dataset after the other."""

    def __init__(self, seed: int = 5, rows: int = 12) -> None:
        self._rows = rows
        self.world = World()
        self.shapes = _shapes()
        self.text = _Text(seed)
        queries = [q for c in load_categories(None, TARGET).categories for q in c.queries]
        self._names = [q.replace(" ", "-") for q in queries if TARGET not in q]
        self._n = 0

    def name(self, words: str = "") -> str:
        """Return an id that a search finds."""
        self._n += 1
        words = words or self._names[self._n % len(self._names)]
        return f"org{self._n % 7}/{words}-{self._n:03}"

    def pairs(self, n: int = 0) -> list[tuple[str, str]]:
        """Return questions with answers, as many as a dataset has."""
        n = n or self._rows
        return [(self.text.question(), self.text.answer()) for _ in range(n)]

    def add(
        self,
        shape: str,
        *,
        name: str = "",
        pairs: Sequence[tuple[str, str]] | None = None,
        columns: Row | None = None,
        card: str = "Made up for tests.",
        licence: str | None = "apache-2.0",
        truth: Truth | None = None,
        **repo: Any,
    ) -> str:
        """Add a dataset of a shape; return its id."""
        found = name or self.name()
        rows = [self.shapes[shape](q, a) | (columns or {}) for q, a in pairs or self.pairs()]
        header: Row = {"license": licence} if licence else {}
        files = _files(rows, self._n) | {"README.md": f"---\nx: y\n---\n{card}\n".encode()}
        made: Row = {
            "card": header,
            "files": files,
            "downloads": 1000 + self._n,
            "viewer": [{"config": "default", "split": "train", "num_rows": len(rows)}],
        }
        self.world.repos[found] = HubRepo(**{**made, **repo})
        readers = frozenset(SAME_READERS.get(shape, {shape}))
        self.world.truths[found] = truth or Truth(readers)
        return found

    def truth(self, shape: str, **changes: Any) -> Truth:
        """Return the truth of a dataset of a shape with something special."""
        return Truth(frozenset(SAME_READERS.get(shape, {shape})), **changes)


def make_world(seed: int = 5, plain: int = 5, rows: int = 12) -> World:
    """Return the datasets: `plain` of each shape have nothing special, each has `rows`."""
    maker = Maker(seed, rows)
    for shape in maker.shapes:
        for _ in range(plain):
            maker.add(shape)
    _add_natives(maker)
    _add_copies(maker)
    _add_licences(maker)
    _add_swapped(maker)
    _add_broken(maker)
    return maker.world


def _add_natives(maker: Maker) -> None:
    claims = (
        "All answers were generated by Kimi-K2.5 with thinking on.",
        "Responses sampled from moonshotai/Kimi-K2.5 at temperature 1.",
        "Traces distilled from Kimi K2.5.",
    )
    for i in range(9):
        kind = ("openai", "instruction", "sharegpt")[i % 3]
        own = maker.truth(kind, native=True)
        model = ("kimi-k2.5", "moonshotai/Kimi-K2.5", "Kimi-K2.5-Instruct")[i % 3]
        maker.add(kind, columns={"model": model}, truth=own)
        maker.add(kind, card=claims[i % 3], truth=own)
        if i % 3 == 0:
            maker.add(kind, name=maker.name("kimi-k2.5-traces"), truth=own)
    others: tuple[tuple[str, dict[str, Any]], ...] = (
        ("kimi-k2.5-style", {"columns": {"model": "gpt-4o"}}),
        ("", {"card": "Answers were generated by Kimi-K2, not by later models."}),
        ("", {"card": "Harder than Kimi-K2.5 likes. Answers were written by people."}),
        ("", {"card": "Answers generated with llama, compared with Kimi-K2.5."}),
        ("kimi-k2.5-eval-prompts", {}),
        ("", {"columns": {"model": "moonshotai/Kimi-K2.55"}}),
        ("", {"columns": {"teacher_model": "Kimi-K2"}}),
    )
    for name, changes in others:
        found = maker.name(name)
        maker.add("openai", name=found, **changes)


def _add_copies(maker: Maker) -> None:
    for i, shape in enumerate(("openai", "alpaca", "sharegpt", "ultrachat-200k", "prompt") * 3):
        pairs = maker.pairs()
        first = maker.add(shape, pairs=pairs, downloads=500_000)
        match i % 3:
            case 0:  # the same rows in other columns
                other, again = "magicoder-evol-instruct", pairs
            case 1:  # written otherwise
                other, again = shape, [(f"  {q.upper()} ", a) for q, a in pairs]
            case _:  # a word changed in each
                other, again = shape, [(q.replace("How", "Say how"), a) for q, a in pairs]
        maker.add(other, pairs=again, downloads=3, truth=maker.truth(other, copy_of=first))


def _add_licences(maker: Maker) -> None:
    for i in range(5):
        maker.add(
            "openai",
            licence="mit",
            card="Free for non-commercial use only. Ask us else.",
            truth=maker.truth("openai", flags=frozenset({"non-commercial", "conflict"})),
        )
        maker.add("alpaca", licence=None, truth=maker.truth("alpaca", flags=frozenset({"missing"})))
        tag = ("cc-by-nc-4.0", "cc-by-nc-sa-4.0")[i % 2]
        flags = {"non-commercial"} | ({"share-alike"} if i % 2 else set())
        maker.add("prompt", licence=tag, truth=maker.truth("prompt", flags=frozenset(flags)))
    maker.add("prompt", licence="other", truth=maker.truth("prompt", flags=frozenset({"unknown"})))


def _add_swapped(maker: Maker) -> None:
    for shape in ("openai", "alpaca", "sharegpt", "instruction") * 2:
        turned = [(a, q) for q, a in maker.pairs()]
        maker.add(shape, pairs=turned, truth=maker.truth(shape, swapped=True))


def _add_broken(maker: Maker) -> None:
    def broken(problem: str, n: int = 3, **repo: Any) -> None:
        for _ in range(n):
            flags = frozenset({"gated"} if problem == "gated" else ())
            maker.add("openai", truth=Truth(problem=problem, flags=flags), **repo)

    broken("gated", gated="auto")
    broken("gone", gone=True)
    broken("broken", files={"data/train-00000-of-00001.parquet": b"PAR1 is not what this is PAR1"})
    broken("empty", files={"train.jsonl": b"\n\n"})
    broken("no_files", files={"pictures/cat.png": b"\x89PNG"})
    broken("no_reader", files={"train.jsonl": jsonl([{"x": i, "label": "cat"} for i in range(9)])})
    for kind in ({"viewer": None}, {"faults": [503]}, {"faults": [429]}):
        for _ in range(3):
            maker.add("openai", **kind)
    for _ in range(3):
        wrong: Row = {
            "license": "mit",
            "configs": [{"config_name": "default", "data_files": "gone/*.parquet"}],
            "dataset_info": {"splits": [{"name": "train", "num_examples": 5_000_000}]},
        }
        maker.world.repos[maker.add("openai")].card = wrong
