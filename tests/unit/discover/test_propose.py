"""From ranked datasets to a mix, to what it takes, to the configuration and the plan."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.config_load import load_config
from eagled.discover.assume import assumptions
from eagled.discover.categories import Category
from eagled.discover.choose import choose, write_datasets
from eagled.discover.facts import Facts
from eagled.discover.figures import Setting, figures_of
from eagled.discover.findings import Asked, Findings, conclude, write_findings
from eagled.discover.pages import render_markdown, write_pages
from eagled.discover.propose import alternatives, propose, to_mix
from eagled.discover.rank import Ranked, flaw_of, score_of
from eagled.discover.run import measured_rate
from eagled.disk_plan import Model
from eagled.errors import ArtifactError, ConfigError, UsageError
from eagled.mix import mix_toml
from eagled.shards.policy import StorePolicy

_CATEGORIES = (
    Category("code", "Code", weight=3),
    Category("tools", "Tools", want="tools", weight=1),
)
_SETTING = Setting(1000.0, Model(3, 7168), StorePolicy())


def _facts(source: str, **changes: Any) -> Facts:
    made = Facts(
        source, categories=("code",), rows=100_000, licence="mit", readers={"openai": 64},
        sampled=64, kept=64, kept_share=1.0, unit="tokens", lengths=((100, 64),),
        lanes={"short": 64}, prompt_mean=100.0, answer_mean=50.0, downloads=1000,
        revision="a" * 40, split="train",
    )  # fmt: skip
    return replace(made, **changes)


def _ranked(*facts: Facts) -> list[Ranked]:
    wanted = {c.name: c for c in _CATEGORIES}
    return [Ranked(f, score_of(f, wanted), flaw_of(f)) for f in facts]


def _counts(*facts: Facts, goal: int = 10_000) -> dict[str, int]:
    proposal, _ = propose(_ranked(*facts), _CATEGORIES, goal)
    return {entry.source: entry.count for entry in proposal.entries}


def test_the_goal_is_shared_by_weight() -> None:
    """Three to one, as the categories say."""
    counts = _counts(_facts("a/a"), _facts("b/b", categories=("tools",)))

    assert {"a/a": 7500, "b/b": 2500} == counts


def test_nobody_gives_more_than_it_has_and_the_rest_goes_to_others() -> None:
    """2,200 rows of which half is kept give 1,000 (a tenth is spare); others make up for it."""
    small = _facts("a/a", rows=2200, kept_share=0.5)
    counts = _counts(small, _facts("b/b", categories=("tools",)))

    assert {"a/a": 1000, "b/b": 9000} == counts


def test_what_cannot_be_used_is_left_out_with_its_reason() -> None:
    """Broken, forbidden, copied, swapped, surplus: each says why."""
    good = _facts("a/good")
    facts = (
        good,
        _facts("a/second"),
        _facts("a/third"),
        _facts("a/nc", licence_flags=("non-commercial",), licence="cc-by-nc-4.0"),
        _facts("a/copy", overlap={"a/good": 0.9}),
        _facts("a/gone", problem="gone", detail="not there"),
        _facts("a/swapped", swapped=True),
        _facts("a/none", kept=0, rejected={"bad_schema": 64}),
        _facts("a/good", config="other"),
    )
    proposal, rejected = propose(_ranked(*facts), _CATEGORIES, 1000)
    why = [item.why for item in rejected]

    assert ["a/good", "a/second"] == [entry.source for entry in proposal.entries]
    for i, words in enumerate(
        ("rank higher", "non-commercial", "90%", "gone", "answer column", "bad_schema",
         "another configuration")
    ):  # fmt: skip
        assert words in why[i]


def test_an_overlap_is_taken_off_what_a_dataset_can_give() -> None:
    """A third of its questions stand in the mix already: two thirds of its rows are left."""
    counts = _counts(_facts("a/a"), _facts("b/b", rows=1650, overlap={"a/a": 1 / 3}), goal=10_000)

    assert {"a/a": 9000, "b/b": 1000} == counts


def test_sections_say_how_their_rows_are_read() -> None:
    """Configuration, split, revision, one turn of agent runs, native answers, large sets."""
    facts = (
        _facts("a/runs", trajectory=True, config="x", split="train_sft", size_bytes=9 << 30,
               rows=5_000_000),
        _facts("b/own", native="rows", categories=("tools",), rows=250,
               files=("data/a.jsonl",)),
    )  # fmt: skip
    proposal, _ = propose(_ranked(*facts), _CATEGORIES, 1000)
    runs, own = tomllib.loads(mix_toml(to_mix(proposal)))["datasets"]

    assert ("x", "train_sft", "a" * 40, 1, 20 * runs["count"]) == (
        runs["config"], runs["split"], runs["revision"], runs["turns"], runs["read_rows"],
    )  # fmt: skip
    assert ("native", ["data/a.jsonl"], 227) == (own["mode"], own["files"], own["count"])
    config = Config.model_validate({"target": {"model": "m"}, "datasets": [runs, own]})
    assert ("runs", "own") == tuple(d.name for d in config.datasets)


def test_names_in_the_configuration_are_unique_and_allowed() -> None:
    """Two datasets called alike, and one with a name of strange signs, make right sections."""
    facts = (_facts("a/same"), _facts("b/same"), _facts("c/…é", categories=("tools",)))
    proposal, _ = propose(_ranked(*facts), _CATEGORIES, 1000)
    names = [entry.name for entry in proposal.entries]

    assert ["same", "same-2", "dataset"] == names


def test_figures_are_sums_and_what_is_not_known_is_none() -> None:
    """1,000 conversations of two turns; native answers are not generated; bytes follow codecs."""
    facts = (
        _facts("a/a", turns_mean=2.0),
        _facts("b/b", categories=("tools",), native="rows", licence_flags=("missing",)),
    )
    proposal, _ = propose(_ranked(*facts), _CATEGORIES, 1000)
    known = {f.source: f for f in facts}
    found = figures_of(proposal, known, _SETTING)
    less = figures_of(proposal, {}, replace(_SETTING, rate_tok_per_s=None, model=None))

    assert (1000, 1750, 175_000, 87_500, 75_000) == (
        found.conversations, found.samples, found.prompt_tokens, found.answer_tokens,
        found.to_generate,
    )  # fmt: skip
    assert 75_000 / 1000 / 3600 == found.hours
    raw = 1750 * 149 * (3 * 7168 * 2 + 5) + 1750 * 50 * (7168 * 2 + 4)
    assert abs(found.bytes_by_codec["raw"] / raw - 1) < 0.01
    assert found.bytes_by_codec["raw"] > found.bytes_by_codec["fp8"] > 0
    assert 1 == len(found.risks)
    assert (None, None, {}, 2) == (
        less.samples, less.hours, dict(less.bytes_by_codec), len(less.unknown)
    )  # fmt: skip


def test_the_known_mixes_stand_beside_it_and_take_no_more_than_there_is() -> None:
    """Agentic, perfectblend and chat are scaled to the goal and cut at the rows known."""
    found = {p.name: p for p in alternatives(1000, {})}
    cut = {p.name: p for p in alternatives(
        1000, {"mlabonne/open-perfectblend": _facts("mlabonne/open-perfectblend", rows=110)}
    )}  # fmt: skip

    assert {"agentic", "perfectblend", "chat"} == set(found)
    assert abs(found["agentic"].count - 1000) <= len(found["agentic"].entries)
    assert (1000, 100) == (found["perfectblend"].count, cut["perfectblend"].count)


def test_each_assumption_has_a_check_that_is_a_command() -> None:
    """Scaling, vocabulary, disk, lanes, servers are there, each with what would prove it wrong."""
    facts = (_facts("a/a"),)
    proposal, _ = propose(_ranked(*facts), _CATEGORIES, 1000)
    figures = figures_of(proposal, {"a/a": facts[0]}, _SETTING)
    found = {
        a.name: a
        for a in assumptions(figures, Config.model_validate({"target": {"model": "m"}}), 1000.0)
    }

    assert {
        "data scaling", "vocabulary coverage", "disk", "lane cut", "server concurrency",
    } <= set(found)  # fmt: skip
    assert all(a.check.startswith("eagled ") and a.wrong_if for a in found.values())
    assert "eagled plan disk --assume 1000x150 --check" == found["disk"].check


def test_the_rate_is_what_the_lanes_reached() -> None:
    """The best of each lane's history counts, and no lane is no rate."""
    lanes = {"a": {"out_tok_per_s": 5.0, "history": [7.0, None]}, "b": {"out_tok_per_s": None}}

    assert (7.0, None) == (measured_rate({"lanes": lanes}), measured_rate({}))


