"""From batches to files: the right rows, all of them, or a note that says why not."""

from __future__ import annotations

import errno
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from eagled.sglang_plugin import writer
from eagled.sglang_plugin.ring import Region
from eagled.sglang_plugin.spoolfile import FileFacts, final_path
from tests.unit.plugin.kit import (
    HIDDEN,
    LAYERS,
    WIDTH,
    Request,
    batch,
    rows_of,
    settings,
    tapping,
    until_settled,
)


def test_chunks_and_decode_rows_become_one_file(tmp_path: Path) -> None:
    """Two chunks of a prompt and two decode rows, beside a request that does not ask."""
    spool = tmp_path / "spool"
    req, other = Request("one", [1, 2, 3, 4, 5]), Request("two", [9], return_hidden_states=False)
    rows = rows_of(1, 7)
    with tapping(settings(spool)) as tap:
        batch(tap, [req], [3], rows[:3])
        batch(tap, [other, req], [1, 2], torch.cat([rows_of(2, 1), rows[3:5]]))
        req.output_ids_through_stop = [6]
        batch(tap, [req, other], [1, 1], torch.cat([rows[5:6], rows_of(3, 1)]))
        req.output_ids_through_stop = [6, 7, 8]
        batch(tap, [other, req], [1, 1], torch.cat([rows_of(4, 1), rows[6:7]]), ends=[req, other])
        receipt = until_settled(spool, "one")
    found = load_file(receipt.path)

    assert torch.equal(rows, found["states"])
    assert [1, 2, 3, 4, 5, 6, 7, 8] == found["input_ids"].tolist()
    assert (7, WIDTH, LAYERS) == (receipt.rows, receipt.width, receipt.layers)
    assert zlib.crc32(rows.view(torch.uint8).numpy().tobytes()) == receipt.crc32
    assert ["one.safetensors"] == [p.name for p in spool.iterdir()]


def test_header_is_what_safetensors_reads(tmp_path: Path) -> None:
    """The hand-written header is a valid one, with its metadata."""
    req = Request("meta", [1, 2])
    with tapping(settings(tmp_path / "spool")) as tap:
        batch(tap, [req], [2], rows_of(1, 2), ends=[req])
        receipt = until_settled(tmp_path / "spool", "meta")
    with safe_open(receipt.path, "pt") as file:
        meta = file.metadata()

    assert ("meta", "[1, 3]", "2", "0") == tuple(
        meta[k] for k in ("rid", "layers", "prompt_tokens", "output_tokens")
    )


