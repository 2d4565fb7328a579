"""The back end over capturing servers: what it takes, what it refuses, and who pays."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from eagled.clock import SystemClock
from eagled.errors import (
    ConfigError,
    ReplyBrokenError,
    ServerUnavailableError,
    StatesRejectedError,
)
from eagled.shards.backend import Ids
from eagled.shards.backend_sglang import CaptureServer, SglangBackend
from eagled.shards.compute import open_jobs
from eagled.shards.reader import ShardDataset
from eagled.workers.extraction import Extraction
from tests.capture_kit import FakeCapture, put_file, serving, states_of, target
from tests.faults import fault_row
from tests.integration.test_extract_loop import DEADLINE_S, names, settings
from tests.unit.shards.doubles import Daemon, make_job
from tests.unit.shards.helpers import HIDDEN, LAYERS

_CHILD = Path(__file__).with_name("capture_child.py")


@contextmanager
def backend_over(capture: FakeCapture, wait_s: float = 10.0) -> Iterator[SglangBackend]:
    """Yield the back end over one fake server."""
    with serving(capture) as url:
        yield SglangBackend(
            target(capture.spool),
            layers=LAYERS,
            servers=[CaptureServer(url)],
            spool=capture.spool,
            wait_s=wait_s,
        )


def ids_of(number: int) -> Ids:
    """Return the whole ids of a job."""
    return open_jobs([make_job(number)], 300)[0][0].ids


async def run(daemon: Daemon, shards: Path, backend: SglangBackend) -> Extraction:
    """Run the worker's loop to its end."""
    loop = Extraction(daemon, backend, settings(shards, away_wait_s=0.001), SystemClock())
    await asyncio.wait_for(loop.run(), DEADLINE_S)
    return loop


def check_shards(daemon: Daemon, shards: Path, numbers: range) -> None:
    """Assert that exactly these samples are there, with their own rows."""
    found = ShardDataset([shards / name for name in daemon.shards])
    assert len(found) == len(numbers)
    for number in numbers:
        job = make_job(number)
        sample, ids = found.by_uid(job.uid.hex()), ids_of(number)
        states = states_of(ids, len(ids) - 1)
        bits = sample["aux"].view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(states[:, : len(LAYERS) * HIDDEN], bits)


async def test_passes_and_one_pass_captures_give_the_same_shards(tmp_path: Path) -> None:
    """Samples with a file from generation are not passed over again; the others are, once."""
    capture = FakeCapture(tmp_path / "spool")
    for number in range(0, 10, 2):
        put_file(capture.spool, f"gen-{number}", ids_of(number), make_job(number).output.n)
    daemon, shards = Daemon([make_job(n) for n in range(10)]), tmp_path / "shards"
    with backend_over(capture) as backend:
        await run(daemon, shards, backend)

    check_shards(daemon, shards, range(10))
    assert 5 == len(capture.served)
    assert [] == names(capture.spool)
    assert [] == daemon.failed


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("plain", "without a receipt"),
        ("other", "in the form eagled-capture-9, this eagled reads eagled-capture-1"),
        ("failed", "states were not captured: spool full"),
        ("lost", "did not come within"),
        ("short", "states were not captured: ValueError"),
        ("flipped", "checksum"),
        ("down", "HTTP 503"),
    ],
)
async def test_a_server_that_does_not_deliver_is_held_against_no_sample(
    tmp_path: Path, mode: str, words: str
) -> None:
    """Missing, short and corrupt files, a server without plugin or with a full spool.

    Samples come back without a charge however often, and get their states once it is mended.
    """
    capture = FakeCapture(tmp_path / "spool", mode)
    daemon, shards = Daemon([make_job(1)]), tmp_path / "shards"
    with backend_over(capture, wait_s=0.05) as backend:
        with pytest.raises((ServerUnavailableError, ReplyBrokenError), match=words):
            backend.capture([ids_of(1)])
        loop = Extraction(daemon, backend, settings(shards, away_wait_s=0.001), SystemClock())
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(DEADLINE_S):
            while len(daemon.failed) < 5:  # noqa: ASYNC110 - more often than a sample may fail
                await asyncio.sleep(0.005)
        capture.mode = "good"
        await asyncio.wait_for(running, DEADLINE_S)

    check_shards(daemon, shards, range(1, 2))
    assert {False} == {final for _, _, final in daemon.failed}


async def test_refused_request_ends_the_sample_alone(tmp_path: Path) -> None:
    """HTTP 400 is about the sample: it fails, for good, with the server's words."""
    capture = FakeCapture(tmp_path / "spool", "refused")
    daemon = Daemon([make_job(1)])
    with backend_over(capture) as backend:
        with pytest.raises(StatesRejectedError, match="refuses it"):
            backend.capture([ids_of(1)])
        await run(daemon, tmp_path / "shards", backend)

    assert [True] == [final for _, _, final in daemon.failed]