def _findings(*facts: Facts, goal: int = 1000) -> Findings:
    config = Config.model_validate({"target": {"model": "m"}})
    asked = Asked(goal, "kimi-k2.5", "2026-05-04T03:02:01.000+00:00", "")
    return conclude(_ranked(*facts), _CATEGORIES, config, _SETTING, asked, ["a: b"])


def test_foreign_text_cannot_act_in_a_report(tmp_path: Path) -> None:
    """Names, cards and licences of a hub are text in Markdown and HTML, whatever is in them."""
    evil = "<script>alert(1)</script> \x1b[31m [x](http://e.vil) | `y`"
    found = _findings(_facts("a/a", licence=evil, columns=(evil,), notes=(evil,)),
                      _facts("b/b", problem="broken", detail=evil))  # fmt: skip
    text = render_markdown(found)
    _, page = write_pages(tmp_path, found)
    html = page.read_text(encoding="utf-8")

    for written in (text, html):
        assert "\x1b" not in written
        assert "<script" not in written
    assert "](http" not in text.replace("\\](", "")
    assert "<svg" in html


def _written(folder: Path, text: str) -> Path:
    path = folder / "eagled.toml"
    path.write_text(text)
    return path


_OLD = """\
[target]
model = "m"

# the data
[[datasets]]  # mine
name = "old"
source = "old.jsonl"
# a comment
[datasets.sampling]
temperature = 0.5

[[ datasets ]]
name = "older"
source = "older.jsonl"

[vocab]
size = 64
"""


