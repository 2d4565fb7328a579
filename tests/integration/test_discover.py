"""`eagled discover` against a hub over HTTP: what it finds in 200 datasets, and what breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagled.cli import app
from eagled.config import Config
from eagled.config_load import load_config
from eagled.discover.facts import Facts
from eagled.discover.findings import Findings, read_findings
from eagled.discover.run import Options, discover
from eagled.errors import UsageError
from tests.discover_hub import Hub, HubRepo, running
from tests.discover_world import TARGET, Maker, World, jsonl, make_world
from tests.toy import TOY

_SAME = 0.5


def _config(state: Path, model: str = "/nowhere/at/all", **sections: Any) -> Config:
    """Return a configuration; its tokenizer is not there unless a model is given."""
    value: dict[str, Any] = {"run": {"state_dir": state}, "target": {"model": model}}
    return Config.model_validate({**value, **sections})


def _options(hub: Hub, **changes: Any) -> Options:
    made = Options(
        target=TARGET, endpoint=hub.url, viewer=f"{hub.url}/viewer", limit=100, wait_s=60
    )
    return replace(made, **changes)


def _quiet(_done: int, _known: int, _name: str) -> None:
    """Show nothing."""


def _facts(findings: Findings) -> dict[str, Facts]:
    return {item.facts.source: item.facts for item in findings.ranked}


@dataclass(frozen=True)
class _Run:
    world: World
    hub: Hub
    config: Config
    findings: Findings
    facts: dict[str, Facts]
    asked: int

    def good(self) -> list[str]:
        """Return the datasets that can be looked at."""
        return [name for name, truth in self.world.truths.items() if not truth.problem]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Run]:
    """Look at the whole world once, all categories side by side."""
    world = make_world()
    config = _config(tmp_path_factory.mktemp("state"))
    with running(world.repos) as hub:
        findings = discover(config, _options(hub), _quiet)
        asked = hub.asked.total()
        yield _Run(world, hub, config, findings, _facts(findings), asked)


def _score(what: str, predicted: set[Any], true: set[Any]) -> tuple[float, float]:
    """Print and return precision and recall."""
    hit = len(predicted & true)
    precision, recall = hit / len(predicted), hit / len(true)
    sys.stdout.write(f"{what}: precision {precision:.3f}, recall {recall:.3f} of {len(true)}\n")
    return precision, recall


def test_every_dataset_is_found_and_its_trouble_is_named(run: _Run) -> None:
    """Gated, gone, torn, empty: each is told as what it is, and hides nothing else."""
    expected = {name: truth.problem for name, truth in run.world.truths.items()}
    found = {name: run.facts[name].problem for name in run.world.truths if name in run.facts}

    assert expected == found
    assert not run.findings.failures


def test_readers_are_told_from_the_rows(run: _Run) -> None:
    """The reader comes from columns, not from names; all of the world's shapes are told."""
    predicted = {(name, run.facts[name].reader in run.world.truths[name].readers)
                 for name in run.good()}  # fmt: skip
    scores = _score("reader", predicted, {(name, True) for name in run.good()})

    assert (1.0, 1.0) == scores


def test_native_answers_are_told_from_claims(run: _Run) -> None:
    """A model column decides, a card counts, other versions and comparisons do not."""
    predicted = {name for name in run.good() if run.facts[name].native}
    true = {name for name in run.good() if run.world.truths[name].native}
    scores = _score("native", predicted, true)

    assert (1.0, 1.0) == scores


def test_copies_are_found_in_other_columns_and_other_words(run: _Run) -> None:
    """Renamed, reformatted and slightly edited copies overlap; nothing else does."""
    pairs = {
        frozenset((name, other))
        for name in run.good()
        for other, share in run.facts[name].overlap.items()
        if share >= _SAME
    }
    true = {frozenset((name, truth.copy_of))
            for name, truth in run.world.truths.items() if truth.copy_of}  # fmt: skip
    scores = _score("overlap", pairs, true)

    assert (1.0, 1.0) == scores


def test_licences_are_flagged(run: _Run) -> None:
    """Missing, non-commercial, contradicted by the card, gated."""
    expected = {name: run.world.truths[name].flags for name in run.good()}
    found = {name: set(run.facts[name].licence_flags) for name in run.good()}

    assert expected == found


def test_questions_in_the_answer_column_are_seen(run: _Run) -> None:
    """A dataset whose columns are swapped is told, and others are not."""
    true = {name for name, truth in run.world.truths.items() if truth.swapped}
    predicted = {name for name in run.good() if run.facts[name].swapped}

    assert true == predicted


