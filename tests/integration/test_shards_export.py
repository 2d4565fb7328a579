"""Exports: what other tools read back is what the shards and the corpus hold."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagled.errors import ArtifactError
from eagled.prepared import conversation_of
from eagled.shards import ShardDataset
from eagled.shards.format import StatesSample
from eagled.text.replay import read_body
from eagled.train.corpus import Corpus
from eagled.workers.export import export_specforge, export_speculators
from eagled.workers.export_text import export_messages, export_parquet
from eagled.workers.merge import merge_corpus
from eagled.workers.prepare import prepare_all
from tests.prep_kit import (
    CLOSE_THINK,
    IM_END,
    any_lane,
    lines_of,
    toy_config,
    toy_renderer,
    write_jsonl,
)
from tests.unit.shards.helpers import HIDDEN, LAYERS, sample, write_shard
from tests.unit.train.helpers import Answer, Answers, make_corpus

PEERS = Path(__file__).parents[2] / ".peers-venv"
peers = pytest.mark.skipif(not (PEERS / ".ready").exists(), reason="needs `make peers-env`")


def shards(folder: Path) -> tuple[Corpus, list[StatesSample], ShardDataset]:
    """Freeze three answers of different length, with states, and open them."""
    answers = [Answer("a", [1, 2, 3], [4, 5, 6, n][: 2 + n]) for n in range(3)]
    corpus = make_corpus(folder, answers)
    items = []
    for row in corpus.rows():
        made = sample(row.input_ids.size, 3, len(row.input_ids) - 3)
        ids = row.input_ids.astype(np.int32)
        items.append(dataclasses.replace(made, uid=row.uid, input_ids=ids))
    write_shard(folder / "shards", items)
    return corpus, items, ShardDataset.from_folder(folder / "shards", corpus=corpus)


def bf16(bits: Any) -> torch.Tensor:
    """Return bits as a tensor."""
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)


def check_rows(item: StatesSample, ids: Any, mask: Any, aux: Any, last: Any) -> None:
    """Assert that rows are those of a sample less its last token."""
    n = len(item.input_ids) - 1
    assert ids.tolist() == item.input_ids[:n].tolist()
    assert mask.tolist() == item.loss_mask[:n].tolist()
    assert torch.equal(aux, bf16(item.aux))
    assert torch.equal(last[torch.from_numpy(item.last_positions).long()], bf16(item.last))
    kept = set(item.last_positions.tolist())
    assert all(not last[j].any() for j in range(n) if j not in kept)


def test_specforge_files(tmp_path: Path) -> None:
    """One pickle a sample with their four keys; the note says what they are."""
    _, items, dataset = shards(tmp_path)
    result = export_specforge(dataset, tmp_path / "out")
    files = sorted((tmp_path / "out").rglob("*.ckpt"))

    assert (result.samples, result.tokens) == (3, sum(len(i.input_ids) - 1 for i in items))
    assert [f.relative_to(tmp_path / "out").as_posix() for f in files] == [
        f"rows_0-2000/data_{i}.ckpt" for i in range(3)
    ]
    for item, file in zip(items, files, strict=True):
        raw = torch.load(file, weights_only=True)
        check_rows(item, raw["input_ids"], raw["loss_mask"], raw["aux_hidden_state"][0],
                   raw["hidden_state"][0])  # fmt: skip
    note = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert note["uids"] == [i.uid for i in items]
    assert "[1, 3, 4]" in note["notes"][0]  # layers 2, 4, 5 enter; their outputs are one less


def target(folder: Path) -> Path:
    """Write a model folder that has only the weight of its final norm."""
    folder.mkdir()
    weight = torch.linspace(0.5, 2.0, HIDDEN, dtype=torch.bfloat16)
    save_file({"model.norm.weight": weight}, folder / "model.safetensors")
    return folder


def test_speculators_files_give_the_state_back_after_their_norm(tmp_path: Path) -> None:
    """With the norm's weight divided out, RMS norm and weight restore what the shard has."""
    _, items, dataset = shards(tmp_path)
    rms_one = []
    for item in items:  # states that a norm has left: their quotient by the weight has RMS 1
        weight = torch.linspace(0.5, 2.0, HIDDEN, dtype=torch.bfloat16).float()
        plain = bf16(item.last).float() / weight
        normed = (plain / plain.square().mean(-1, keepdim=True).sqrt() * weight).bfloat16()
        rms_one.append(
            dataclasses.replace(item, last=normed.view(torch.int16).numpy().view(np.uint16))
        )
    write_shard(tmp_path / "normed", rms_one)
    dataset = ShardDataset(sorted((tmp_path / "normed").glob("*.safetensors")))
    export_speculators(dataset, tmp_path / "out", target(tmp_path / "target"))
    table = datasets.load_from_disk(str(tmp_path / "out"))

    assert table.column_names == ["input_ids", "loss_mask", "seq_len"]
    for i, item in enumerate(rms_one):
        raw = load_file(tmp_path / "out" / "hidden_states" / f"hs_{i}.safetensors")
        assert raw["hidden_states"].shape == (len(item.input_ids) - 1, len(LAYERS) + 1, HIDDEN)
        assert table[i]["input_ids"].tolist() == raw["token_ids"].tolist()
        x = raw["hidden_states"][:, -1].float()
        back = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        places = torch.from_numpy(item.last_positions).long()
        assert torch.allclose(back[places], bf16(item.last).float(), rtol=2e-2, atol=2e-2)


