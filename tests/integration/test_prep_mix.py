"""A mix of datasets: filters, choice by chance, questions that repeat within and across sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.dedup import key_of
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.prepared import KEYS_NAME, NEAR_NAME, read_manifest, read_prepared
from eagled.readers.sources import Source, SourceRow
from eagled.workers.preparation import chunks, stage
from eagled.workers.preparation.crew import LocalCrew
from eagled.workers.preparation.ledger import read_keys
from eagled.workers.prepare import PrepResult, prepare_dataset
from tests.faults import fault_file, fault_row
from tests.prep_kit import any_lane, lines_of, rejects_of, toy_config, toy_renderer, write_jsonl

LONG = (
    "Please explain to a patient reader why the level of the sea rises and falls twice in a day, "
    "what the moon has to do with it, and why two places on one coast differ."
)

RUSSIAN = (
    "\u041f\u043e\u0447\u0435\u043c\u0443 \u043f\u0440\u0438\u043b\u0438\u0432\u044b?"  # why tides?
)


def _ask(number: int | str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": str(number), "messages": [{"role": "user", "content": text}], **more}


def _prepare(config: Config, **options: Any) -> list[PrepResult]:
    """Prepare every dataset of a configuration in this process."""
    crew = LocalCrew(toy_renderer())
    return [prepare_dataset(config, d, crew=crew, **options) for d in config.datasets]


def _one(tmp_path: Path, rows: list[Any], **sections: Any) -> PrepResult:
    tmp_path.mkdir(exist_ok=True)
    source = write_jsonl(tmp_path / "s.jsonl", *rows)
    [result] = _prepare(toy_config(tmp_path / "state", source, **sections))
    assert result.rows == result.kept + sum(result.rejected.values())
    return result


def _ids(result: PrepResult) -> list[str]:
    return [line["source_id"] for line in lines_of(result.folder)]


def _two(tmp_path: Path, one: list[Any], other: list[Any], **sections: Any) -> Config:
    tmp_path.mkdir(exist_ok=True)
    sources = [write_jsonl(tmp_path / f"{n}.jsonl", *rows) for n, rows in enumerate((one, other))]
    sets = [{"name": n, "source": str(s)} for n, s in zip(("one", "two"), sources, strict=True)]
    return toy_config(tmp_path / "state", sources[0], datasets=sets, **sections)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"languages": ["en"]}, ["en", "short", "own"]),
        ({"languages": ["de", "ru"]}, ["de", "ru", "short"]),
        ({"include": ["tide", "Gezeiten"]}, ["en", "de"]),
        ({"exclude": [r"(?i)\btides?\b"]}, ["de", "ru", "short", "own"]),
        ({"min_tokens": 75}, ["en", "de"]),
        ({"max_tokens": 74}, ["ru", "short", "own"]),
    ],
)
def test_filters_leave_out_and_say_why(
    tmp_path: Path, settings: dict[str, Any], kept: list[str]
) -> None:
    """Language, patterns and length each have their reason, and counts add up."""
    rows = [
        _ask("en", "What is the reason for the tides, and how do they depend on the moon?"),
        _ask("de", "Was ist der Grund für die Gezeiten, und wie sind sie mit dem Mond verbunden?"),
        _ask("ru", RUSSIAN),
        _ask("short", "Moon?"),
        _ask("own", "\u6708\u4eae", language="English"),
    ]  # fmt: skip
    result = _one(tmp_path, rows, dataset=settings)
    reason = {
        "languages": "other_language", "include": "not_matching", "exclude": "not_matching",
        "min_tokens": "outside_length", "max_tokens": "outside_length",
    }[next(iter(settings))]  # fmt: skip

    assert kept == _ids(result)
    assert {reason: 5 - len(kept)} == dict(result.rejected)


def test_a_bad_pattern_is_found_when_the_configuration_is_read(tmp_path: Path) -> None:
    """Not in the middle of a run."""
    with pytest.raises(ValueError, match="no regular expression"):
        toy_config(tmp_path, "x", dataset={"include": ["("]})


def test_only_the_first_rows_are_read_when_so_configured(tmp_path: Path) -> None:
    """A choice by chance is then among these; rows behind them count nowhere."""
    rows = [_ask(i, f"Tell me something about the number {i}.") for i in range(50)]
    wanted = {"read_rows": 30, "count": 5, "shuffle": True}
    result = _one(tmp_path, rows, dataset=wanted)

    assert (30, 5, {"not_chosen": 25}) == (result.rows, result.kept, dict(result.rejected))
    assert all(int(i) < 30 for i in _ids(result))


def test_the_choice_by_chance_is_fair_and_stable(tmp_path: Path) -> None:
    """Every row is chosen about equally often over seeds; new rows displace only some."""
    rows = [_ask(i, f"Tell me something about the number {i}.") for i in range(60)]
    chosen: list[str] = []
    for seed in range(20):
        run = {"state_dir": tmp_path / f"state{seed}", "seed": seed}
        config = toy_config(
            tmp_path, write_jsonl(tmp_path / "s.jsonl", *rows),
            dataset={"count": 20, "shuffle": True}, run=run,
        )  # fmt: skip
        chosen += _ids(_prepare(config)[0])
    few = _one(tmp_path / "a", rows[:40], dataset={"count": 20, "shuffle": True})
    more = _one(tmp_path / "b", rows, dataset={"count": 20, "shuffle": True})
    stayed = set(_ids(few)) & set(_ids(more))

    assert 400 == len(chosen)
    assert 1 <= min(chosen.count(str(i)) for i in range(60))
    assert 15 >= max(chosen.count(str(i)) for i in range(60))
    assert set(_ids(more)) - stayed <= {str(i) for i in range(40, 60)}


@pytest.mark.fault("F13")
def test_sources_are_merged_by_question(tmp_path: Path) -> None:
    """Equal ids stay two rows, the shared question counts once, the benchmark stays out."""
    sets = [
        {"name": name, "source": str(fault_file(f"prep/merge_{name}.jsonl"))} for name in ("a", "b")
    ]
    prep = {"exclude": [str(fault_file("prep/bench_prompts.json"))]}
    results = _prepare(toy_config(tmp_path, "x", datasets=sets, prep=prep))
    items = [item for r in results for item in read_prepared(r.folder, lane_of=any_lane)]

    assert "2 rows remain" in fault_row("F13")["expect"]
    assert 2 == len({item.uid for item in items}) == len(items)
    assert ["x-1", "y-2"] == [item.source_id for item in items]
    total = {reason: sum(r.rejected.get(reason, 0) for r in results)
             for reason in ("duplicate", "excluded")}  # fmt: skip
    assert {"duplicate": 1, "excluded": 1} == total


def test_what_a_dataset_was_compared_with_names_it(tmp_path: Path) -> None:
    """When an earlier dataset changes, a later one is refused and says so."""
    shared = _ask(1, "What is the capital of Norway, please?")
    config = _two(tmp_path, [shared], [shared, _ask(2, "And which river runs through Paris?")])
    one, two = _prepare(config)
    write_jsonl(tmp_path / "0.jsonl", _ask(3, "Which is the longest river of Asia?"))
    prepare_dataset(config, config.datasets[0], renderer=toy_renderer(), force=True)
    with pytest.raises(ArtifactError, match="these differ: earlier datasets"):
        prepare_dataset(config, config.datasets[1], renderer=toy_renderer())
    again = prepare_dataset(config, config.datasets[1], renderer=toy_renderer(), force=True)

    assert (["1"], ["2"]) == (["1"] if one.kept == 1 else [], ["2"] if two.kept == 1 else [])
    assert ["1", "2"] == _ids(again)
    assert {"one": read_manifest(one.folder).prep_key} == dict(
        read_manifest(again.folder).inputs["earlier datasets"]
    )


def test_duplicates_can_be_kept(tmp_path: Path) -> None:
    """`dataset` looks no further than the own source, `off` not even there."""
    rows = [_ask(1, "What is the capital of Norway?"), _ask(2, "what is the CAPITAL of Norway? ")]
    kept = {}
    for rule in ("all", "dataset", "off"):
        config = _two(tmp_path / rule, rows, [*rows, _ask(3, "Why?")], prep={"duplicates": rule})
        kept[rule] = [result.kept for result in _prepare(config)]

    assert {"all": [1, 1], "dataset": [1, 2], "off": [2, 3]} == kept


def test_the_keys_beside_a_dataset_are_those_of_its_questions(tmp_path: Path) -> None:
    """One 64-bit key a kept row, equal to the start of its identity."""
    rows = [_ask(i, f"Tell me something about the number {i}.") for i in range(9)]
    result = _one(tmp_path, [*rows, {"messages": []}])
    keys = [key_of(bytes.fromhex(line["dedup"])) for line in lines_of(result.folder)]

    assert keys == list(read_keys(result.folder))
    assert 9 * 8 == (result.folder / KEYS_NAME).stat().st_size
    (result.folder / KEYS_NAME).unlink()
    with pytest.raises(ArtifactError, match="older eagled"):
        list(read_keys(result.folder))


def test_near_duplicates_are_reported_or_dropped(tmp_path: Path) -> None:
    """Within and across datasets; off looks for none; what is reported is what would be dropped."""
    near, third = LONG.replace("patient", "curious"), LONG.replace("coast", "shore")
    other = "Give me a list of seven famous bridges with the year and the city of each one of them."
    outcome = {}
    for rule in ("off", "report", "drop"):
        config = _two(
            tmp_path / rule, [_ask(1, LONG), _ask(2, near)], [_ask(3, third), _ask(4, other)],
            prep={"near": rule, "near_threshold": 0.7},
        )  # fmt: skip
        results = _prepare(config)
        flagged = [line["source_id"] for r in results for line in lines_of(r.folder)
                   if "near_duplicate" in line["flags"]]  # fmt: skip
        dropped = [row["source_id"] for r in results for row in rejects_of(r.folder)]
        outcome[rule] = ([r.kept for r in results], flagged, dropped)
        assert (rule != "off") == (results[0].folder / NEAR_NAME).is_file()

    assert {
        "off": ([2, 2], [], []),
        "report": ([2, 2], ["2", "3"], []),
        "drop": ([1, 1], [], ["2", "3"]),
    } == outcome


def test_rows_with_one_id_are_two_rows(tmp_path: Path) -> None:
    """An id that stands twice in a source names nothing: what was asked decides."""
    rows = [_ask("same", "Why is the sky blue?"), _ask("same", "Why is the grass green?")]
    result = _one(tmp_path, [*rows, rows[0]])
    lines = lines_of(result.folder)

    assert [("same", 0), ("same", 1)] == [(line["source_id"], line["row"]) for line in lines]
    assert 2 == len({line["uid"] for line in lines})
    assert {"duplicate": 1} == result.rejected


def _run(number: int, task: str | None, question: str = "Mend it.") -> dict[str, Any]:
    """Return a recorded agent run; each number gives another one."""
    turns = [
        {"role": "system", "system_prompt": "Work.", "text": None},
        {"role": "user", "text": question},
        {"role": "ai", "text": f"Look.\n```\nls {number}\n```"},
        {"role": "user", "text": f"file {number}"},
        {"role": "ai", "text": "Done.\n```\nsubmit\n```"},
    ]
    return {"instance_id": task, "trajectory": turns, "exit_status": "submitted"}


RUNS = [_run(n, task) for n, task in enumerate(["a", "b", "a", "a", "b", "a", "c"])] + [
    _run(n, None, question) for n, question in enumerate(["Mend this.", "And this.", "Mend this."])
]


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (1, [0, 1, 6, 7, 8]),
        (2, [0, 1, 2, 4, 6, 7, 8, 9]),
        (3, [0, 1, 2, 3, 4, 6, 7, 8, 9]),
    ],
)
@pytest.mark.parametrize("count", [0, 10])
def test_few_runs_of_one_task_are_taken(
    tmp_path: Path, most: int, kept: list[int], count: int
) -> None:
    """The first ones, by the row's task or else its question; the others have their reason."""
    dataset = {"max_per_task": most, "turns": 1, "count": count, "shuffle": count > 0}
    result = _one(tmp_path, RUNS, dataset=dataset)
    inputs = read_manifest(result.folder).inputs

    assert kept == sorted(line["row"] for line in lines_of(result.folder))
    assert {"enough_runs": 10 - len(kept)} == {"enough_runs": 0, **result.rejected}
    assert most == inputs.get("runs of one task", 0)
    assert (most > 0) == ("runs of one task" in inputs)