def test_a_choice_replaces_the_datasets_and_nothing_else(tmp_path: Path) -> None:
    """Old sections become comments, all else stays as written; the plan says what and why."""
    path = _written(tmp_path, _OLD)
    facts = (_facts("a/a"), _facts("b/nc", licence_flags=("non-commercial",)))
    write_findings(tmp_path / "state/discover/findings.json", _findings(*facts))
    path.chmod(0o640)
    with pytest.raises(UsageError, match="--replace"):
        choose(load_config(path), "proposed", replace=False)
    _, plan = choose(load_config(path), "proposed", replace=True)
    text, config = path.read_text(), load_config(path).config
    again, _ = choose(load_config(path), "proposed", replace=True)

    assert ["a/a"] == [d.source for d in config.datasets]
    assert (64, 0o640) == (config.vocab.size, path.stat().st_mode & 0o777)
    assert '# [[datasets]]  # mine\n# name = "old"\n' in text
    assert "# temperature = 0.5\n" in text
    assert "\n# a comment\n" in text
    assert "b/nc" in plan.read_text()
    assert "## Data" in plan.read_text()
    assert 1000 == again.proposal.count
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "old",
    [
        '[target]\nmodel = "m"\n[[datasets]]\nname = "d"\nsource = """a\n[vocab]\n"""\n',
        'datasets = [{name = "d", source = "d"}]\n[target]\nmodel = "m"\n',
    ],
)
def test_a_file_that_cannot_be_changed_safely_stays_as_it_is(tmp_path: Path, old: str) -> None:
    """Text that the line rules misread is refused, byte for byte unchanged."""
    path = _written(tmp_path, old)

    with pytest.raises(ConfigError, match="by hand"):
        write_datasets(path, '[[datasets]]\nname = "n"\nsource = "n"\n')
    assert old == path.read_text()


def test_a_choice_needs_findings_and_a_mix_that_exists(tmp_path: Path) -> None:
    """Without a search, or for a name that is not there, the message says what to do."""
    loaded = load_config(_written(tmp_path, '[target]\nmodel = "m"\n'))
    with pytest.raises(ArtifactError, match="run `eagled discover` first"):
        choose(loaded, "proposed", replace=False)
    write_findings(tmp_path / "state/discover/findings.json", _findings())

    with pytest.raises(ArtifactError, match=r"'best'.*proposed, agentic, perfectblend, chat"):
        choose(loaded, "best", replace=False)
    with pytest.raises(ArtifactError, match="empty"):
        choose(loaded, "proposed", replace=False)
