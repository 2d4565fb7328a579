"""Known faults of servers, served byte for byte: what is stored, and what never is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagled.tokens import unpack_ids
from eagled.types import Finish, OutputReason, SampleState
from eagled.workers import generate
from tests.faults import fault_file, fault_row
from tests.servers.kit import (
    make_config,
    running,
    sample_of,
    stored_ids,
    until,
)
from tests.servers.misbehaving import IDS, INFO
from tests.servers.process import ServerProcess

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]  # 12 ids, as the native fault replies count them
GOOD = {"do": "answer"}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for due retries often."""
    monkeypatch.setattr(generate, "RETRY_TICK_S", 0.02)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One test server for the module; each test sets its own steps."""
    with ServerProcess() as process:
        yield process


def file_step(name: str) -> dict[str, Any]:
    """Return the step that serves a fault's file."""
    return {"do": "file", "path": str(fault_file(name))}


def body_of(name: str) -> bytes:
    """Return the body in a fault's file."""
    return fault_file(name).read_bytes().split(b"\r\n\r\n", 1)[1]


def ids_in(name: str) -> list[int]:
    """Return the output ids in a native reply file, read without eagled."""
    ids: list[int] = json.loads(body_of(name))["output_ids"]
    return ids


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "roundtrip/retokenize.http", [282, 256, 258, 271], marks=pytest.mark.fault("F34")
        ),
        pytest.param("roundtrip/replacement_char.http", None, marks=pytest.mark.fault("F35")),
        pytest.param("roundtrip/special_stripped.http", None, marks=pytest.mark.fault("F36")),
        pytest.param("server/tool_markers_odd.http", None, marks=pytest.mark.fault("F18")),
        pytest.param(
            "server/stop_all_in_reasoning_native.http", None, marks=pytest.mark.fault("F22")
        ),
    ],
)
async def test_what_is_stored_is_the_ids(
    server: ServerProcess, tmp_path: Path, name: str, expected: list[int] | None
) -> None:
    """Whatever the text says, the stored answer is `output_ids`, none added, none lost."""
    server.set(info=INFO, generate=[file_step(name)])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    stored = unpack_ids(sample.output.z, sample.output.crc).tolist()
    assert stored == (expected or ids_in(name))
    assert sample.row.finish is Finish.STOP
    assert sample.row.failures == 0


@pytest.mark.fault("F36")
async def test_requests_ask_for_markers_to_be_kept(server: ServerProcess, tmp_path: Path) -> None:
    """Every request says that special tokens stay in the text."""
    server.set(info=INFO, generate=[file_step("roundtrip/special_stripped.http")])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)

    sampling = server.seen()["sent"][-1]["sampling"]
    assert sampling["skip_special_tokens"] is False
    assert len(ids_in("roundtrip/special_stripped.http")) == 22


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        pytest.param("server/length_mid_think_native.http", 22, marks=pytest.mark.fault("F21")),
        pytest.param("server/tool_cut.http", 47, marks=pytest.mark.fault("F17")),
    ],
)
async def test_a_cut_reply_is_stored_as_cut(
    server: ServerProcess, tmp_path: Path, name: str, limit: int
) -> None:
    """A reply that hit our own limit is kept as `length`, its ids as they came; or dropped."""
    server.set(info=INFO, generate=[file_step(name)])
    keep = make_config(server.url).model_copy(
        update={"sampling": make_config().sampling.model_copy(update={"max_new_tokens": limit})}
    )
    async with running(tmp_path / "keep", keep) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        kept = await sample_of(rig.store, SampleState.GENERATED)
    generation = keep.generation.model_copy(update={"on_length": "drop"})
    drop = keep.model_copy(update={"generation": generation})
    async with running(tmp_path / "drop", drop) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        dropped = await sample_of(rig.store, SampleState.REJECTED)

    assert unpack_ids(kept.output.z, kept.output.crc).tolist() == ids_in(name)
    assert kept.row.finish is Finish.LENGTH
    assert dropped.row.reason == OutputReason.TRUNCATED
    assert dropped.output is None


NEVER_STORED = [
    pytest.param("server/marker_in_reasoning.http", "not a native", marks=pytest.mark.fault("F20")),
    pytest.param("server/length_mid_think.http", "not a native", marks=pytest.mark.fault("F21")),
    pytest.param(
        "server/stop_all_in_reasoning.http", "not a native", marks=pytest.mark.fault("F22")
    ),
    pytest.param("lanes/window_full.http", "not a native", marks=pytest.mark.fault("F38")),
    pytest.param("server/eof_without_done.http", "ended early", marks=pytest.mark.fault("F43")),
    pytest.param("server/cut_mid_chunk.http", "cut", marks=pytest.mark.fault("F44")),
    pytest.param("server/short_body.http", "cut", marks=pytest.mark.fault("F44")),
    pytest.param("server/error_in_stream.http", "worker died", marks=pytest.mark.fault("F45")),
    pytest.param("server/error_200.http", "worker died", marks=pytest.mark.fault("F45")),
    pytest.param("server/abort.http", "not a native", marks=pytest.mark.fault("F48")),
    pytest.param("server/abort_native.http", "KV cache pool", marks=pytest.mark.fault("F48")),
    pytest.param("server/usage_odd.http", "not a native", marks=pytest.mark.fault("F49")),
    pytest.param("bench/three_per_chunk.http", "event stream", marks=pytest.mark.fault("F92")),
]