def test_runs_are_counted_over_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished parts remember which tasks have enough runs: the result is that of a whole prep."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 2)
    monkeypatch.setattr(stage, "PART_ROWS", 2)
    source = write_jsonl(tmp_path / "s.jsonl", *RUNS)
    settings = {"dataset": {"max_per_task": 2}}
    [whole] = _prepare(toy_config(tmp_path / "whole", source, **settings))
    config = toy_config(tmp_path / "cut", source, **settings)
    real = Source.rows

    def cut(self: Source, skip: int = 0) -> Iterator[SourceRow]:
        for row in real(self, skip):
            if row.number == 5:
                raise UnreachableError("the hub stopped answering")
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(Source, "rows", cut)
        with pytest.raises(UnreachableError):
            _prepare(config)
    [mended] = _prepare(config)

    assert {"enough_runs": 2} == whole.rejected
    assert _files(whole.folder) == _files(mended.folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_benchmark_prompt_in_other_words_around_it_is_left_out(tmp_path: Path) -> None:
    """A shared run of 13 words is enough, and can be turned off."""
    bench = write_jsonl(tmp_path / "bench.jsonl", {"prompt": LONG})
    rows = [_ask(1, "Hello! " + " ".join(LONG.split()[4:20])), _ask(2, "What is the moon made of?")]
    prep = {"exclude": [str(bench)]}
    found = _one(tmp_path / "a", rows, prep=prep)
    blind = _one(tmp_path / "b", rows, prep={**prep, "exclude_ngram": 0})

    assert ({"excluded": 1}, {}) == (dict(found.rejected), dict(blind.rejected))
    assert "shares 13 words with prompt 1 of bench.jsonl" in rejects_of(found.folder)[0]["detail"]


def test_a_source_that_gives_too_few_says_so(tmp_path: Path) -> None:
    """The wanted count stays in the result, so that the table can show it."""
    rows = [_ask(i, f"Tell me something about the number {i}.") for i in range(5)]
    result = _one(tmp_path, rows, dataset={"count": 9, "shuffle": True})

    assert (5, 9) == (result.kept, result.wanted)


def test_all_rows_filtered_is_an_error_that_names_the_reason(tmp_path: Path) -> None:
    """An empty dataset is never a success."""
    source = write_jsonl(tmp_path / "s.jsonl", _ask(1, "What is the capital of Norway?"))
    with pytest.raises(ConfigError, match="not_matching 1"):
        _prepare(toy_config(tmp_path / "state", source, dataset={"include": ["Sweden"]}))