def test_disk_is_set_to_work_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges follow one another without a gap, and the file is what was written."""
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(writer, "_WRITE_BACK_BYTES", 1000)
    monkeypatch.setattr(writer, "start_write_back", lambda _fd, at, n: ranges.append((at, n)))
    file = writer.CaptureFile(tmp_path, "early", 0, sync=True)
    rows = rows_of(1, 50)
    for row in rows:
        file.write(memoryview(row.view(torch.uint8).numpy()))
    facts = FileFacts("early", LAYERS, HIDDEN, 50, 0, "bfloat16", "test", "model")
    file.complete(facts, bytes(200))

    assert [at for at, _ in ranges[1:]] == [at + n for at, n in ranges[:-1]]
    assert len(ranges) == 50 * WIDTH * 2 // 1008
    assert torch.equal(rows, load_file(final_path(tmp_path, "early"))["states"])


def test_real_write_back_takes_any_range(tmp_path: Path) -> None:
    """The call itself harms nothing."""
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 1000)
    with path.open("r+b") as file:
        writer.start_write_back(file.fileno(), 100, 2000)

    assert b"abc" * 1000 == path.read_bytes()


def test_only_asked_rows_of_a_batch_are_copied(tmp_path: Path) -> None:
    """Many alternating requests: each file has its own rows."""
    spool = tmp_path / "spool"
    reqs = [Request(f"r{i}", [1] * 3, return_hidden_states=i % 2 == 0) for i in range(20)]
    packed = rows_of(7, 60)
    with tapping(settings(spool)) as tap:
        batch(tap, reqs, [3] * 20, packed, ends=reqs)
        receipts = {i: until_settled(spool, f"r{i}") for i in range(0, 20, 2)}

    for i, receipt in receipts.items():
        assert torch.equal(packed[3 * i : 3 * i + 3], load_file(receipt.path)["states"])


def test_retraction_starts_the_rows_again(tmp_path: Path) -> None:
    """Rows before a retraction, and of a batch in flight at that time, are not in the file."""
    spool, req = tmp_path / "spool", Request("back", [1, 2, 3])
    with tapping(settings(spool)) as tap:
        batch(tap, [req], [3], rows_of(1, 3))
        flying = tap.plan([req], [1], rows_of(2, 1), copied=True)
        assert flying is not None
        tap.stage(flying)
        tap.retracted(req)
        tap.accept(flying, req)
        tap.settle(flying, [req])
        req.output_ids_through_stop = [4, 5]
        again = rows_of(3, 4)
        batch(tap, [req], [4], again, ends=[req])
        receipt = until_settled(spool, "back")

    assert torch.equal(again, load_file(receipt.path)["states"])


def test_missing_rows_are_refused(tmp_path: Path) -> None:
    """A prefix cache that leaves rows out is named, with both counts."""
    spool, req = tmp_path / "spool", Request("short", list(range(10)), [1, 2])
    with tapping(settings(spool)) as tap:
        batch(tap, [req], [4], rows_of(1, 4), ends=[req])
        receipt = until_settled(spool, "short")

    assert "failed" == receipt.state
    assert receipt.error.startswith("4 rows captured, 11 expected for 10 prompt and 2 answer")
    assert "prefix cache" in receipt.error
    assert not final_path(spool, "short").exists()


def test_aborted_and_vanished_requests_leave_nothing(tmp_path: Path) -> None:
    """Neither file nor note nor temporary file."""
    spool = tmp_path / "spool"
    with tapping(settings(spool)) as tap:
        aborted, vanished = Request("aborted", [1]), Request("vanished", [1])
        batch(tap, [aborted, vanished], [1, 1], rows_of(1, 2))
        aborted.end("abort")
        tap.settle(None, [aborted])
        del vanished
        last = Request("last", [1])
        batch(tap, [last], [1], rows_of(2, 1), ends=[last])
        until_settled(spool, "last")

    assert ["last.safetensors"] == [p.name for p in spool.iterdir()]


def test_full_spool_fails_the_request_and_not_the_server(tmp_path: Path) -> None:
    """Below the reserve nothing is begun; the note says how much is free."""
    spool, req = tmp_path / "spool", Request("full", [1, 2])
    with tapping(settings(spool, reserve_bytes=1 << 60)) as tap:
        batch(tap, [req], [2], rows_of(1, 2), ends=[req])
        receipt = until_settled(spool, "full")

    assert "failed" == receipt.state
    assert "spool full" in receipt.error


def test_disk_that_fills_in_the_middle_fails_that_file_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of it is removed, and the note has the system's words."""

    def full(_fd: int, _data: memoryview, _position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = writer.CaptureFile(tmp_path, "mid", 0)
    file.write(memoryview(b"x" * 64))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        file.write(memoryview(b"x" * 64))
    file.complete(FileFacts("mid", LAYERS, HIDDEN, 1, 1, "bfloat16", "test", "model"), b"")
    receipt = until_settled(tmp_path, "mid")

    assert ("failed", ["mid.failed"]) == (receipt.state, [p.name for p in tmp_path.iterdir()])
    assert "No space left on device" in receipt.error


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Let a process run a third of the time only, as one that waits for a slow disk."""
    over = threading.Event()

    def brake() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.02)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.01)

    thread = threading.Thread(target=brake)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


def test_slow_disk_slows_the_scheduler_and_costs_no_states(tmp_path: Path) -> None:
    """Ten times more rows than the ring has room for, and a slow writer: every file is whole."""
    spool = tmp_path / "spool"
    reqs = [Request(f"r{i}", [1] * 200) for i in range(13)]
    with tapping(settings(spool, ring_bytes=WIDTH * 2 * 256)) as tap:
        with slowed(tap._outlet._process.pid):
            for i, req in enumerate(reqs):
                batch(tap, [req], [200], rows_of(i, 200), ends=[req])
        receipts = [until_settled(spool, req.rid) for req in reqs]

    assert {"complete"} == {r.state for r in receipts}
    for i, receipt in enumerate(receipts):
        assert torch.equal(rows_of(i, 200), load_file(receipt.path)["states"])


def test_stopped_writer_holds_the_scheduler_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full ring is waited for once, then states are given up at once until it moves again."""
    spool = tmp_path / "spool"
    given = settings(spool, stall_s=0.3, ring_bytes=WIDTH * 2 * 256)
    with tapping(given) as tap:
        first = Request("first", [1])
        batch(tap, [first], [1], rows_of(1, 1), ends=[first])
        until_settled(spool, "first")
        pid = tap._outlet._process.pid
        wait, waits = tap._outlet._wait_for_room, []

        def counted(nbytes: int) -> Region | None:
            waits.append(nbytes)
            return wait(nbytes)

        monkeypatch.setattr(tap._outlet, "_wait_for_room", counted)
        os.kill(pid, signal.SIGSTOP)
        reqs = [Request(f"r{i}", [1] * 200) for i in range(6)]
        for req in reqs:
            batch(tap, [req], [200], rows_of(2, 200), ends=[req])
        os.kill(pid, signal.SIGCONT)
        states = [until_settled(spool, req.rid) for req in reqs]

    assert 1 == len(waits)
    assert "complete" == states[0].state
    assert {"failed"} == {r.state for r in states[1:]}
    assert "no room in the ring" in states[-1].error


def test_dead_writer_is_replaced(tmp_path: Path) -> None:
    """What it had in work fails with a note; the next request is captured."""
    spool = tmp_path / "spool"
    with tapping(settings(spool)) as tap:
        req = Request("hit", [1, 2, 3])
        batch(tap, [req], [2], rows_of(1, 2))
        process = tap._outlet._process
        process.kill()
        process.wait()
        batch(tap, [req], [1], rows_of(2, 1), ends=[req])
        hit = until_settled(spool, "hit")
        after = Request("after", [1])
        batch(tap, [after], [1], rows_of(3, 1), ends=[after])
        receipt = until_settled(spool, "after")

    assert ("failed", "complete") == (hit.state, receipt.state)
    assert ["after.safetensors", "hit.failed"] == sorted(p.name for p in spool.iterdir())


@pytest.mark.parametrize("rid", ["../up", ".dot", "a/b", ""])
def test_unsafe_rid_touches_no_file(tmp_path: Path, rid: str) -> None:
    """A name that leads elsewhere is not captured."""
    spool, req = tmp_path / "spool", Request(rid, [1])
    with tapping(settings(spool)) as tap:
        batch(tap, [req], [1], rows_of(1, 1), ends=[req])

    assert [] == list(spool.iterdir())
    assert ["spool"] == [p.name for p in tmp_path.iterdir()]
