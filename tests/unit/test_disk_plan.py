"""What states will take, what would fit, and what is not known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from eagled.config import Config
from eagled.disk_facts import choose
from eagled.disk_plan import (
    Lengths,
    Model,
    Room,
    changed_policy,
    group_lengths,
    make_plan,
    measure_lossless,
    states_bytes,
    uniform,
)
from eagled.errors import ArtifactError, DiskError, UsageError
from eagled.paths import StatePaths
from eagled.shards.policy import StorePolicy, current_policy
from tests.faults import fault_file, fault_row
from tests.unit.shards.helpers import sample, write_shard

KIMI = Model(3, 7168)
TOY = Model(3, 8)
AUX_ONLY = StorePolicy(last="none")
WITH_LAST = StorePolicy(last="all")


@pytest.mark.fault("F71")
def test_the_estimate_stands_before_the_first_shard() -> None:
    """The bytes by the formula; 8 TB are refused with the shortfall, 11 TB hold the layers only."""
    case = json.loads(fault_file("disk/estimate.json").read_text(encoding="utf-8"))
    assert "8.0e12 bytes and of 11.0e12" in fault_row("F71")["how"]
    tokens = case["samples"] * case["avg_tokens"]
    model = Model(case["aux_layers"], case["hidden"])
    assert case["bytes_aux"] == states_bytes(tokens, AUX_ONLY, model)
    assert case["bytes_with_final_layer"] == states_bytes(tokens, WITH_LAST, model)

    def plan(budget: float, policy: StorePolicy) -> None:
        lengths = uniform(case["samples"], case["avg_tokens"])
        made = make_plan(lengths, model, Room(int(budget)), policy)
        beside = made.now.bytes_left - states_bytes(tokens, policy, model)  # type: ignore[operator] # known
        assert 0 <= beside < 0.001 * case["bytes_aux"]  # ids, masks, positions
        made.require_fit()

    with pytest.raises(
        DiskError, match=r"9,045,633,900,000 bytes .*1,045,633,900,000 bytes are mi"
    ):
        plan(8.0e12, AUX_ONLY)
    plan(11.0e12, AUX_ONLY)
    with pytest.raises(DiskError, match="bytes are missing"):
        plan(11.0e12, WITH_LAST)


def test_the_least_harmful_option_that_fits_is_recommended() -> None:
    """With less and less room: as it is, lossless, fp8, stream."""
    lengths = uniform(100_000, 2103, 700)
    seen = []
    for terabytes in (14, 9, 6, 1):
        plan = make_plan(lengths, KIMI, Room(terabytes * 10**12), StorePolicy())
        seen.append(plan.recommended)

    assert ["now", "lossless", "fp8", "stream"] == seen
    assert 'disk.mode = "stream"' in plan.why


def lengths(dataset: str, prompt: list[int], answer: list[int], done: int, left: int) -> Lengths:
    """Return lengths of which the first `done` have their states."""
    flags = np.arange(len(prompt)) < done
    return Lengths(dataset, "short", np.asarray(prompt), np.asarray(answer), flags, left)


def test_bytes_are_counted_by_hand() -> None:
    """Two answers wait for states, two samples for answers, which are taken to be like the rest."""
    groups = [lengths("a", [10, 20, 30], [5, 5, 5], done=1, left=2)]
    now = make_plan(groups, TOY, Room(10**9), StorePolicy()).now

    aux, last, token = 3 * 8 * 2, 8 * 2 + 4, 5
    exact = (25 + 35) * (aux + token) + 10 * last
    mean = ((15 + 25 + 35) * (aux + token) + 15 * last) / 3
    assert now.bytes_left == round(exact + 2 * mean)
    assert (now.groups[0].samples, now.groups[0].tokens) == (4, 60 + 50)
    assert now.supervised_kept == 1.0


def test_trim_and_codecs_change_what_is_stored() -> None:
    """A window of 4 before each answer, fp8: rows, scales and shares by hand."""
    groups = [lengths("a", [10, 2], [6, 6], done=0, left=0)]
    policy = StorePolicy(codec="fp8", last="none", keep_prompt=4, max_tokens=8)
    now = make_plan(groups, TOY, Room(10**9), policy).now

    rows = 8 + 8  # 4 + 4 of 6; 2 + 6
    assert now.bytes_left == rows * (3 * (8 + 4) + 5)
    assert now.supervised_kept == (4 + 6) / 12


def test_nothing_known_stays_unknown() -> None:
    """Open samples without any answer give no number, no recommendation and no refusal."""
    plan = make_plan([lengths("a", [], [], 0, left=5)], TOY, Room(1), StorePolicy())

    assert (plan.now.bytes_left, plan.now.fits, plan.recommended) == (None, None, "")
    plan.require_fit()


def test_a_dataset_without_answers_is_taken_like_the_others() -> None:
    """The mean of its dataset comes first, then that of all."""
    groups = [lengths("a", [10], [10], 1, 0), lengths("b", [], [], 0, left=3)]
    now = make_plan(groups, TOY, Room(10**9), AUX_ONLY).now

    assert [0, 3 * 20 * (48 + 5)] == [g.bytes for g in now.groups]


def test_the_day_when_it_is_full_counts_others() -> None:
    """1000 bytes a second of ours and as many of others; half the bytes are half of our rate."""
    room = Room(10_000, own_bytes_per_s=1000.0, others_bytes_per_s=1000.0)
    plan = make_plan(uniform(1000, 100), Model(3, 1024), room, AUX_ONLY)

    assert plan.now.full_in_s == 5.0
    fp8 = plan.option("fp8").full_in_s
    assert fp8 is not None
    assert 6.5 < fp8 < 6.8  # 1500 bytes a second


def test_groups_of_rows() -> None:
    """By dataset and lane; what was given up is left out, a later turn has no lane."""
    rows = [
        ("a", "short", "extracted", 5, 2),
        ("a", "short", "generated", 6, 3),
        ("a", "short", "queued", 7, None),
        ("a", None, "waiting", None, None),
        ("a", "short", "failed", 9, None),
    ]
    first, second = group_lengths(rows)

    assert (first.lane, first.open, second.lane, second.open) == ("", 1, "short", 1)
    assert (second.prompt.tolist(), second.extracted.tolist()) == ([5, 6], [True, False])


def test_the_share_of_lossless_is_measured_on_the_runs_own_states(tmp_path: Path) -> None:
    """Without a shard it is marked as assumed; with one it is the encoded size of its states."""
    assert measure_lossless(tmp_path) is None
    assert not Model(3, 8).lossless_measured
    write_shard(tmp_path, [sample(1, 200, 200)])

    share = measure_lossless(tmp_path)
    assert share is not None
    assert 0.6 < share < 0.9


def test_a_choice_is_recorded_and_taken_back(tmp_path: Path) -> None:
    """One call writes the policy with the numbers it was made from; `config` removes it."""
    config = Config.model_validate({"target": {"model": "toy"}, "run": {"state_dir": tmp_path}})
    path = StatePaths(tmp_path).disk_choice
    plan = make_plan(uniform(10, 100), TOY, Room(10**6), StorePolicy())
    choose(config, plan, "fp8")

    written = json.loads(path.read_text(encoding="utf-8"))
    assert current_policy(config, path) == plan.option("fp8").policy
    assert (written["option"], written["free_bytes"]) == ("fp8", 10**6)
    with pytest.raises(ArtifactError, match="there are now, lossless"):
        choose(config, plan, "gzip")
    with pytest.raises(ArtifactError, match=r"disk\.mode"):
        choose(config, plan, "stream")
    choose(config, plan, "config")
    assert current_policy(config, path) == StorePolicy()


def test_what_is_asked_is_checked() -> None:
    """Words and numbers that no shard could have are refused by name."""
    assert changed_policy(StorePolicy(), {}) is None
    asked = changed_policy(StorePolicy(), {"codec": "fp8", "keep_prompt": "64"})
    assert asked == dataclasses.replace(StorePolicy(), codec="fp8", keep_prompt=64)
    for changes in ({"codec": "gzip"}, {"last": "some"}, {"max_tokens": "-1"}, {"kodec": "raw"}):
        with pytest.raises(UsageError, match=next(iter(changes))):
            changed_policy(StorePolicy(), changes)