def test_a_card_that_lies_is_noted_and_the_files_count(run: _Run) -> None:
    """A card that names other files and five million rows gives a note and the true count."""
    wrong = [name for name, repo in run.world.repos.items() if "configs" in repo.card]
    notes = [run.facts[name].notes for name in wrong]

    assert [12] * 3 == [run.facts[name].rows for name in wrong]
    assert all("match no file" in " ".join(note) for note in notes)
    assert all("5,000,000" in " ".join(note) for note in notes)


def test_the_proposed_mix_takes_no_copy_no_forbidden_and_no_broken_set(run: _Run) -> None:
    """What is proposed is usable, and everything else stands in the list with its reason."""
    config = _config(run.config.run.state_dir)
    findings = discover(config, _options(run.hub, goal=60, offline=True), _quiet)
    entries = [entry.source for entry in findings.choices[0].proposal.entries]
    truths = [run.world.truths[name] for name in entries]
    left_out = {item.source: item.why for item in findings.rejected}

    assert entries
    assert 60 == findings.choices[0].proposal.count
    assert not [t for t in truths if t.problem or t.swapped or "non-commercial" in t.flags]
    assert not [n for n in entries if run.world.truths[n].copy_of in entries]
    assert {*entries, *left_out} == set(run.facts)
    assert all(left_out.values())


def test_a_second_run_asks_nothing_and_finds_the_same(run: _Run) -> None:
    """The cache answers, offline as well; only the time of the report differs."""
    again = discover(run.config, _options(run.hub), _quiet)
    offline = discover(run.config, _options(run.hub, offline=True), _quiet)

    assert run.asked == run.hub.asked.total()
    assert run.findings == replace(again, at=run.findings.at)
    assert run.findings == replace(offline, at=run.findings.at)
    path = run.config.run.state_dir / "discover" / "findings.json"
    written = (offline.to_json(), read_findings(path).to_json())
    assert json.loads(json.dumps(written[0])) == json.loads(json.dumps(written[1]))


def test_ten_categories_search_at_the_same_time(tmp_path: Path) -> None:
    """The hub answers none of the ten first searches before all ten are there."""
    with running({}) as hub:
        hub.meet = 10
        findings = discover(_config(tmp_path), _options(hub), _quiet)

    assert () == findings.failures
    assert hub.most >= 10


def _one(maker: Maker | None = None, **repo: Any) -> dict[str, HubRepo]:
    """Return a hub of one dataset, which the category `review` finds."""
    maker = maker or Maker()
    maker.add("openai", name="some/code-review", **repo)
    return maker.world.repos


def _review(hub: Hub, **changes: Any) -> Options:
    return _options(hub, categories=("review",), **changes)


def test_a_pause_that_the_hub_asks_for_is_kept_by_all(tmp_path: Path) -> None:
    """HTTP 429 with a wish is waited for and asked again; one beyond all patience is not."""
    with running(_one(faults=[429, 429])) as hub:
        good = discover(_config(tmp_path / "a"), _review(hub), _quiet)
        hub.retry_after_s = "3600"
        hub.repos["some/code-review"].faults = [429]
        late = discover(_config(tmp_path / "b"), _review(hub), _quiet)

    assert "" == _facts(good)["some/code-review"].problem
    assert "timeout" == _facts(late)["some/code-review"].problem
    assert "pause" in _facts(late)["some/code-review"].detail


def test_what_may_pass_is_asked_again_by_the_next_run(tmp_path: Path) -> None:
    """A hub that is down costs its datasets their facts, not the run; the next run gets them."""
    with running(_one()) as hub:
        hub.repos["some/code-review"].faults = [503] * 3
        down = discover(_config(tmp_path), _review(hub), _quiet)
        up = discover(_config(tmp_path), _review(hub), _quiet)

    assert "unreachable" == _facts(down)["some/code-review"].problem
    assert "" == _facts(up)["some/code-review"].problem


def test_a_hub_that_is_down_is_a_report_not_a_crash(tmp_path: Path) -> None:
    """Searches that fail are named; the datasets that a category lists are reported as well."""
    with running({}) as hub:
        hub.down = True
        findings = discover(_config(tmp_path), _options(hub, categories=("coding",)), _quiet)

    assert {"unreachable"} == {facts.problem for facts in _facts(findings).values()}
    assert 2 == len(findings.failures)
    assert all("503" in failure for failure in findings.failures)


