"""From corpus and shards to a draft by the commands, and that draft in a reader of its own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from eagled.cli import app
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.shards.backend_transformers import TransformersBackend
from eagled.train.accept import chains_of, first_guesses, walk
from eagled.train.data import MemorySource, load_pack
from eagled.train.export import weights_of
from eagled.train.greedy import GreedyAnswer, sample_of
from eagled.train.model import DraftHead
from eagled.train.teacher import load_teacher
from eagled.train.trainer import teacher_view
from tests.independent_draft import IndependentDraft
from tests.train_kit import HELD_OUT, LAYERS, tiny_backend, training_state

GUESSES = 3


@dataclass(frozen=True)
class Made:
    """What `eagled train` left, and what it printed."""

    folder: Path
    model: Path
    backend: TransformersBackend
    answers: Sequence[GreedyAnswer]
    printed: Mapping[str, Any]

    @property
    def float32(self) -> Path:
        """The draft as it was trained; bfloat16 weights are another one."""
        return self.folder / "float32"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "state/drafts/first"

    def words(self, *args: str) -> list[str]:
        """Return a command with the run's configuration."""
        return [*args, "--config", str(self.folder / "eagled.toml")]


@pytest.fixture(scope="module", name="made")
def _made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("trained")
    backend = tiny_backend(tiny_model)
    answers = training_state(folder, tiny_model, backend)
    made = Made(folder, tiny_model, backend, answers, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed: list[object] = []
        patch.setattr("eagled.commands.train.say_json", printed.append)
        app(made.words("train", "--name", "first", "--json"), standalone_mode=False)
    words = ["draft", "export", "first", str(made.float32), "--dtype", "float32"]
    app(made.words(*words), standalone_mode=False)
    (told,) = printed
    assert isinstance(told, dict)
    return replace(made, printed=told)


def test_train_says_what_it_did(made: Made) -> None:
    """All steps, a draft, a report, and a held-out estimate before and after."""
    told = made.printed

    assert (True, told["total"]) == (told["finished"], told["step"])
    assert str(made.run / "draft") == told["draft"]
    assert 3 == told["after"]["samples"]
    assert {"set0", "set1"} == set(told["after"]["datasets"])
    assert 1 <= told["before"]["length"] <= GUESSES + 1


def test_train_again_does_nothing_more(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished run stays as it is: the same command reads it and trains no further step."""
    before = (made.run / "metrics.jsonl").read_bytes()
    app(made.words("train", "--name", "first"), standalone_mode=False)

    assert before == (made.run / "metrics.jsonl").read_bytes()
    assert f"report: {made.run / 'report.html'}" in capsys.readouterr().out


def test_a_stream_needs_a_length_and_a_daemon(made: Made) -> None:
    """Without train.max_steps it is a mistake of the configuration; without a daemon exit 69."""
    words = made.words("train", "--stream", "--name", "ring")
    with pytest.raises(ConfigError, match=r"train\.max_steps"):
        app(words, standalone_mode=False)
    with pytest.raises(UnreachableError) as caught:
        app([*words, "--set", "train.max_steps=5"], standalone_mode=False)

    assert 69 == caught.value.exit_code


def test_a_corpus_run_is_not_gone_on_with_from_a_stream(made: Made) -> None:
    """The draft of a corpus is refused by name, before the daemon is asked."""
    words = made.words("train", "--stream", "--name", "first", "--set", "train.max_steps=5")
    with pytest.raises(ArtifactError, match="without --stream"):
        app(words, standalone_mode=False)


def test_the_report_is_one_page_with_everything(made: Made) -> None:
    """Loss, agreement by step, acceptance, coverage and learning rate; nothing from elsewhere."""
    page = (made.run / "report.html").read_text(encoding="utf-8")

    for heading in (
        "The run", "Held-out acceptance (an estimate)", "Training", "Draft vocabulary",
        "Learning rate", "Loss", "step of training-time test", "tokens a verify step",
    ):  # fmt: skip
        assert heading in page, heading
    assert page.count("<svg") + page.count("data:image/") >= 4
    assert [] == re.findall(r'(?:src|href)="https?://', page)


def test_the_export_passes_its_own_check(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """`eagled draft check` finds nothing, `--json` prints an empty list."""
    app(made.words("draft", "check", str(made.run / "draft"), "--json"), standalone_mode=False)

    assert [] == json.loads(capsys.readouterr().out)


def test_a_spoilt_draft_is_explained_and_is_exit_1(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config of another draft vocabulary: what is wrong stands on a line, the code is 1."""
    spoilt = shutil.copytree(made.run / "draft", tmp_path / "spoilt")
    config = json.loads((spoilt / "config.json").read_text())
    (spoilt / "config.json").write_text(json.dumps(config | {"draft_vocab_size": 16}))
    code = app(made.words("draft", "check", str(spoilt)), standalone_mode=False)

    assert ArtifactError.exit_code == code
    assert "error: lm_head.weight is [300, 64], the config asks for [16, 64]" in (
        capsys.readouterr().out
    )


def test_the_estimate_command_walks_both_drafts(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    """Greedy answers to the file's prompts, each counted once; the words say estimate."""
    words = ["draft", "estimate", "first", str(made.folder / "asked.json"), "--count", "2",
             "--max-new-tokens", "16"]  # fmt: skip
    app(made.words(*words, "--json"), standalone_mode=False)
    told = json.loads(capsys.readouterr().out)

    assert ("estimate", 2) == (told["kind"], told["asked"])
    assert 2 == told["answers"] + told["looping"] + told["short"]
    assert told["before"]["tokens"] == told["after"]["tokens"]


@pytest.mark.parametrize(("engine", "layer"), [("sglang", "midlayer."), ("vllm", "layers.0.")])
def test_both_layouts_are_one_draft_to_a_reader_of_its_own(
    made: Made, tmp_path: Path, engine: str, layer: str
) -> None:
    """A reader that shares no code with ours loads the folder alone; names differ, guesses not."""
    out = tmp_path / "draft"
    words = ["draft", "export", "first", str(out), "--engine", engine, "--dtype", "float32"]
    app(made.words(*words), standalone_mode=False)
    embed = load_teacher(made.model).embed
    ids, n_prompt = (made.answers[0].ids, made.answers[0].n_prompt)
    found = [
        IndependentDraft.load(folder, embed, GUESSES).guesses(
            ids[: n_prompt + 1], aux_of(made.backend, ids[:n_prompt])
        )
        for folder in (out, made.float32)
    ]
    with safe_open(out / "model.safetensors", "pt") as file:
        names = set(file.keys())

    assert f"{layer}self_attn.q_proj.weight" in names
    assert found[0] == found[1]
    assert GUESSES == len(found[0])


def test_walking_an_answer_counts_what_draft_and_verify_does(made: Made) -> None:
    """Chain speculation, literally: the plain target's output, and the verify steps of `walk`."""
    draft = IndependentDraft.load(made.float32, load_teacher(made.model).embed, GUESSES)
    right: list[int] = []
    for answer in made.answers[HELD_OUT - 2 : HELD_OUT + 2]:  # two held out, two trained on
        output, steps = speculate(made, draft, answer.ids[: answer.n_prompt], answer.n_answer)
        right += [step[-1] for step in steps]

        assert list(answer.ids) == output
        assert walked(made, answer) == steps
    assert {0, 1} <= set(right), "a draft that is always right, or never, shows nothing here"


@torch.no_grad()
def aux_of(backend: TransformersBackend, ids: Sequence[int]) -> torch.Tensor:
    """Return the aux states [T, L*D] of one pass, as shards hold them: in bfloat16."""
    out = backend.model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return torch.cat([out.hidden_states[k][0] for k in LAYERS], -1).bfloat16().float()


@torch.no_grad()
def target_choices(backend: TransformersBackend, ids: Sequence[int]) -> list[int]:
    """Return the target's first choice behind each position."""
    logits = backend.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return [int(token) for token in logits.argmax(-1)]


def speculate(
    made: Made, draft: IndependentDraft, prompt: Sequence[int], n: int
) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Return prompt and answer of chain speculation, and its verify steps as `walk` gives them."""
    ids = [*prompt, target_choices(made.backend, prompt)[-1]]  # the prefill makes the first token
    end, steps = len(prompt) + n, []
    while len(ids) < end:
        left = end - len(ids)
        guessed = draft.guesses(ids, aux_of(made.backend, ids[:-1]))
        chosen = target_choices(made.backend, [*ids, *guessed])[len(ids) - 1 :]
        right = 0
        while right < min(GUESSES, left) and guessed[right] == chosen[right]:
            right += 1
        tried = min(right + 1, GUESSES, left)
        steps.append((len(ids) - len(prompt) - 1, min(right + 1, left), tried, right))
        ids = [*ids, *chosen[: right + 1]][:end]
    return ids, steps


def _loaded(made: Made, answer: GreedyAnswer) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Return an answer's batch, the head's guesses on it, and the draft's ids."""
    trained = weights_of(made.run)
    head = DraftHead(trained.geometry)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            weight.copy_(trained.weights[name])
    ids = torch.arange(len(trained.d2t)) + trained.d2t
    view = teacher_view(load_teacher(made.model), ids, torch.device("cpu"), torch.float32)
    source = MemorySource([sample_of(made.backend, answer, name="d", uid="0" * 32)])
    loaded = load_pack(source, (0,), steps=GUESSES, max_tokens=0)
    assert loaded is not None
    batch = loaded.to(torch.device("cpu"), torch.float32)
    return batch, first_guesses(head, batch, view, GUESSES), ids


def walked(made: Made, answer: GreedyAnswer) -> list[tuple[int, int, int, int]]:
    """Return the verify steps that the estimate counts on an answer."""
    batch, guesses, ids = _loaded(made, answer)
    (hits,) = chains_of(batch, guesses, ids, GUESSES)
    return walk(hits, GUESSES)
