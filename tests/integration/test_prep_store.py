"""From prepared folders through the real store to the prompt of a later turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eagled.clock import FakeClock
from eagled.paths import StatePaths
from eagled.prepared import read_manifest, read_prepared
from eagled.store import AddResult, DatasetRecord, LaneRow, StateLock, Store
from eagled.text.check import TextChecker
from eagled.tokens import pack_ids, unpack_ids
from eagled.types import Answer, Finish, SampleState
from eagled.workers.prepare import prepare_dataset
from tests.faults import fault_file
from tests.prep_kit import any_lane, toy_config, toy_renderer, write_jsonl


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store with one lane."""
    root = tmp_path / "store"
    root.mkdir()
    paths = StatePaths(root)
    with StateLock(paths.lock):
        store = await Store.open(paths, clock=FakeClock(), create=True)
        await store.sync_lanes([LaneRow("short", 0, 0, 8)])
        try:
            yield store
        finally:
            await store.close()


async def _enqueue(store: Store, folder: Path) -> AddResult:
    manifest = read_manifest(folder)
    rejected = sum(manifest.rejected.values())
    record = DatasetRecord(
        manifest.dataset, 0, manifest.mode, manifest.prep_key, manifest.n_rows, manifest.n_kept,
        rejected,
    )  # fmt: skip
    number = await store.add_dataset(record)
    result = await store.add_conversations(number, list(read_prepared(folder, lane_of=any_lane)))
    await store.finish_dataset(number)
    return result


def _prepared(tmp_path: Path, name: str, source: Path, **sections: Any) -> Path:
    config = toy_config(tmp_path / "prep", source, dataset={"name": name}, **sections)
    return prepare_dataset(config, config.datasets[0], renderer=toy_renderer()).folder


@pytest.mark.fault("F13")
async def test_two_sources_become_two_rows(store: Store, tmp_path: Path) -> None:
    """Equal ids stay apart, the shared question is one duplicate, the benchmark stays out."""
    exclude = {"exclude": [str(fault_file("prep/bench_prompts.json"))]}
    results = []
    for name in ("a", "b"):
        source = fault_file(f"prep/merge_{name}.jsonl")
        results.append(await _enqueue(store, _prepared(tmp_path, name, source, prep=exclude)))

    assert [AddResult(1, 0, 0), AddResult(1, 0, 1)] == results
    assert [("a", 1), ("b", 1)] == [(row.dataset, row.n) for row in await store.counters()]


@pytest.mark.fault("F50")
async def test_a_second_import_adds_nothing(store: Store, tmp_path: Path) -> None:
    """Finished rows stay finished when the same file is queued again."""
    folder = _prepared(tmp_path, "d", fault_file("resume/no_id_rows.jsonl"))
    first = await _enqueue(store, folder)
    for claim in await store.claim("short", 2):
        answer = Answer(pack_ids([282, 71, 271]), Finish.STOP, "server", 0.1)
        assert await store.complete(claim.fence, answer)
    second = await _enqueue(store, folder)

    assert (AddResult(3, 0, 0), AddResult(0, 3, 0)) == (first, second)
    states = {row.state: row.n for row in await store.counters()}
    assert {SampleState.QUEUED: 1, SampleState.GENERATED: 2} == states


async def test_a_later_turn_is_asked_with_the_new_answer(store: Store, tmp_path: Path) -> None:
    """Claim, answer, check and settle queue the second turn with the exact replayed prompt."""
    chat = [
        {"role": "user", "content": "Tell me of one river."},
        {"role": "assistant", "content": "old answer"},
        {"role": "user", "content": "And another?"},
        {"role": "assistant", "content": "older"},
    ]
    source = write_jsonl(tmp_path / "s.jsonl", {"messages": chat})
    await _enqueue(store, _prepared(tmp_path, "d", source))
    renderer = toy_renderer()
    output = renderer.tokenizer.encode("hm</think>The Lena.<|im_end|>", add_special_tokens=False)
    checker = TextChecker(renderer)
    asked = []
    for _ in range(2):
        [claim] = await store.claim("short", 5)
        asked.append(renderer.decode(unpack_ids(claim.prompt.z, claim.prompt.crc).tolist()))
        answer = Answer(pack_ids(output), Finish.STOP, "server", 0.1)
        assert await store.complete(claim.fence, answer)
        jobs = await store.text_jobs(5)
        verdicts = [checker.check(job) for job in jobs]
        assert 1 == await store.settle_text(verdicts, lane_of=any_lane)

    assert asked[1] == (
        asked[0].removesuffix("<think>") + "<think></think>The Lena.<|im_end|>"
        "<|im_user|>user<|im_middle|>And another?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>"
    )
    assert {SampleState.GENERATED: 2} == {row.state: row.n for row in await store.counters()}
    assert [] == await store.text_jobs(5)