@pytest.mark.parametrize(("name", "cause"), NEVER_STORED)
async def test_what_is_no_answer_is_tried_again(
    server: ServerProcess, tmp_path: Path, name: str, cause: str
) -> None:
    """Such a reply is logged with its cause; the sample goes back and gets the next answer."""
    server.set(info=INFO, generate=[file_step(name), GOOD])
    before = len(server.seen()["sent"])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)
        answers = await stored_ids(rig.store)

    assert answers == [IDS]
    assert sample.row.attempt == 2
    assert [cause in row.detail for row in sample.failures_log] == [True]
    assert len(server.seen()["sent"]) - before == 2


@pytest.mark.parametrize("name", ["server/abort_native.http", "server/error_200.http"])
async def test_only_such_replies_end_in_failed_with_nothing_stored(
    server: ServerProcess, tmp_path: Path, name: str
) -> None:
    """A server that never gives anything else leaves no answer behind, however long it runs."""
    server.set(info=INFO, generate=[file_step(name)])
    before = len(server.seen()["sent"])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        while len(server.seen()["sent"]) - before < 3:
            await rig.store.counters()
        states = await rig.states()

    assert SampleState.GENERATED not in states


@pytest.mark.fault("F48")
async def test_an_abort_narrows_the_flow(server: ServerProcess, tmp_path: Path) -> None:
    """After an abort with eight in flight fewer are sent at once; all is done in the end."""
    abort = json.loads(body_of("server/abort_native.http"))["meta_info"]["finish_reason"]
    slow_good = {"do": "answer", "delay_s": 0.1}
    aborted = {"do": "answer", "delay_s": 0.05, "meta": {"finish_reason": abort}}
    server.set(info=INFO, generate=[*[aborted] * 4, slow_good])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([[*PROMPT, i] for i in range(12)])
        endpoint = rig.generator._router.endpoints[0]
        await until(lambda: endpoint.faults == 4)
        narrowed = endpoint.capacity
        states = await rig.settled(12)
        rows = await rig.store.samples(limit=20)

    assert narrowed < 8
    assert states == {SampleState.GENERATED: 12}
    assert {row.failures for row in rows} == {0}


@pytest.mark.fault("F37")
async def test_a_request_refused_as_too_long_is_never_sent_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A 400 over lengths sets the sample aside once, told from other refusals by its numbers."""
    config = make_config(server.url, lanes={"long": {"context": 0, "limit": 4, "concurrency": 4}})
    sampling = config.sampling.model_copy(update={"max_new_tokens": 3000})
    config = config.model_copy(update={"sampling": sampling})
    server.set(info={"version": "0.5.23"}, generate=[file_step("lanes/context_400.http")])
    before = len(server.seen()["sent"])
    async with running(tmp_path, config) as rig:
        await rig.add([[7] * 8320])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.REJECTED)

    assert sample.row.reason == OutputReason.TOO_LONG_FOR_SERVER
    assert len(server.seen()["sent"]) - before == 1
    assert fault_row("F37")["files"] == ["lanes/context_400.http"]


@pytest.mark.fault("F37")
async def test_room_is_cut_to_what_the_server_has(server: ServerProcess, tmp_path: Path) -> None:
    """Knowing the server's context, a request asks for context minus prompt, not for the cap."""
    config = make_config(server.url, lanes={"long": {"context": 0, "limit": 4, "concurrency": 4}})
    sampling = config.sampling.model_copy(update={"max_new_tokens": 3000})
    server.set(info=INFO, generate=[GOOD])
    async with running(tmp_path, config.model_copy(update={"sampling": sampling})) as rig:
        await rig.add([[7] * 8320])
        await rig.settled(1)

    assert server.seen()["sent"][-1]["sampling"]["max_new_tokens"] == 10_240 - 8320


@pytest.mark.fault("F38")
async def test_a_full_window_is_no_reply_limit(server: ServerProcess, tmp_path: Path) -> None:
    """A cut before our limit is the window's: set aside as truncated, not stored, not re-sent."""
    length = {"finish_reason": {"type": "length", "length": 40}}
    server.set(info=INFO, generate=[{"do": "answer", "ids": [5] * 40, "meta": length}])
    before = len(server.seen()["sent"])
    config = make_config(server.url, lanes={"long": {"context": 0, "limit": 4, "concurrency": 4}})
    async with running(tmp_path, config) as rig:
        await rig.add([[7] * 10_100])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.REJECTED)

    assert sample.row.reason == OutputReason.TRUNCATED
    assert "window" in sample.row.detail
    assert sample.output is None
    assert len(server.seen()["sent"]) - before == 1


@pytest.mark.fault("F42")
async def test_a_reply_in_one_long_line_is_read_whole(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A single line of 700,000 bytes of text and 60,000 ids comes through complete."""
    assert "700000 bytes" in fault_file("server/long_line.json").read_text()
    ids = [i % 280 for i in range(60_000)]
    server.set(info=INFO, generate=[{"do": "answer", "ids": ids, "text_bytes": 700_000}])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        answers = await stored_ids(rig.store)

    assert answers == [ids]


@pytest.mark.fault("F49")
@pytest.mark.parametrize(
    "meta", [{"completion_tokens": 3}, {"prompt_tokens": 164}, {"completion_tokens": -1}]
)
async def test_counts_that_contradict_the_ids_never_store(
    server: ServerProcess, tmp_path: Path, meta: dict[str, int]
) -> None:
    """A reply whose counts are not those of its ids or of our prompt is broken, not believed."""
    server.set(info=INFO, generate=[{"do": "answer", "meta": meta}, GOOD])
    async with running(tmp_path, make_config(server.url)) as rig:
        await rig.add([PROMPT])
        await rig.settled(1)
        sample = await sample_of(rig.store, SampleState.GENERATED)

    assert [row.kind for row in sample.failures_log] == ["ReplyBrokenError"]
    assert sample.row.n_output == len(IDS)
