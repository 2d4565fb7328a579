"""Which answers of a conversation are taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagled.prepared import read_prepared
from eagled.readers.pick import pick
from eagled.types import RowReason
from eagled.workers.prepare import prepare_dataset
from tests.prep_kit import any_lane, lines_of, toy_config, toy_renderer, write_jsonl

TARGETS = tuple(range(2, 818, 2))
N_STEPS = 40


def _run_of(n_steps: int) -> dict[str, Any]:
    """Return an agent run of `n_steps` commands."""
    turns = [
        {"role": "system", "system_prompt": "Work."},
        {"role": "user", "text": "Mend it."},
    ]
    for step in range(n_steps):
        turns.append({"role": "ai", "text": f"DISCUSSION\nStep.\n```\nls {step}\n```"})
        turns.append({"role": "user", "text": f"result {step}"})
    return {"instance_id": "task", "trajectory": turns, "exit_status": "submitted"}


def test_all_and_last() -> None:
    """The two words do what they say; no answer stays none."""
    assert TARGETS == pick(TARGETS, "all", 0, "x")
    assert (816,) == pick(TARGETS, "last", 0, "x")
    assert () == pick((), "last", 0, "x")
    assert (1, 3) == pick((3, 1), 5, 0, "x")


def test_a_number_chooses_by_seed_and_identity() -> None:
    """The choice is the same for the same run, another for another, and spread over the run."""
    chosen = pick(TARGETS, 3, 7, "x")

    assert 3 == len(set(chosen))
    assert tuple(sorted(chosen)) == chosen
    assert set(chosen) <= set(TARGETS)
    assert chosen == pick(TARGETS[::-1], 3, 7, "x")
    assert len({pick(TARGETS, 3, seed, "x") for seed in range(20)}) > 15
    firsts = [pick(TARGETS, 1, 0, str(i))[0] for i in range(400)]
    assert 330 < sum(firsts) / len(firsts) < 490


@pytest.mark.parametrize(("turns", "n"), [("all", N_STEPS + 1), ("last", 1), (2, 2)])
def test_a_run_gives_as_many_samples_as_wanted(tmp_path: Path, turns: Any, n: int) -> None:
    """Each chosen turn is asked behind the whole recorded run before it, and waits for no other."""
    path = write_jsonl(tmp_path / "rows.jsonl", _run_of(N_STEPS), _run_of(N_STEPS - 1))
    lanes = {"all": {"context": 0}}
    config = toy_config(tmp_path / "state", path, dataset={"turns": turns}, lanes=lanes)
    done = prepare_dataset(config, config.datasets[0], renderer=toy_renderer())
    line = lines_of(done.folder)[0]

    assert (2, 2) == (done.rows, done.kept)
    assert n == len(line["turns"])
    for turn in line["turns"]:
        text = toy_renderer().decode(turn["prompt_ids"])
        assert text.count("result ") == (turn["target"] - 2) // 2
        assert turn["output_ids"] is None
    stored = next(iter(read_prepared(done.folder, lane_of=any_lane)))
    assert all(turn.prompt is not None for turn in stored.turns)


def test_runs_of_one_task_are_no_duplicates_and_the_same_run_is(tmp_path: Path) -> None:
    """Other answers make another run; the same file twice is the same work."""
    other = json.loads(json.dumps(_run_of(3)).replace("ls 1", "cat x"))
    path = write_jsonl(tmp_path / "rows.jsonl", _run_of(3), other, _run_of(3))
    config = toy_config(tmp_path / "state", path)
    done = prepare_dataset(config, config.datasets[0], renderer=toy_renderer())

    assert (3, 2, {RowReason.DUPLICATE.value: 1}) == (done.rows, done.kept, dict(done.rejected))