def test_no_hub_at_all_is_a_report_not_a_crash(tmp_path: Path) -> None:
    """Where nobody listens, each search and each listed dataset is told as unreachable."""
    options = Options(endpoint="http://127.0.0.1:9", categories=("coding",), target=TARGET)
    findings = discover(_config(tmp_path), options, _quiet)

    assert {"unreachable"} == {facts.problem for facts in _facts(findings).values()}
    assert "refused" in findings.failures[0]


def test_a_trickle_is_given_up_when_its_time_is_over(tmp_path: Path) -> None:
    """A file that comes byte by byte never ends a single read, so the time of the whole counts."""
    slow = HubRepo({"train.jsonl": b'{"prompt": "x"}\n' * 10_000}, drip=16)
    mine = [{"name": "d", "source": "some/set"}]  # needs no search, which has its own time
    with running({"some/set": slow}) as hub:
        config = _config(tmp_path, datasets=mine)
        findings = discover(config, _review(hub, timeout_s=0.5), _quiet)

    assert "timeout" == _facts(findings)["some/set"].problem


def test_a_body_that_breaks_off_is_reported(tmp_path: Path) -> None:
    """A connection that always breaks in the middle of the file is given up after some tries."""
    with running(_one(cut=100)) as hub:
        findings = discover(_config(tmp_path), _review(hub), _quiet)

    assert "unreachable" == _facts(findings)["some/code-review"].problem


def test_a_token_opens_what_is_gated(tmp_path: Path) -> None:
    """The token of the file goes along, and stands nowhere in what is written."""
    with running(_one(gated="auto")) as hub:
        file = tmp_path / "token"
        file.write_text(f"{hub.token}\n")
        file.chmod(0o600)
        closed = discover(_config(tmp_path / "a"), _review(hub), _quiet)
        opened = discover(_config(tmp_path / "b"), _review(hub, token_file=file), _quiet)
    facts = _facts(opened)["some/code-review"]
    written = b"".join(p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())

    assert "gated" == _facts(closed)["some/code-review"].problem
    assert ("", ("gated",)) == (facts.problem, tuple(facts.licence_flags))
    assert hub.token.encode() not in written


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """What was finished before the stop is not asked again, and the result is that of one run."""
    maker = Maker()
    for _ in range(16):
        maker.add("openai", name=maker.name("code-review"))
    seen: list[str] = []
    stop = threading.Lock()

    def until_five(_done: int, _known: int, name: str) -> None:
        with stop:
            seen.append(name)
            if len(seen) == 5:
                raise KeyboardInterrupt

    with running(maker.world.repos) as hub:
        with pytest.raises(KeyboardInterrupt):
            discover(_config(tmp_path / "a"), _review(hub), until_five)
        before = Counter(hub.asked)
        done = len(list((tmp_path / "a" / "discover" / "cache" / "facts").glob("*.json")))
        rest = discover(_config(tmp_path / "a"), _review(hub), _quiet)
        infos = [n for (what, _), n in (hub.asked - before).items() if what == "info"]
        whole = discover(_config(tmp_path / "b"), _review(hub), _quiet)

    assert 5 <= done < 16
    assert 16 - done == sum(infos)
    assert whole == replace(rest, at=whole.at)


def test_lengths_are_those_of_the_targets_tokenizer(tmp_path: Path) -> None:
    """With the tokenizer here, first prompts are counted in tokens and fall into lanes."""
    maker = Maker()
    long = [("word " * 12_000 + maker.text.question(), "Fine.")]
    repos = _one(maker, pairs=[*maker.pairs(3), *long])
    with running(repos) as hub:
        findings = discover(_config(tmp_path, str(TOY)), _review(hub), _quiet)
    facts = _facts(findings)["some/code-review"]

    assert ("tokens", "") == (facts.unit, findings.note)
    assert {"short": 3, "long": 1} == dict(facts.lanes)
    assert max(length for length, _ in facts.lengths) > 12_000


def test_a_split_is_not_mixed_with_what_is_kept_back(tmp_path: Path) -> None:
    """Without a word of the card, files called test or validation are no training data."""
    repos = _one()
    name = "some/code-review"
    rows = jsonl([{"prompt": "What is kept back?"}])
    repos[name].files |= {"test.jsonl": rows, "data/validation/a.jsonl": rows}
    own = next(path for path in repos[name].files if path.startswith(("train", "data/train")))
    with running(repos) as hub:
        facts = _facts(discover(_config(tmp_path), _review(hub), _quiet))[name]

    assert ("train", 12, len(repos[name].files[own])) == (facts.split, facts.rows, facts.size_bytes)