@pytest.mark.fault("F67")
def test_file_is_read_only_when_it_is_whole(tmp_path: Path) -> None:
    """A reply that comes before the file is complete: waited for, then read; too late: refused.

    The half file is neither read nor removed.
    """
    expect = fault_row("F67")["expect"]
    capture = FakeCapture(tmp_path / "spool", "late", late_s=0.2)
    with backend_over(capture) as backend:
        (states,) = backend.capture([ids_of(1)])
    slow = FakeCapture(tmp_path / "slow", "late", late_s=1.0)
    with backend_over(slow, wait_s=0.1) as backend:
        with pytest.raises(ReplyBrokenError, match=r"did not come within 0\.1 s"):
            backend.capture([ids_of(2)])
        half = names(slow.spool)

    assert "the file is read only when complete" in expect
    assert len(ids_of(1)) == len(states.last)
    assert [".tmp"] == [Path(n).suffix for n in half]


def test_damaged_file_in_the_spool_costs_a_pass(tmp_path: Path) -> None:
    """A file of generation that is short or flipped is removed, and its sample passed over."""
    capture = FakeCapture(tmp_path / "spool")
    n_output = make_job(1).output.n
    path = put_file(capture.spool, "gen", ids_of(1), n_output)
    raw = path.read_bytes()
    with backend_over(capture) as backend:
        for damaged in (raw[:-8], raw[:100], raw[:4200] + bytes([raw[4200] ^ 1]) + raw[4201:], b""):
            path.write_bytes(damaged)
            (states,) = backend.capture([ids_of(1)])

            assert "prefill" == states.capture
            assert not path.exists()
            backend.release([ids_of(1)])


def test_file_of_another_version_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is neither read nor removed, and told of once; the sample is passed over."""
    capture = FakeCapture(tmp_path / "spool")
    path = put_file(capture.spool, "gen-1", ids_of(1), 3)
    path.write_bytes(path.read_bytes().replace(b"eagled-capture-1", b"eagled-capture-9"))
    with backend_over(capture) as backend:
        for _ in range(2):
            backend.capture([ids_of(1)])
            backend.release([ids_of(1)])

    assert ["gen-1.safetensors"] == names(capture.spool)
    assert 2 == len(capture.served)
    assert 1 == sum("left alone" in record.message for record in caplog.records)


def test_other_layers_than_planned_are_not_taken(tmp_path: Path) -> None:
    """A server that captures other boundaries is named, and nothing is lost."""
    capture = FakeCapture(tmp_path / "spool")
    with serving(capture) as url:
        backend = SglangBackend(
            target(tmp_path),
            layers=(2, 3, 5),
            servers=[CaptureServer(url)],
            spool=capture.spool,
        )
        with pytest.raises(ServerUnavailableError, match=r"\[2, 4, 5\].*\[2, 3, 5\] .* planned"):
            backend.capture([ids_of(1)])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", "0.5.20", "0.5.17 and 0.5.23 only"),
        ("disable_radix_cache", False, "--disable-radix-cache"),
        ("enable_return_hidden_states", False, "--enable-return-hidden-states"),
    ],
)
def test_server_that_cannot_capture_is_refused_at_start(
    tmp_path: Path, key: str, value: object, words: str
) -> None:
    """Before the first sample is claimed, with what to change."""
    capture = FakeCapture(tmp_path / "spool")
    with backend_over(capture) as backend:
        backend.self_check()
        capture.info[key] = value
        with pytest.raises(ConfigError, match=words):
            backend.self_check()

    assert [] == names(capture.spool)


@pytest.mark.slow
def test_sigkill_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The worker is killed at each step in turn, from the first row to the last file removed."""
    spool, numbers = tmp_path / "spool", range(6)
    for number in numbers:
        put_file(spool, f"gen-{number}", ids_of(number), make_job(number).output.n)
    journal, kills = tmp_path / "journal.json", 0
    for step in range(1, 60):
        done = subprocess.run(
            [sys.executable, str(_CHILD), str(tmp_path), str(step)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            break
        assert -9 == done.returncode, done.stderr[-2000:]
        kills += 1
    found = json.loads(journal.read_text())

    assert kills > 5
    assert sorted(numbers) == sorted(int(n) for n in found["extracted"])
    daemon = Daemon([])
    daemon.shards = dict.fromkeys(found["shards"])  # type: ignore[assignment]  # names are enough
    check_shards(daemon, tmp_path / "shards", numbers)
