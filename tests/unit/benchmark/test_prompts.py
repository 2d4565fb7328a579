"""What is asked: the target's own template, held-out samples as they are, the same for all."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eagled.benchmark.measure import rounds
from eagled.benchmark.prompts import PromptSet, Wanted, Workload, make_workload
from eagled.config import Config
from eagled.errors import ArtifactError, ConfigError
from eagled.sampling import ResolvedSampling
from eagled.text.render import Renderer
from tests.faults import fault_file, fault_row
from tests.toy import TOY, load_toy_tokenizer
from tests.unit.train.helpers import Answer, make_corpus

GREEDY = ResolvedSampling(0.0, 1.0, -1, 0.0, 32, None)


def config_of(state: Path) -> Config:
    """Return a configuration of the toy target."""
    return Config.model_validate({"target": {"model": str(TOY)}, "run": {"state_dir": str(state)}})


def workload(*prompts: tuple[int, ...], name: str = "d") -> Workload:
    """Return a greedy workload of one set."""
    return Workload((PromptSet(name, prompts),), GREEDY, "t")


@pytest.mark.fault("F03")
def test_prompts_go_through_the_targets_own_template(tmp_path: Path) -> None:
    """The ids are those of the template of the fault's input, markers and all; no USER: form."""
    template = fault_file("toy/chat_template.jinja").read_text(encoding="utf-8")
    tokenizer = load_toy_tokenizer()
    tokenizer.chat_template = template
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(["What is two and two?"]))
    found = make_workload(
        config_of(tmp_path), Renderer(tokenizer), Wanted([file], 8, holdout=False), GREEDY
    )
    text = tokenizer.decode(found.sets[0].prompts[0])

    assert text == tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is two and two?"}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    assert "<|im_user|>" in text
    assert "USER:" not in text


@pytest.mark.fault("F03")
def test_a_target_without_a_template_is_an_error(tmp_path: Path) -> None:
    """Nothing generic takes its place."""
    assert "a missing template is an error" in fault_row("F03")["expect"]
    model = tmp_path / "model"
    shutil.copytree(TOY, model, ignore=shutil.ignore_patterns("*.jinja"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    config = Config.model_validate({"target": {"model": str(model)}})

    with pytest.raises(ConfigError, match="no chat template"):
        Renderer.load(config.target)


def test_prompts_that_do_not_fit_are_left_out_and_counted() -> None:
    """With answers of 32, a context of 40 takes prompts of 8, an input limit of 8 those of 7."""
    asked = workload((1,) * 7, (1,) * 8, (1,) * 9)

    assert 1 == asked.fitting(40, None).sets[0].too_long
    assert ((1,) * 7,) == asked.fitting(40, 8).sets[0].prompts
    assert asked == asked.fitting(None, None)
    with pytest.raises(ConfigError, match="no prompt fits"):
        asked.fitting(33, None)


def test_loops_are_left_out_and_nothing_but_loops_is_an_error() -> None:
    """The prompt is left out by its ids and its set."""
    asked = workload((1, 2), (3, 4))
    left = asked.without({"d": {(1, 2)}, "other": {(3, 4)}})

    assert (((3, 4),), 1) == (left.sets[0].prompts, left.sets[0].looping)
    with pytest.raises(ArtifactError, match="every answer loops"):
        asked.without({"d": {(1, 2), (3, 4)}})


@pytest.mark.fault("F93")
def test_the_digest_tells_what_was_asked() -> None:
    """Other prompts, template or sampling have another digest, so they are never compared."""
    assert json.loads(fault_file("bench/accept.json").read_text(encoding="utf-8"))
    asked = workload((1, 2))
    others = [
        workload((1, 3)), workload((1, 2), name="e"), replace(asked, template="u"),
        replace(asked, sampling=replace(GREEDY, temperature=0.7)),
    ]  # fmt: skip

    assert workload((1, 2)).digest == asked.digest
    assert 5 == len({asked.digest, *(other.digest for other in others)})


def test_a_pass_asks_at_least_twice_as_many_as_run_at_once() -> None:
    """Three prompts at four at once are asked three times, each request with an id of its own."""
    asked = rounds(workload((1,), (2,), (3,)), 4)

    assert 9 == len(asked)
    assert 9 == len({request.rid for _, request in asked})
    assert 3 == len(rounds(workload((1,), (2,), (3,)), 1))


def test_sets_are_mixed() -> None:
    """A pass does not ask one data set after the other."""
    both = Workload(
        (PromptSet("a", ((1,), (2,))), PromptSet("b", ((3,), (4,), (5,), (6,)))), GREEDY, "t"
    )

    assert ["a", "b", "b", "a", "b", "b"] == [name for name, _ in both.requests()]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their numbers would be added up under one name."""
    files = [tmp_path / "x" / "asked.json", tmp_path / "y" / "asked.json"]
    for file in files:
        file.parent.mkdir()
        file.write_text('["hello"]')

    with pytest.raises(ConfigError, match="asked"):
        make_workload(
            config_of(tmp_path), Renderer(load_toy_tokenizer()), Wanted(files, 8, holdout=False),
            GREEDY,
        )  # fmt: skip


def test_held_out_samples_are_asked_with_the_ids_they_have(tmp_path: Path) -> None:
    """Of each dataset at most so many, prompts alone, once each; training samples never."""
    answers = [
        Answer("a", [1, 2, n], [9, 9], split="holdout" if n < 14 else "train")
        for n in range(10, 16)
    ]
    answers += [Answer("b", [7, 8], [9], split="holdout"), Answer("c", [5], [9])]
    make_corpus(tmp_path, answers)
    config = config_of(tmp_path)
    found = make_workload(
        config, Renderer(load_toy_tokenizer()), Wanted([], 3, holdout=True), GREEDY
    )

    assert ["a", "b"] == [s.name for s in found.sets]
    assert 3 == len(found.sets[0].prompts)
    assert set(found.sets[0].prompts) <= {(1, 2, n) for n in range(10, 14)}
    assert ((7, 8),) == found.sets[1].prompts


def test_a_run_without_anything_held_out_says_so(tmp_path: Path) -> None:
    """No corpus, and a corpus without a hold-out, each with what to do."""
    renderer, wanted = Renderer(load_toy_tokenizer()), Wanted([], 3, holdout=True)

    with pytest.raises(ArtifactError, match="eagled merge"):
        make_workload(config_of(tmp_path), renderer, wanted, GREEDY)
    make_corpus(tmp_path, [Answer("a", [1], [2])])
    with pytest.raises(ArtifactError, match=r"set merge\.holdout"):
        make_workload(config_of(tmp_path), renderer, wanted, GREEDY)
