"""Prep of whole datasets: counts, identity, determinism, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.errors import ArtifactError, ConfigError, DiskError
from eagled.prepared import CONVERSATIONS_NAME, read_manifest, read_prepared
from eagled.profile import read_profile
from eagled.tokens import unpack_ids
from eagled.types import Mode, RowReason
from eagled.workers import prepare
from eagled.workers.preparation.messages import Job
from eagled.workers.preparation.workbench import load_renderer
from eagled.workers.prepare import PrepProgress, PrepResult, prepare_all, prepare_dataset
from tests.faults import fault_file
from tests.prep_kit import any_lane, lines_of, rejects_of, toy_config, toy_renderer, write_jsonl
from tests.toy import TOY

ROWS = [
    {"id": f"r{i}", "messages": [{"role": "user", "content": f"What is {i} times {i * i}?"}]}
    for i in range(20)
]


def _prepare(config: Config, **options: Any) -> PrepResult:
    """Prepare the configuration's only dataset with the shared renderer."""
    return prepare_dataset(config, config.datasets[0], renderer=toy_renderer(), **options)


def _reasons(folder: Path) -> dict[str, str]:
    return {row["source_id"]: row["reason"] for row in rejects_of(folder)}


def _balanced(result: PrepResult) -> bool:
    return result.rows == result.kept + sum(result.rejected.values())


