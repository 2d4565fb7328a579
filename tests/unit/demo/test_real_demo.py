"""The real model and the real data, when this machine has them already; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagled.demo.convert import TEMPLATE, demo_model, is_complete, verify_model
from eagled.demo.data import DemoDataset, benchmark_prompts, demo_datasets
from eagled.demo.fetch import PACKAGES, SMOLLM2, cache_dir, fetch_package
from tests.unit.demo.gguf_oracle import differences

MODEL = cache_dir() / "models" / "SmolLM2-135M-Instruct-v1"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def _cached() -> bool:
    folders = [cache_dir() / "packages" / f"{p.name}-{p.version}" for p in PACKAGES]
    return is_complete(MODEL) and all(folder.is_dir() for folder in folders)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _cached(), reason="the demo's downloads are not in the cache"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The real model's tokenizer."""
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def datasets(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> list[DemoDataset]:
    """The demo's datasets, measured by the real tokenizer."""
    out = tmp_path_factory.mktemp("datasets")
    return demo_datasets(cache_dir(), out, lambda text: len(tokenizer(text)["input_ids"]))


def test_real_model_equals_the_other_reader() -> None:
    """Some tensors of each kind of the real model equal transformers' dequantised reading."""
    folder = demo_model(cache_dir())
    gguf_file = fetch_package(SMOLLM2, cache_dir())[Path(SMOLLM2.files[0].path).name]
    verify_model(folder)

    assert [] == differences(gguf_file, folder, every=31)


@pytest.mark.parametrize(
    "template", [None, TEMPLATE.read_text(encoding="utf-8")], ids=["own", "override"]
)
def test_real_model_knows_the_capital(tokenizer: Any, template: str | None) -> None:
    """Greedy, with its own template and with ours, the real model answers and stops."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    prompt = tokenizer.apply_chat_template(
        FRANCE, chat_template=template, add_generation_prompt=True, return_dict=True,
        return_tensors="pt",
    )  # fmt: skip
    ids = model.generate(**prompt, do_sample=False, temperature=None, top_p=None, max_new_tokens=16)

    answer = tokenizer.decode(ids[0][prompt["input_ids"].shape[1] :])
    assert "The capital of France is Paris.<|im_end|>" == answer


def test_tokenizer_has_the_markers_and_splits_digits(tokenizer: Any) -> None:
    """Chat markers have the file's ids, digits are one token each, any text comes back."""
    text = "In 1984,  12 naïve cafés 日本 🙂\n\tdef f(x): return x"

    assert [1, 2, 0] == tokenizer.convert_tokens_to_ids(
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    )
    assert [1, 2] == tokenizer("<|im_start|><|im_end|>")["input_ids"]
    assert list("1984") == tokenizer.tokenize("1984")
    assert text == tokenizer.decode(tokenizer(text)["input_ids"])


def test_prompts_have_the_promised_lengths(datasets: list[DemoDataset], tokenizer: Any) -> None:
    """Rendered with the demo's template: short prompts under 300 tokens, long over 2,048."""
    lengths = {d.name: [_rendered_length(row, tokenizer) for row in _rows(d)] for d in datasets}
    short = lengths["chat"] + lengths["tools"] + lengths["code"]

    assert 300 >= max(short)
    assert (True, True) == (min(lengths["long"]) > 2048, max(lengths["long"]) < 6000)
    assert 48 <= sum(d.n_turns for d in datasets if d.name != "long")


def _rows(dataset: DemoDataset) -> list[dict[str, Any]]:
    """Return the rows as messages (all but the last answer) and tools."""
    if dataset.path.suffix == ".parquet":
        texts = pq.read_table(dataset.path).column("instruction").to_pylist()
        return [{"messages": [{"role": "user", "content": text}]} for text in texts]
    rows = [orjson.loads(line) for line in dataset.path.read_bytes().splitlines()]
    roles = {"human": "user", "gpt": "assistant"}
    for row in rows:
        if turns := row.get("conversations"):
            row["messages"] = [
                {"role": roles[t["from"]], "content": t["value"]} for t in turns[:-1]
            ]
    return rows


def _rendered_length(row: dict[str, Any], tokenizer: Any) -> int:
    rendered = tokenizer.apply_chat_template(
        row["messages"],
        tools=row.get("tools"),
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        add_generation_prompt=True,
        return_dict=True,
    )
    return len(rendered["input_ids"])


def test_benchmark_is_held_out(datasets: list[DemoDataset], tmp_path: Path) -> None:
    """None of MT-bench's 80 questions is in a dataset."""
    questions = orjson.loads(benchmark_prompts(cache_dir(), tmp_path).read_bytes())
    asked = {
        message["content"] for d in datasets for row in _rows(d) for message in row["messages"]
    }

    assert 80 == len(set(questions))
    assert set() == asked & set(questions)