def test_speculators_without_a_weight_says_so(tmp_path: Path) -> None:
    """States stay as they are, and the note tells what a training script has to do."""
    _, items, dataset = shards(tmp_path)
    result = export_speculators(dataset, tmp_path / "out", None)
    raw = load_file(tmp_path / "out" / "hidden_states" / "hs_0.safetensors")
    states = raw["hidden_states"]

    assert "Identity" in result.notes[-1]
    table = datasets.load_from_disk(str(tmp_path / "out"))
    check_rows(items[0], raw["token_ids"], table[0]["loss_mask"], states[:, :-1].flatten(1),
               states[:, -1])  # fmt: skip


def test_an_export_is_whole_or_not_there(tmp_path: Path) -> None:
    """An existing folder is not touched; a failure leaves nothing."""
    _, _, dataset = shards(tmp_path)
    export_specforge(dataset, tmp_path / "out")
    with pytest.raises(ArtifactError, match="exists"):
        export_specforge(dataset, tmp_path / "out")

    def fail(done: int, _total: int) -> None:
        assert done < 2

    with pytest.raises(AssertionError):
        export_specforge(dataset, tmp_path / "other", progress=fail)
    assert not list(tmp_path.glob("other*"))


def test_shards_without_final_states_are_refused(tmp_path: Path) -> None:
    """A trainer that needs them is not given zeros."""
    write_shard(tmp_path / "s", [sample(1, last="none")], "none")
    dataset = ShardDataset.from_folder(tmp_path / "s")

    with pytest.raises(ArtifactError, match="keep no final states"):
        export_specforge(dataset, tmp_path / "out")


SPECFORGE = """
import json, sys, torch
from specforge.algorithms.eagle3.data import normalize_offline_sample
from specforge.runtime.data_plane.feature_store import load_feature_file
from specforge.runtime.data_plane.offline_reader import OfflineManifestReader, list_feature_files
from specforge.training.vocab_mapping import count_effective_feature_tokens
refs = list(OfflineManifestReader(sys.argv[1], validate_files=True).read())
files = list_feature_files(sys.argv[1])
rows = [normalize_offline_sample(load_feature_file(path), 2048) for path in files]
print(json.dumps({
    "refs": len(refs),
    "shapes": [[list(r["hidden_state"].shape), list(r["target"].shape)] for r in rows],
    "ids": [r["input_ids"][0].tolist() for r in rows],
    "counts": sum(count_effective_feature_tokens(sys.argv[1]).values()),
}))
"""
SPECULATORS = """
import json, sys, warnings
from speculators.train.data import ArrowDataset
warnings.simplefilter("error")
data = ArrowDataset(2048, sys.argv[1], on_missing="raise")
rows = [data[i] for i in range(len(data))]
print(json.dumps({
    "lengths": data.approx_lengths,
    "ids": [r["input_ids"].tolist() for r in rows],
    "mask": [r["loss_mask"].tolist() for r in rows],
    "shapes": [[list(r["hidden_states"].shape), list(r["verifier_last_hidden_states"].shape)]
               for r in rows],
}))
"""


def ask(code: str, folder: Path) -> dict[str, Any]:
    """Run code in the peers' environment and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, folder],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(PEERS), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@peers
@pytest.mark.slow
def test_specforge_reads_its_files(tmp_path: Path) -> None:
    """SpecForge's own manifest reader, normaliser and token counter take every file."""
    _, items, dataset = shards(tmp_path)
    export_specforge(dataset, tmp_path / "out")
    told = ask(SPECFORGE, tmp_path / "out")

    assert told["refs"] == 3
    assert told["ids"] == [i.input_ids[:-1].tolist() for i in items]
    assert told["shapes"] == [
        [[1, len(i.input_ids) - 1, len(LAYERS) * HIDDEN], [1, len(i.input_ids) - 1, HIDDEN]]
        for i in items
    ]
    assert 0 < told["counts"] <= sum(int(i.loss_mask[:-1].sum()) for i in items)