@pytest.mark.fault("F02")
def test_an_optional_column_changes_no_count(tmp_path: Path) -> None:
    """The same rows are kept with a tools column present, absent, null or only in some rows."""
    text = fault_file("prep/sharegpt_roles.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line]
    variants = [
        rows,
        [{**row, "tools": None} for row in rows],
        [{**row, "tools": []} for row in rows],
        [{**row, "tools": "[]"} if i % 2 else row for i, row in enumerate(rows)],
    ]
    results = []
    for number, variant in enumerate(variants):
        source = write_jsonl(tmp_path / f"{number}.jsonl", *variant)
        results.append(_prepare(toy_config(tmp_path / str(number), source)))

    assert [(5, 3)] * 4 == [(result.rows, result.kept) for result in results]
    assert all(_balanced(result) for result in results)
    expected = {"sg-4": "empty_conversation", "sg-5": "unknown_role"}
    assert [expected] * 4 == [_reasons(result.folder) for result in results]


@pytest.mark.fault("F04")
def test_no_run_uses_the_result_of_other_inputs(tmp_path: Path) -> None:
    """Whatever changes the tokens names the result; an old one is refused, naming what differs."""
    case = json.loads(fault_file("prep/stale_cache.json").read_text(encoding="utf-8"))
    source = tmp_path / "source.jsonl"
    shutil.copy(fault_file(case["same_source"]), source)
    named = ["", "longest prompt", "chat template", "tokenizer", "source"]
    keys: list[str] = []
    for run, what in zip(case["runs"], named, strict=True):
        config = _stale_case(tmp_path, source, run)
        [dataset] = config.datasets
        renderer = load_renderer(Job(config, dataset))
        if keys:
            with pytest.raises(ArtifactError, match=rf"these differ: .*{what}"):
                prepare_dataset(config, dataset, renderer=renderer)
        result = prepare_dataset(config, dataset, renderer=renderer, force=True)
        assert not result.skipped
        keys.append(result.prep_key)

    assert len(set(keys)) == len(keys) == 5


def _stale_case(tmp_path: Path, source: Path, run: dict[str, Any]) -> Config:
    model = TOY
    if "tokenizer_edit" in run:
        model = tmp_path / "edited"
        shutil.copytree(TOY, model)
        path = model / "tokenizer.json"
        value = json.loads(path.read_text(encoding="utf-8"))
        value["added_tokens"].append({**value["added_tokens"][-1], "id": 283, "content": "<more>"})
        path.write_text(json.dumps(value), encoding="utf-8")
    if "source_edit" in run:
        with source.open("a", encoding="utf-8") as file:
            file.write('{"id": "sg-6", "conversations": [{"from": "human", "value": "More?"}]}\n')
    template = fault_file(run["template"])
    return toy_config(
        tmp_path / "state",
        source,
        target={"model": str(model), "chat_template": str(template)},
        prep={"max_prompt_tokens": run["max_len"]},
    )


@pytest.mark.fault("F09")
def test_one_bad_line_never_stops_a_file(tmp_path: Path) -> None:
    """Every good row survives; bad ones are named by line; what is written can be read again."""
    result = _prepare(toy_config(tmp_path, fault_file("prep/bad_bytes.jsonl")))
    rejects = rejects_of(result.folder)

    assert (7, 4) == (result.rows, result.kept)
    assert [(0, "bad_encoding"), (2, "bad_encoding"), (3, "bad_json_line")] == [
        (row["row"], row["reason"]) for row in rejects
    ]
    assert [row["detail"].startswith("line") for row in rejects[1:]] == [True, True]
    read_back = list(read_prepared(result.folder, lane_of=any_lane))
    assert ["b-2", "1180591620717411303424", "b-6", "b-7"] == [c.source_id for c in read_back]


@pytest.mark.fault("F10")
def test_values_survive_serialisation(tmp_path: Path) -> None:
    """Big integers keep every digit, the NUL row is whole, BOM and CRLF are accepted."""
    result = _prepare(toy_config(tmp_path / "a", fault_file("prep/bad_bytes.jsonl")))
    lines = {line["source_id"]: line for line in lines_of(result.folder)}
    bom = _prepare(toy_config(tmp_path / "b", fault_file("prep/bom.jsonl")))

    assert "1180591620717411303424" in lines
    assert lines["b-7"]["messages"][0]["content"] == "nul  inside"
    assert lines["b-7"]["flags"] == ["nul_removed"]
    assert (bom.rows, bom.kept) == (2, 2)
    assert ["first line", "second"] == [
        line["messages"][0]["content"] for line in lines_of(bom.folder)
    ]
    raw = (result.folder / "manifest.json").read_text() + json.dumps(list(lines.values()))
    assert "NaN" not in raw


def test_big_numbers_in_a_schema_reach_the_text_worker(tmp_path: Path) -> None:
    """A schema's integers beyond 64 bits come back digit for digit."""
    big = 1180591620717411303424
    tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": big}}}
    source = write_jsonl(tmp_path / "s.jsonl", {**ROWS[0], "tools": [tool]})
    result = _prepare(toy_config(tmp_path, source))
    [item] = read_prepared(result.folder, lane_of=any_lane)

    from eagled.text.replay import read_body

    assert item.body is not None
    assert read_body(item.body).tools == (tool,)


@pytest.mark.fault("F13")
def test_sources_merge_by_identity(tmp_path: Path) -> None:
    """Equal ids of two sources stay apart, one question counts once, the benchmark stays out."""
    exclude = {"exclude": [str(fault_file("prep/bench_prompts.json"))]}
    items = []
    for name in ("a", "b"):
        source = fault_file(f"prep/merge_{name}.jsonl")
        config = toy_config(tmp_path, source, dataset={"name": name}, prep=exclude)
        result = _prepare(config)
        assert _balanced(result)
        items += list(read_prepared(result.folder, lane_of=any_lane))
        if name == "a":
            assert {"x-2": RowReason.EXCLUDED} == _reasons(result.folder)

    assert ["x-1", "x-1", "y-2"] == [item.source_id for item in items]
    assert 3 == len({item.uid for item in items})
    assert [2, 1] == sorted(Counter(item.dedup for item in items).values(), reverse=True)


@pytest.mark.fault("F27")
def test_an_answer_is_cut_at_the_longest_context(tmp_path: Path) -> None:
    """Every kept token of a cut answer is mask 1; a row without room for an answer is counted."""
    config = toy_config(
        tmp_path,
        fault_file("mask/truncated_answer.jsonl"),
        dataset={"mode": "native"},
        lanes={"only": {"context": 64}},
    )
    result = _prepare(config)
    [line] = lines_of(result.folder)
    [turn] = line["turns"]
    answer = toy_renderer().decode(turn["output_ids"])

    assert (2, 1) == (result.rows, result.kept)
    assert {"q-2": RowReason.TOO_LONG} == _reasons(result.folder)
    assert 64 == len(turn["prompt_ids"]) + len(turn["output_ids"])
    assert answer
    assert "ok " * 40 == answer + ("ok " * 40)[len(answer) :]
    assert ["cut_answer"] == [flag for flag in line["flags"] if flag.startswith("cut")]


@pytest.mark.fault("F50")
def test_identity_does_not_depend_on_place(tmp_path: Path) -> None:
    """Reversed or limited, a file gives the same identities; 7 and "7" are two rows."""
    text = fault_file("resume/no_id_rows.jsonl").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line]
    uids = []
    for number, (chosen, count) in enumerate([(lines, 0), (lines[::-1], 0), (lines, 2)]):
        source = tmp_path / f"{number}.jsonl"
        source.write_text("\n".join(chosen), encoding="utf-8")
        result = _prepare(toy_config(tmp_path / str(number), source, dataset={"count": count}))
        assert _balanced(result)
        uids.append({item.uid for item in read_prepared(result.folder, lane_of=any_lane)})

    assert 3 == len(uids[0])
    assert uids[0] == uids[1]
    assert uids[2] < uids[0]
    assert 2 == len(uids[2])


