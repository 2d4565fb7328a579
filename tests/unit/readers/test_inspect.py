"""`eagled prep --inspect`: what becomes of each row, and what the target would see of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagled.cli import app
from eagled.inspect import open_inspection
from eagled.types import Mode
from eagled.workers.prepare import prepare_dataset
from tests.prep_kit import lines_of, toy_config, toy_renderer, write_jsonl
from tests.toy import TOY

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
QUESTION = {"id": "a", "messages": [{"role": "user", "content": "Hi?"}]}
ANSWERED = {
    "id": "b",
    "messages": [
        {"role": "user", "content": "Name a river"},
        {"role": "assistant", "content": "The Glomma", "reasoning_content": "Norway"},
        {"role": "user", "content": "Another"},
        {"role": "assistant", "content": "Otra", "reasoning_content": "South"},
    ],
}


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["prep", *arguments])


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EAGLED_CONFIG", raising=False)


@pytest.mark.usefixtures("_elsewhere")
def test_the_command_prints_one_object_a_row() -> None:
    """Without any configuration the samples come out as their table says, one line each."""
    file = "glaive-function-calling-v2.json"
    done = _run("--inspect", str(SAMPLES / "glaive-function-calling" / file), "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    text = (SAMPLES / "glaive-function-calling" / "expected.jsonl").read_text(encoding="utf-8")
    wanted = [row for line in text.splitlines() if (row := json.loads(line))["file"] == file]

    assert 0 == done.exit_code
    for row in found:
        row.pop("detail", None)
    assert wanted == found


@pytest.mark.usefixtures("_elsewhere")
def test_the_table_says_why_and_adds_up(tmp_path: Path) -> None:
    """Rows in = kept + rejected; a rejected row shows its reason and detail, safe to print."""
    path = write_jsonl(tmp_path / "rows.jsonl", QUESTION, {"odd\x1b[31m": 1}, QUESTION)
    done = _run("--inspect", str(path))

    assert 0 == done.exit_code
    assert "3 rows = 1 kept + 2 rejected" in done.stdout
    assert "missing_field" in done.stdout
    assert "duplicate" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.usefixtures("_elsewhere")
def test_options_are_refused_where_they_mean_nothing() -> None:
    """A word that is no format names those that are; the options need --inspect."""
    wrong = _run("--inspect", str(SAMPLES), "--format", "parrot")
    alone = _run("--format", "openai")
    mode = _run("--inspect", str(SAMPLES), "--mode", "copied")

    assert "parrot" in str(wrong.exception)
    assert "--inspect FILE" in str(alone.exception)
    assert "one of regenerate, native" in str(mode.exception)


@pytest.mark.usefixtures("_elsewhere")
def test_only_the_first_rows_on_demand() -> None:
    """`--rows` stops reading."""
    folder = str(SAMPLES / "ultrachat-200k" / "data")

    assert 2 == len(_run("--inspect", folder, "--rows", "2", "--json").stdout.splitlines())


def test_a_target_adds_tokens_lane_text_and_mask(tmp_path: Path) -> None:
    """A question shows its exact prompt and lane; what will be generated has no mask yet."""
    path = write_jsonl(tmp_path / "rows.jsonl", QUESTION)
    config = toy_config(tmp_path / "state", path)
    (view,) = open_inspection(str(path), config=config).rows()
    out = view.to_json()
    messages = view.conversation.messages if view.conversation is not None else ()
    prompt = toy_renderer().prompt_ids(messages, None)

    assert (len(prompt), "short") == (out["tokens"], out["lane"])
    assert toy_renderer().decode(prompt) == out["rendered"]
    assert [0] * len(prompt) == out["mask"]
    assert "more_turns" not in out


def test_native_rows_show_each_turn_as_it_is_trained(tmp_path: Path) -> None:
    """Every turn has its own text and mask, and both are what prep writes."""
    path = write_jsonl(tmp_path / "rows.jsonl", ANSWERED)
    config = toy_config(tmp_path / "state", path, dataset={"mode": "native"})
    (view,) = open_inspection("d", config=config).rows()
    out = view.to_json()
    prepare_dataset(config, config.datasets[0], renderer=toy_renderer())
    written = lines_of(tmp_path / "state" / "datasets" / "d")[0]["turns"]

    assert Mode.NATIVE.value == out["mode"]
    shown = [{key: out[key] for key in ("tokens", "lane", "rendered", "mask")}, *out["more_turns"]]
    assert 2 == len(shown) == len(written)
    for mine, turn in zip(shown, written, strict=True):
        n_prompt, n_answer = len(turn["prompt_ids"]), len(turn["output_ids"])
        assert [0] * n_prompt + [1] * n_answer == mine["mask"]
        assert toy_renderer().decode(turn["prompt_ids"] + turn["output_ids"]) == mine["rendered"]
        assert (n_prompt + n_answer, None) == (mine["tokens"], mine["lane"])
    assert "Norway" in shown[0]["rendered"]
    assert "South" in shown[1]["rendered"]


def test_what_the_target_refuses_is_refused_here(tmp_path: Path) -> None:
    """A prompt that no lane takes has prep's reason."""
    long = {"messages": [{"role": "user", "content": "word " * 200}]}
    path = write_jsonl(tmp_path / "rows.jsonl", long)
    lanes = {"short": {"context": 100}}
    config = toy_config(tmp_path / "state", path, lanes=lanes)
    inspection = open_inspection(str(path), config=config)

    assert ["too_long"] == [view.reason for view in inspection.rows()]
    assert (0, {"too_long": 1}) == (inspection.kept, dict(inspection.counts))


def test_a_configured_dataset_brings_its_settings(tmp_path: Path) -> None:
    """By name or source, its mode, format and turns hold."""
    path = write_jsonl(tmp_path / "rows.jsonl", ANSWERED)
    settings = {"mode": "native", "turns": "last", "format": "openai"}
    config = toy_config(tmp_path / "state", path, dataset=settings)
    for name in ("d", str(path)):
        (view,) = open_inspection(name, config=config).rows()
        assert view.conversation is not None
        assert ((3,), Mode.NATIVE) == (view.conversation.targets, view.conversation.mode)


@pytest.mark.usefixtures("_elsewhere")
def test_the_command_uses_the_configuration_in_its_folder(tmp_path: Path) -> None:
    """With an eagled.toml in the working directory rows are counted in tokens."""
    (tmp_path / "eagled.toml").write_text(
        f'[target]\nmodel = "{TOY}"\n[generation]\nmin_reply = 1\n', encoding="utf-8"
    )
    path = write_jsonl(tmp_path / "rows.jsonl", QUESTION)
    row = json.loads(_run("--inspect", str(path), "--json").stdout)

    assert row["tokens"] == len(row["mask"]) > 0
    assert "Hi?" in row["rendered"]