@peers
@pytest.mark.slow
def test_speculators_reads_its_files(tmp_path: Path) -> None:
    """The dataset of speculators gives every sample, none skipped, with our ids and masks."""
    _, items, dataset = shards(tmp_path)
    export_speculators(dataset, tmp_path / "out", target(tmp_path / "target"))
    told = ask(SPECULATORS, tmp_path / "out")

    assert told["lengths"] == [len(i.input_ids) - 1 for i in items]
    assert told["ids"] == [i.input_ids[:-1].tolist() for i in items]
    assert told["mask"] == [i.loss_mask[:-1].tolist() for i in items]
    assert told["shapes"] == [
        [[len(i.input_ids) - 1, len(LAYERS) * HIDDEN], [len(i.input_ids) - 1, HIDDEN]]
        for i in items
    ]


def prepared_run(folder: Path) -> tuple[Any, Corpus, list[dict[str, Any]]]:
    """Prepare a conversation of two questions, and freeze a generated answer to each."""
    talk = [
        {"role": "user", "content": "What is two and two, please?"},
        {"role": "assistant", "content": "recorded, to be replaced"},
        {"role": "user", "content": "And one more than that?"},
        {"role": "assistant", "content": "recorded as well"},
    ]
    config = toy_config(folder / "state", write_jsonl(folder / "d.jsonl", {"messages": talk}))
    prepare_all(config, ())
    line = lines_of(folder / "state" / "datasets" / "d")[0]
    renderer = toy_renderer()
    answers = []
    for turn, text in enumerate(("It is four.", "Five.")):
        said = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        output = [CLOSE_THINK, *said, IM_END]  # the toy's prompt opens a think block
        prompt = line["turns"][0]["prompt_ids"]
        answers.append(Answer("d", prompt, output, turn=turn, talk=bytes.fromhex(line["uid"])))
    corpora = folder / "state" / "corpora"
    frozen = merge_corpus(Answers(answers), corpora, holdout=0.0, seed=0, provenance={}).corpus
    return config, frozen, talk


def test_conversations_with_their_generated_answers(tmp_path: Path) -> None:
    """Recorded questions, generated answers, as `datasets` and our own prep read them."""
    config, corpus, talk = prepared_run(tmp_path)
    result = export_messages(config, corpus, toy_renderer(), tmp_path / "out")
    lines = (tmp_path / "out" / "messages.jsonl").read_text(encoding="utf-8").splitlines()
    messages = json.loads(lines[0])["messages"]

    assert (result.samples, len(lines), result.notes) == (1, 1, ())
    assert [(m["role"], m["content"]) for m in messages] == [
        ("user", talk[0]["content"]), ("assistant", "It is four."),
        ("user", talk[2]["content"]), ("assistant", "Five."),
    ]  # fmt: skip
    path = str(tmp_path / "out" / "messages.jsonl")
    loaded = datasets.Dataset.from_json(path, cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["messages"][1]["content"] == "It is four."
    line = lines_of(tmp_path / "state" / "datasets" / "d")[0]
    body = conversation_of(json.dumps(line).encode(), lane_of=any_lane).body
    assert body is not None
    assert len(read_body(body).targets) == 2
    # and back: as a native dataset they give the same messages, with answers to train on
    again = toy_config(tmp_path / "again", path, dataset={"mode": "native"})
    prepare_all(again, ())
    (native,) = lines_of(tmp_path / "again" / "datasets" / "d")
    answers = [toy_renderer().decode(turn["output_ids"]) for turn in native["turns"]]
    assert native["messages"] == messages
    assert ["It is four." in answers[0], "Five." in answers[1]] == [True, True]


def test_parquet_has_ids_masks_and_text(tmp_path: Path) -> None:
    """Ids as frozen, mask on the answer only, text as the tokenizer decodes it; no states."""
    _, corpus, _ = prepared_run(tmp_path)
    export_parquet(corpus, toy_renderer(), tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "data.parquet").to_pylist()

    for row, frozen in zip(table, corpus.rows(), strict=True):
        assert row["input_ids"] == frozen.input_ids.tolist()
        assert row["loss_mask"] == [int(i >= frozen.n_prompt) for i in range(len(row["input_ids"]))]
        assert any(text in row["answer"] for text in ("It is four.", "Five."))
        assert "two and two" in row["prompt"]