@pytest.mark.fault("F52")
def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    """The same inputs leave the folder as it is, to the byte and to the time."""
    config = toy_config(tmp_path, fault_file("resume/no_id_rows.jsonl"))
    first = _prepare(config)
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    second = _prepare(config)

    assert (False, True) == (first.skipped, second.skipped)
    assert (first.prep_key, first.kept) == (second.prep_key, second.kept)
    assert before == {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    assert len(lines_of(first.folder)) == len({line["uid"] for line in lines_of(first.folder)})


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    """Prepared in two places, every file is equal."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    folders = [_prepare(toy_config(tmp_path / name, source)).folder for name in ("a", "b")]

    assert {path.name: path.read_bytes() for path in folders[0].iterdir()} == {
        path.name: path.read_bytes() for path in folders[1].iterdir()
    }


def test_a_choice_by_chance_depends_on_the_seed_only(tmp_path: Path) -> None:
    """The chosen rows are the same in any order of the file, and others for another seed."""
    forward = write_jsonl(tmp_path / "f.jsonl", *ROWS)
    backward = write_jsonl(tmp_path / "b.jsonl", *ROWS[::-1])

    def chosen(name: str, source: Path, seed: int) -> set[str]:
        run = {"state_dir": tmp_path / name, "seed": seed}
        wanted = {"count": 5, "shuffle": True}
        result = _prepare(toy_config(tmp_path, source, dataset=wanted, run=run))
        assert (result.rows, result.kept, dict(result.rejected)) == (20, 5, {"not_chosen": 15})
        return {line["uid"] for line in lines_of(result.folder)}

    assert chosen("a", forward, 1) == chosen("b", backward, 1) != chosen("c", forward, 2)


def test_the_first_rows_are_taken_without_reading_the_rest(tmp_path: Path) -> None:
    """With a count, reading stops when it is reached."""
    source = write_jsonl(tmp_path / "s.jsonl", {"messages": []}, *ROWS)
    result = _prepare(toy_config(tmp_path, source, dataset={"count": 5}))

    assert (6, 5, {"empty_conversation": 1}) == (result.rows, result.kept, dict(result.rejected))


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "no rows"), ([{"messages": []}, {"x": 1}], "all 2 rows were rejected")],
)
def test_an_empty_result_is_an_error(tmp_path: Path, rows: list[Any], message: str) -> None:
    """Nothing is left behind, and the message says what to check, with examples."""
    source = write_jsonl(tmp_path / "s.jsonl", *rows)
    config = toy_config(tmp_path, source)
    with pytest.raises(ConfigError, match=message) as caught:
        _prepare(config)

    assert len(rows) == len(caught.value.problems)
    assert [] == list((tmp_path / "datasets").iterdir())


def test_a_prompt_too_long_for_every_lane_is_counted(tmp_path: Path) -> None:
    """It is set aside with both numbers, never shortened."""
    long = {"messages": [{"role": "user", "content": "long " * 100}]}
    source = write_jsonl(tmp_path / "s.jsonl", ROWS[0], long)
    result = _prepare(toy_config(tmp_path, source, lanes={"only": {"context": 100}}))
    [reject] = rejects_of(result.folder)

    assert "too_long" == reject["reason"]
    assert "the longest lane takes 99" in reject["detail"]


def test_a_server_with_less_context_leaves_conversations_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt that no lane takes any more is left out and reported, not handed on."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS[:2])
    folder = _prepare(toy_config(tmp_path, source)).folder
    told: list[tuple[str, int]] = []
    items = list(read_prepared(folder, lane_of=lambda _n: None, too_long=lambda *x: told.append(x)))

    assert [] == items
    assert [line["uid"] for line in lines_of(folder)] == [uid for uid, _ in told]
    assert "left_out=2" in caplog.text


def test_an_altered_folder_is_refused(tmp_path: Path) -> None:
    """A changed byte, another format and an incomplete manifest are found before any row."""
    folder = _prepare(toy_config(tmp_path, write_jsonl(tmp_path / "s.jsonl", *ROWS))).folder
    path = folder / CONVERSATIONS_NAME
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="was altered"):
        next(read_prepared(folder, lane_of=any_lane))
    (folder / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(ArtifactError, match="reads 'eagled-prepared'"):
        read_manifest(folder)


def test_a_failed_build_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up changes nothing; what is finished waits for the next try."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    folder = _prepare(toy_config(tmp_path, source)).folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    write_jsonl(source, *ROWS[:3])
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_write_result", full)
        with pytest.raises(DiskError, match="make room"):
            _prepare(toy_config(tmp_path, source), force=True)

    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    left = sorted(path.name for path in (folder.parent / ".d.tmp").iterdir())
    assert ["inputs.json", "lines-000000.part"] == left
    assert 3 == _prepare(toy_config(tmp_path, source), force=True).rows
    assert [folder.name] == [path.name for path in folder.parent.iterdir()]


def test_later_turns_wait_and_first_ones_have_a_prompt(tmp_path: Path) -> None:
    """One sample a target turn: ids for the first, a body for the others, a lane by length."""
    chat = [
        {"role": "user", "content": "first question of all"},
        {"role": "assistant", "content": "old"},
        {"role": "user", "content": "second"},
    ]
    source = write_jsonl(tmp_path / "s.jsonl", {"messages": chat}, ROWS[0])
    folder = _prepare(toy_config(tmp_path, source)).folder
    many, single = read_prepared(folder, lane_of=lambda n: "short" if n < 90 else "long")

    assert [(0, True, "short"), (1, False, None)] == [
        (turn.turn, turn.prompt is not None, turn.lane) for turn in many.turns
    ]
    assert (True, False) == (many.body is not None, single.body is not None)
    prompt = many.turns[0].prompt
    assert prompt is not None
    text = toy_renderer().decode(unpack_ids(prompt.z, prompt.crc).tolist())
    assert text.endswith(
        "first question of all<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )
    assert 4 == len({many.uid, single.uid, *(turn.uid for turn in many.turns)})


def test_native_turns_come_with_their_answers(tmp_path: Path) -> None:
    """A native dataset has prompt and output for each turn, no lane and no body."""
    source = fault_file("think/multi_turn_reasoning.jsonl")
    result = _prepare(toy_config(tmp_path, source, dataset={"mode": "native"}))
    [item] = read_prepared(result.folder, lane_of=any_lane)

    assert Mode.NATIVE == read_manifest(result.folder).mode
    assert (2, None) == (result.turns, item.body)
    assert [(True, True, None)] * 2 == [
        (turn.prompt is not None, turn.output is not None, turn.lane) for turn in item.turns
    ]


def test_the_manifest_says_what_the_result_was_made_of(tmp_path: Path) -> None:
    """Target, sampling, hashes, counts and what the template does; a profile lies beside."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS, {"x": 1})
    result = _prepare(toy_config(tmp_path, source, sampling={"temperature": 0.5, "thinking": True}))
    value = json.loads((result.folder / "manifest.json").read_text())

    assert value["rejected"] == {"missing_field": 1}
    assert value["sampling"]["temperature"] == 0.5
    assert value["inputs"]["thinking"] is True
    assert value["inputs"]["chat template"] == toy_renderer().template_hash
    assert value["template"]["stop_text"] == "<|im_end|>"
    assert read_profile(result.folder).n == 20


def test_progress_ends_with_the_result(tmp_path: Path) -> None:
    """Reports come in order; the last one has the final counts and says that it is the last."""
    told: list[PrepProgress] = []
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS * 20)
    _prepare(toy_config(tmp_path, source), progress=told.append)
    last = told[-1]

    assert 128 == told[0].rows
    assert [400] == [report.rows for report in told if report.ended]
    assert (400, 20, {"duplicate": 380}) == (last.rows, last.kept, last.rejected)


def test_several_datasets_share_one_tokenizer(tmp_path: Path) -> None:
    """All, or those that are named; an unknown name is refused."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    sets = [{"name": name, "source": str(source)} for name in ("one", "two")]
    config = toy_config(tmp_path, source, datasets=sets, prep={"duplicates": "dataset"})

    assert ["one", "two"] == [result.dataset for result in prepare_all(config)]
    assert [True] == [result.skipped for result in prepare_all(config, ["two"])]
    with pytest.raises(ConfigError, match="configured: one, two"):
        prepare_all(config, ["three"])


@pytest.mark.parametrize("module", ["eagled.prepared", "eagled.lanes", "eagled.profile"])
def test_the_daemon_side_loads_no_heavy_library(module: str) -> None:
    """Reading prepared folders needs neither torch, transformers, datasets nor pyarrow."""
    code = (
        f"import sys, {module}; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout
