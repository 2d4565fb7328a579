"""`eagled train --stream` beside a real daemon that extracts ten times what its ring may hold."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from eagled.clock import FakeClock
from eagled.config_load import load_config
from eagled.control.client import ControlClient
from eagled.paths import StatePaths
from eagled.store import Store
from eagled.store.records import DatasetRecord, NewConversation, NewTurn
from eagled.tokens import make_uid, pack_ids
from eagled.train.checkpoint import checkpoints, load_checkpoint
from eagled.train.corpus import Corpus, latest_corpus
from eagled.train.supply import Leased
from eagled.types import Mode, ShardMember, ShardRecord
from eagled.workers.extraction import Extraction, ExtractSettings
from eagled.workers.train import train_run
from eagled.workers.train_stream import Stream
from tests.daemon_kit import ROOT, DaemonProcess, clean_env, daemon, eagled, look, write_config
from tests.train_kit import tiny_backend
from tests.unit.train.kit import lines
from tests.unit.train.stream_kit import ToyRing

SAMPLES = 220
CAP = 400_000
TARGET = 64_000
DEADLINE_S = 400.0  # a limit of failure only: the machine may be busy
NAME = "live"


def run_config(folder: Path, model: Path) -> Path:
    """Return a configuration in stream mode with a small ring, and a small draft."""
    return write_config(
        folder,
        target={"model": str(model)},
        disk={"mode": "stream", "ring_bytes": CAP, "reserve_bytes": 0},
        extract={"backend": "transformers", "batch_tokens": 64},
        merge={"holdout": 0.1},
        vocab={"size": 300},
        train={
            "device": "cpu", "threads": 1, "ttt_steps": 3, "batch_tokens": 200, "lr": 1e-2,
            "max_steps": 60, "checkpoint_every": 7, "eval_every": 20,
        },
    )  # fmt: skip


async def fill(store: Store) -> None:
    """Store answers of 25 tokens to prompts of 15."""
    record = DatasetRecord("alpha", 0, Mode.NATIVE, "k", SAMPLES, SAMPLES, 0)
    dataset = await store.add_dataset(record)
    rng = np.random.default_rng(7)
    items = []
    for i in range(SAMPLES):
        prompt, output = pack_ids(rng.integers(8, 280, 15)), pack_ids(rng.integers(8, 280, 25))
        turn = NewTurn(make_uid("turn", str(i)), 0, prompt, output)
        uid = make_uid("talk", str(i))
        items.append(NewConversation(uid, make_uid("d", str(i)), None, None, (turn,)))
    await store.add_conversations(dataset, items)


class Watched(ControlClient):
    """The worker's client; keeps a link to every shard, and the most bytes that the ring held."""

    def __init__(self, socket: Path, paths: StatePaths, copies: Path) -> None:
        super().__init__(socket)
        self._paths, self._copies = paths, copies
        self.peak = self.total = 0
        copies.mkdir()

    async def commit_shard(
        self, record: ShardRecord, members: list[ShardMember]
    ) -> tuple[int, int]:
        """Commit, and look at the folder."""
        copy = self._copies / record.name
        if not copy.exists():  # a commit without an answer is sent again
            os.link(self._paths.shards / record.name, copy)
        result = await super().commit_shard(record, members)
        held = sum(_size(path) for path in self._paths.shards.glob("*.safetensors"))
        self.peak, self.total = max(self.peak, held), self.total + record.file_bytes
        return result


def _size(shard: Path) -> int:
    """Return what a shard holds of the ring, which may remove it meanwhile."""
    try:
        return shard.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def extracting(client: Watched, model: Path, paths: StatePaths) -> Iterator[None]:
    """Be the daemon's extraction worker, in a thread, with the real model."""
    settings = ExtractSettings(
        shards=paths.shards, batch_tokens=64, target_bytes=TARGET, max_wait_s=600.0,
        stop_timeout_s=5.0, idle_wait_s=0.001,
    )  # fmt: skip
    backend = tiny_backend(model)
    started = threading.Event()
    found: list[tuple[asyncio.AbstractEventLoop, Extraction]] = []

    async def work() -> None:
        async with client:
            extraction = Extraction(client, backend, settings, FakeClock())
            found.append((asyncio.get_running_loop(), extraction))
            started.set()
            await extraction.run()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert started.wait(DEADLINE_S)
        yield
    finally:
        loop, extraction = found[0]
        loop.call_soon_threadsafe(extraction.stop)
        thread.join(DEADLINE_S)


