"""States captured while generating: asked for, found again, waited for, swept."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagled.config import Config
from eagled.daemon_spool import MIN_AGE_S, SpoolWatch, sample_of
from eagled.paths import StatePaths
from eagled.shards.spool import Spool
from eagled.store.records import SampleFilter
from eagled.types import SampleState
from tests.capture_kit import ANSWER, FakeCapture, put_file, serving
from tests.integration.test_extract_loop import names
from tests.servers.kit import make_config, running, stored_ids, until
from tests.unit.shards.helpers import HIDDEN, LAYERS

_PROMPTS = [[10 + i, 11, 12, 13] for i in range(6)]


def one_pass(url: str, spool: Path, root: Path, **extract: object) -> Config:
    """Return a configuration with one-pass capture."""
    plain = make_config(url)
    chosen = {"backend": "sglang", "capture": "with_generation", "spool": spool} | extract
    whole = plain.model_dump() | {"extract": chosen, "run": {"state_dir": root}}
    return Config.model_validate(whole)


async def test_every_answer_has_its_states_in_the_spool(tmp_path: Path) -> None:
    """Each request asks for states; each file is found by the ids that the store has."""
    capture = FakeCapture(tmp_path / "spool")
    with serving(capture) as url:
        config = one_pass(url, capture.spool, tmp_path)
        async with running(tmp_path, config) as rig:
            await rig.add(_PROMPTS)
            states = await rig.settled(len(_PROMPTS))
            answers = await stored_ids(rig.store)
    spool = Spool(capture.spool, LAYERS, HIDDEN)
    spool.refresh()
    found = [spool.take(np.array([*prompt, *ANSWER])) for prompt in _PROMPTS]

    assert {SampleState.GENERATED: len(_PROMPTS)} == states
    assert [ANSWER] * len(_PROMPTS) == answers
    assert ["one_pass"] * len(_PROMPTS) == [f.capture for f in found if f is not None]


async def test_server_without_the_plugin_gets_nothing_and_costs_nobody(tmp_path: Path) -> None:
    """It is refused, with words; samples stay queued; when it captures again they are done."""
    capture = FakeCapture(tmp_path / "spool", "plain")
    with serving(capture) as url:
        async with running(tmp_path, one_pass(url, capture.spool, tmp_path)) as rig:
            await rig.add(_PROMPTS)
            await until(lambda: rig.server_state() == "refused")
            before = await rig.states()
            said = rig.generator.metrics().servers[0].detail
            capture.mode = "good"
            after = await rig.settled(len(_PROMPTS))

    assert {SampleState.QUEUED: len(_PROMPTS)} == before
    assert "does not write hidden states" in str(said)
    assert {SampleState.GENERATED: len(_PROMPTS)} == after


class Forgetful(FakeCapture):
    """A server that comes back without the plugin, before its third answer."""

    answers = 0

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer; from the third answer on without states."""
        if body["sampling_params"]["max_new_tokens"]:
            self.answers += 1
            if self.answers == 3:
                self.mode = "plain"
        return super().answer(body)


async def test_server_restarted_without_the_plugin_is_found_by_its_next_answer(
    tmp_path: Path,
) -> None:
    """That answer is not stored; nothing more is sent until it captures again."""
    capture = Forgetful(tmp_path / "spool")
    lanes = {"short": {"limit": 1, "concurrency": 1}}
    with serving(capture) as url:
        config = one_pass(url, capture.spool, tmp_path)
        config = Config.model_validate(config.model_dump() | {"lanes": lanes})
        async with running(tmp_path, config) as rig:
            await rig.add(_PROMPTS)
            await until(lambda: rig.server_state() == "refused")

            async def given_back() -> bool:
                return SampleState.GENERATING not in await rig.states()

            await until(given_back)
            before = await rig.states()
            capture.mode = "good"
            after = await rig.settled(len(_PROMPTS))
            rows = await rig.store.samples(SampleFilter(), limit=10)
    spool = Spool(capture.spool, LAYERS, HIDDEN)
    spool.refresh()
    found = [spool.take(np.array([*prompt, *ANSWER])) for prompt in _PROMPTS]

    stored = before.get(SampleState.GENERATED, 0)
    assert stored <= 2  # the check of an earlier answer may have met the new server
    assert before[SampleState.QUEUED] == 6 - stored
    assert {SampleState.GENERATED: 6} == after
    assert None not in found
    assert {0} == {row.failures for row in rows}


def test_full_spool_holds_generation_with_hysteresis(tmp_path: Path) -> None:
    """Over the limit it is full, and stays so until clearly below."""
    config = one_pass("http://127.0.0.1:1", tmp_path / "spool", tmp_path, spool_bytes=3 * 8192)
    watch = SpoolWatch(config)
    seen = []
    for kept in (2, 4, 3, 2):
        for path in (tmp_path / "spool").glob("*"):
            path.unlink()
        for n in range(kept):
            put_file(tmp_path / "spool", f"f{n}", np.arange(10), 2)
        seen.append(watch.look().full)

    assert [False, True, True, False] == seen


def test_disk_at_its_reserve_holds_generation(tmp_path: Path) -> None:
    """The reserve is the governor's; the reason says which disk."""
    config = one_pass("http://127.0.0.1:1", tmp_path / "spool", tmp_path)
    whole = config.model_dump() | {"disk": {"reserve_bytes": 1 << 60}}
    view = SpoolWatch(Config.model_validate(whole)).look()

    assert view.full
    assert "down to its reserve" in view.reason


async def test_sweep_takes_only_what_belongs_to_nobody(tmp_path: Path) -> None:
    """Files of waiting answers and fresh files stay; those of unknown samples and probes go."""
    capture = FakeCapture(tmp_path / "spool")
    with serving(capture) as url:
        config = one_pass(url, capture.spool, tmp_path)
        async with running(tmp_path, config) as rig:
            await rig.add(_PROMPTS)
            await rig.settled(len(_PROMPTS))
            kept = [n for n in names(capture.spool) if sample_of(n) is not None]
            lineage, epoch, _, attempt = kept[0].split(".")[0].split("-")
            stranger = f"{lineage}-{epoch}-{10**6:012x}-{attempt}"
            put_file(capture.spool, stranger, np.arange(5), 2)
            old = time.time() - 2 * MIN_AGE_S
            for name in names(capture.spool):
                os.utime(capture.spool / name, (old, old))
            fresh = put_file(capture.spool, f"{stranger[:-1]}9", np.arange(5), 2).name
            watch = SpoolWatch(config)
            await asyncio.to_thread(watch.sweep, StatePaths(tmp_path).database)

    assert len(_PROMPTS) == len(kept)
    assert sorted([*kept, fresh]) == names(capture.spool)


@pytest.mark.parametrize("name", ["notes.txt", "a-b.safetensors", "x-y-zz-q.safetensors", "p.tmp"])
def test_other_files_are_not_ours(name: str) -> None:
    """Only names that our request ids make are ever looked up."""
    assert sample_of(name) is None