def test_what_is_configured_already_is_overlapped(tmp_path: Path) -> None:
    """A dataset of the hub that asks what the configuration's own file asks says so."""
    maker = Maker()
    pairs = maker.pairs(4)
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(jsonl([maker.shapes["alpaca"](q, a) for q, a in pairs[:2]]))
    with running(_one(maker, pairs=pairs)) as hub:
        config = _config(tmp_path, datasets=[{"name": "mine", "source": str(mine)}])
        findings = discover(config, _review(hub), _quiet)

    assert str(mine) == findings.ranked[0].facts.source
    assert {str(mine): 0.5} == dict(_facts(findings)["some/code-review"].overlap)


def test_a_catalogue_and_a_folder_need_no_hub(tmp_path: Path) -> None:
    """Local sources are looked at like those of the hub, with their card and licence."""
    maker = Maker()
    rows = jsonl([maker.shapes["alpaca"](q, a) for q, a in maker.pairs(5)])
    for name in ("one/train.jsonl", "two/code-review.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(rows)
    (tmp_path / "two/code-review.md").write_text("Answers were generated by Kimi-K2.5.")
    listed = {"datasets": [{"source": "one/train.jsonl", "category": "chat", "licence": "mit"},
                           {"source": "some/where-else"}]}  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(listed))
    options = Options(target=TARGET, hub=False, catalogues=(tmp_path / "mine.json",),
                      folders=(tmp_path / "two",), endpoint="http://127.0.0.1:9")  # fmt: skip
    found = _facts(discover(_config(tmp_path / "state"), options, _quiet))
    one, two = (
        found[str(tmp_path / "one/train.jsonl")],
        found[str(tmp_path / "two/code-review.jsonl")],
    )

    assert ("mit", ["chat"], 5) == (one.licence, list(one.categories), one.rows)
    assert ("card", ("missing",)) == (two.native, tuple(two.licence_flags))
    assert "review" in two.categories
    assert "unreachable" == found["some/where-else"].problem
    assert [1.0] == [*one.overlap.values(), *two.overlap.values()]


def test_the_commands_from_a_search_to_a_written_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HF_ENDPOINT leads to the hub; one more command writes datasets and the decision.

    A search in between that reaches no hub says so and leaves the report as it was.
    """
    maker = Maker()
    for words in ("code-review", "creative-writing"):
        maker.add("openai", name=f"some/{words}")
    bad = maker.add("openai", name="some/other-code-review", gone=True)
    (tmp_path / "eagled.toml").write_text(
        '[target]\nmodel = "/nowhere/at/all"\n\n[[datasets]]\nname = "old"\nsource = "old.jsonl"\n'
        "# a comment\n\n[vocab]\nsize = 64\n"
    )
    (tmp_path / "old.jsonl").write_bytes(jsonl([{"prompt": maker.text.question()}]))

    def search(endpoint: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "eagled", "discover", "--goal", "20", "--category", "review",
             "--category", "writing", "--target", TARGET, *more],
            cwd=tmp_path, env={**os.environ, "HF_ENDPOINT": endpoint}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    with running(maker.world.repos) as hub:
        searched = search(hub.url)
    away = search(hub.url, "--max-age", "0")
    monkeypatch.chdir(tmp_path)
    kept = CliRunner().invoke(app, ["discover", "--choose", "proposed"])
    chosen = CliRunner().invoke(app, ["discover", "--choose", "proposed", "--replace"])
    config = load_config(tmp_path / "eagled.toml").config
    text = (tmp_path / "eagled.toml").read_text()
    plan = (tmp_path / "state/plans/train_plan_v1.md").read_text()

    assert (0, 0) == (searched.returncode, chosen.exit_code), searched.stderr + chosen.output
    assert 69 == away.returncode, away.stderr
    assert "an earlier report stays as it is" in away.stderr
    assert isinstance(kept.exception, UsageError)
    assert "--choose proposed" in searched.stdout
    assert {"some/code-review", "some/creative-writing"} <= {d.source for d in config.datasets}
    assert 64 == tomllib.loads(text)["vocab"]["size"]
    assert '# source = "old.jsonl"' in text
    assert "## Data" in plan
    assert bad in plan
    assert "data scaling" in plan
    assert (tmp_path / "state/discover/report.html").is_file()
