"""Answers that hit their limit and are continued until they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.tokens import pack_ids
from eagled.types import Fence, Finish, SampleState
from eagled.workers import generate
from tests.servers.kit import (
    crashed_copy,
    make_config,
    running,
    sample_of,
    stored_ids,
    until,
)
from tests.servers.misbehaving import END, INFO, continuation
from tests.servers.process import ServerProcess

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
LANES = {"short": {"context": 40, "limit": 4}, "long": {"context": 0, "limit": 4}}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for due retries often."""
    monkeypatch.setattr(generate, "RETRY_TICK_S", 0.02)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One test server for the module; each test sets its own steps."""
    with ServerProcess() as process:
        yield process


def extending(url: str, max_new: int = 10, **generation: Any) -> Config:
    """Return a configuration that continues answers of `max_new` tokens."""
    config = make_config(url, lanes=LANES, on_length="extend", min_reply=4, **generation)
    sampling = config.sampling.model_copy(update={"max_new_tokens": max_new})
    return config.model_copy(update={"sampling": sampling})


def model(total: int, **more: Any) -> dict[str, Any]:
    """Return the step of a model that ends when prompt and answer have `total` ids."""
    return {"do": "model", "until": total, **more}


async def test_a_continued_answer_is_the_one_of_a_single_request(
    server: ServerProcess, tmp_path: Path
) -> None:
    """35 ids in requests of 10: joined to the very ids that one request would have given."""
    server.set(info=INFO, generate=[model(47)])
    before = len(server.seen()["sent"])
    async with running(tmp_path, extending(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)
        answers = await stored_ids(rig.store)

    sent = server.seen()["sent"][before:]
    assert answers == [continuation(PROMPT, 47)]
    assert answers[0][-1] == END
    assert [s["n_prompt"] for s in sent] == [12, 22, 32, 42]
    assert len({s["rid"] for s in sent}) == 4
    assert (sample.row.finish, sample.row.extended, sample.row.failures) == (Finish.STOP, 3, 0)


async def test_a_continuation_moves_to_the_lane_that_takes_it(
    server: ServerProcess, tmp_path: Path
) -> None:
    """What outgrows the short lane's context is continued in the long one."""
    server.set(info=INFO, generate=[model(47)])
    async with running(tmp_path, extending(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)
        counters = await rig.store.counters()

    assert sample.row.lane == "long"
    assert [(c.lane, c.state, c.n) for c in counters] == [("long", SampleState.GENERATED, 1)]


async def test_after_so_many_continuations_it_is_kept_as_cut(
    server: ServerProcess, tmp_path: Path
) -> None:
    """An answer without an end after two continuations is stored whole, as `length`."""
    server.set(info=INFO, generate=[model(400)])
    async with running(tmp_path, extending(server.url, max_extends=2)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)
        answers = await stored_ids(rig.store)

    assert answers == [continuation(PROMPT, 400)[:30]]
    assert (sample.row.finish, sample.row.extended) == (Finish.LENGTH, 2)


async def test_what_no_lane_takes_is_kept_as_cut(server: ServerProcess, tmp_path: Path) -> None:
    """With no lane for prompt and answer so far, nothing more is asked."""
    server.set(info=INFO | {"context_length": 34}, generate=[model(400)])
    async with running(tmp_path, extending(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    assert (sample.row.n_output, sample.row.finish, sample.row.extended) == (20, Finish.LENGTH, 1)


@pytest.mark.parametrize(
    "step",
    [
        {"do": "status", "status": 400, "body": {"error": {"message": "bad"}}},
        {"do": "answer", "ids": []},
    ],
)
async def test_a_continuation_that_fails_for_good_keeps_what_there_is(
    server: ServerProcess, tmp_path: Path, step: dict[str, Any]
) -> None:
    """Ids that were acknowledged are not lost to a later refusal."""
    server.set(info=INFO, generate=[model(400), step])
    async with running(tmp_path, extending(server.url, max_failures=1)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)
        answers = await stored_ids(rig.store)

    assert answers == [continuation(PROMPT, 400)[:10]]
    assert (sample.row.finish, sample.row.extended) == (Finish.LENGTH, 1)


async def test_a_crash_between_two_requests_goes_on_where_it_was(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The daemon dies with 20 of 35 ids kept: the next life asks for the rest only."""
    server.set(info=INFO, generate=[model(47), model(47), {"do": "never"}])
    config = extending(server.url)
    async with running(tmp_path / "one", config, stop_s=0.1) as rig:
        start = len(server.seen()["sent"])
        await rig.add([PROMPT])
        await until(lambda: len(server.seen()["sent"]) - start == 3)
        crashed = crashed_copy(tmp_path / "one", tmp_path / "two")
    server.set(generate=[model(47)])
    before = len(server.seen()["sent"])
    async with running(crashed, config) as rig:
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)
        answers = await stored_ids(rig.store)

    assert [s["n_prompt"] for s in server.seen()["sent"][before:]] == [32, 42]
    assert answers == [continuation(PROMPT, 47)]
    assert sample.row.extended == 3


async def test_a_late_reply_of_an_earlier_claim_doubles_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A continuation under an old fence changes nothing: no id comes twice."""
    server.set(info=INFO, generate=[{"do": "never"}])
    async with running(tmp_path, extending(server.url), stop_s=0.1) as rig:
        await rig.add([PROMPT])
        await until(lambda: rig.generator.in_flight("short") == 1)
        (row,) = await rig.store.samples()
        fence = Fence(row.id, row.attempt, rig.store.epoch)
        ten = pack_ids(continuation(PROMPT, 47)[:10])
        first = await rig.store.extend(fence, ten, extended=1, elapsed_s=1, lane="long")
        again = await rig.store.extend(fence, ten, extended=2, elapsed_s=1, lane="long")
        found = await rig.store.sample(row.uid)

    assert (first, again) == (True, False)
    assert found is not None
    assert found.row.extended == 1


async def test_server_faults_in_the_middle_cost_time_only(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Resets and 500s between the pieces of ten answers: every one is whole."""
    bad = [{"do": "reset"}, {"do": "status", "status": 500, "body": {"error": "boom"}}]
    server.set(info=INFO, generate=[*(step for _ in range(6) for step in (model(47), *bad)),
                                    model(47)])  # fmt: skip
    prompts = [[*PROMPT[:-1], 100 + i] for i in range(10)]
    async with running(tmp_path, extending(server.url, probe_interval_s=0.05)) as rig:
        await rig.add(prompts)
        await rig.settled(10)
        answers = await stored_ids(rig.store)

    assert answers == [continuation(prompt, 47) for prompt in prompts]


async def test_a_loop_is_not_continued(server: ServerProcess, tmp_path: Path) -> None:
    """An answer that repeats itself is kept as cut after one request; its check rejects it."""
    length = {"finish_reason": {"type": "length", "length": 600}}
    server.set(info=INFO, generate=[{"do": "answer", "ids": [5, 6] * 300, "meta": length}])
    before = len(server.seen()["sent"])
    async with running(tmp_path, extending(server.url, max_new=600)) as rig:
        await rig.add([PROMPT * 3])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    assert (sample.row.finish, sample.row.extended) == (Finish.LENGTH, 0)
    assert len(server.seen()["sent"]) - before == 1