def trainer(config: Path) -> subprocess.Popen[str]:
    """Start the real command."""
    words = ["-m", "eagled", "train", "--stream", "--name", NAME, "--config", str(config), "--json"]
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=clean_env(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def written(process: subprocess.Popen[str], metrics: Path, n: int) -> None:
    """Wait until a trainer has written so many lines."""
    deadline = time.monotonic() + DEADLINE_S
    while not metrics.is_file() or metrics.read_bytes().count(b"\n") < n:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def killed_after(config: Path, metrics: Path, n: int) -> None:
    """Train until so many lines are written, then SIGKILL."""
    process = trainer(config)
    written(process, metrics, n)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def told_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a trainer, and return what the command says."""
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    return dict(json.loads(out))


def leased_again(copies: Path, names: Sequence[str], corpus: Corpus) -> list[Leased]:
    """Return the shards as the daemon leased them, by the splits of a corpus of all samples."""
    from eagled.shards.format import read_shard_header

    split_of = {row.uid: row.split for row in corpus.rows()}
    found = []
    for name in names:
        uids = [entry.uid for entry in read_shard_header(copies / name).samples]
        parts = [tuple(u for u in uids if split_of[u] == s) for s in ("train", "holdout")]
        path = copies / name
        found.append(Leased(name, str(path), path.stat().st_size, *parts))
    return found


class Recorded(ToyRing):
    """A ring of shards that were leased before, in their order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def leave(self) -> None:
        """Nobody waits for it."""


@pytest.mark.slow
def test_ten_times_the_ring_is_learnt_over_kills_and_a_restart(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kills, a new daemon: each sample is learnt once, the cap holds, the same lines come out.

    The lines are compared with those of an unbroken run over the same order of shards.
    """
    config = run_config(tmp_path, tiny_model)
    loaded = load_config(config, environ={}).config
    paths = StatePaths(loaded.run.state_dir)
    look(config, fill)
    run = paths.drafts / NAME
    with ExitStack() as stack:
        first = stack.enter_context(daemon(config))
        first.ready()
        assert eagled("merge", "--config", str(config)).returncode == 0
        client = Watched(first.socket, paths, tmp_path / "copies")
        stack.enter_context(extracting(client, tiny_model, paths))
        killed_after(config, run / "metrics.jsonl", 9)
        killed_after(config, run / "metrics.jsonl", 23)
        last = trainer(config)
        written(last, run / "metrics.jsonl", 30)
        assert first.stop()[0] == 0
        second = stack.enter_context(daemon(config))
        told = told_by(last)
        left = second.ready()["datasets"]["alpha"]
        assert (SAMPLES, 0) == (left["extracted"], left["generated"])
        assert_ring_is_empty(second)

    corpus = latest_corpus(paths.corpora)
    rows = sum(len(row.input_ids) - 1 for row in corpus.rows("train"))
    every: list[dict[str, Any]] = lines(run)
    assert told["finished"]
    assert rows == sum(line["tokens"] for line in every if line["kind"] == "step")
    assert corpus.n_rows - len(list(corpus.rows("train"))) == told["after"]["samples"]
    assert client.total > 10 * CAP
    assert client.peak <= CAP
    assert [] == list(paths.shards.glob("*.safetensors"))
    assert Path(told["draft"]).is_dir()

    names = [row[0] for row in load_checkpoint(checkpoints(run / "checkpoints")[-1]).feed["shards"]]
    again = leased_again(tmp_path / "copies", names, corpus)
    monkeypatch.setattr(
        "eagled.workers.train_stream.RingSupply", lambda *_: Recorded(again, len(again))
    )
    train_run(loaded, name="whole", stream=Stream(first.socket))
    assert lines(paths.drafts / "whole") == every


def assert_ring_is_empty(running: DaemonProcess) -> None:
    """Assert that nothing is held, and that the trainer is no longer waited for."""
    ring = json.loads(eagled("shards", "ring", "--json", "--config", str(running.config)).stdout)

    assert ([], []) == (ring["shards"], ring["consumers"])
