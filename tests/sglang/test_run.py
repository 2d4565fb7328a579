"""A whole `eagled run` over real SGLang that captures: prompts in, verified shards out.

Daemon and packer are killed on the way; a witness in a process of its own writes down every
acknowledgement, and an outsider compares database, corpus and shards with it in the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from eagled.audit import Audit, audit
from eagled.control import call
from eagled.daemon_spool import sample_of
from eagled.paths import StatePaths
from eagled.shards.reader import ShardDataset
from eagled.shards.selfcheck import probe_inputs
from tests.daemon_kit import DaemonProcess, clean_env, daemon, eagled
from tests.sglang.kit import ROW_ERROR, Reference, Server, serving
from tests.tiny_model import make_tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
ROWS = 60
LAYERS = (2, 4, 5)
_PACKER = "extract-0"
_WORK_S = 300.0  # a failure limit; two cores may be shared
_FLAGS = ("--dtype", "float32", "--log-requests", "--log-requests-level", "0")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and a chat template, so that later turns can be rendered."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def capturing(
    venv: Path, site: Path, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server for both modes, with its own tokenizer as in a real run."""
    folder = tmp_path_factory.mktemp("run")
    with serving(venv, site, target, folder, *_FLAGS, fixed=("--max-running-requests", "8")) as it:
        yield it


@dataclass
class Line:
    """One run: its folder, and the server that it uses."""

    root: Path
    server: Server

    @property
    def state(self) -> StatePaths:
        """The state directory."""
        return StatePaths(self.root / "state")

    def write(self, target: Path, capture: str) -> Path:
        """Write prompts, some of them talks of two turns, and the configuration."""
        rows = []
        for number in range(ROWS):
            talk = [{"role": "user", "content": f"What is {number} plus {number}?"}]
            if number % 4 == 0:
                talk += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "So?"}]
            rows.append(json.dumps({"messages": talk}))
        (self.root / "a.jsonl").write_text("\n".join(rows) + "\n")
        path = self.root / "eagled.toml"
        path.write_text(_CONFIG.format(
            model=target, url=self.server.url, capture=capture, spool=self.server.spool
        ))  # fmt: skip
        return path

    def audit(self) -> Audit:
        """Hold what is there against what the witness saw."""
        acks = [orjson.loads(x) for x in (self.root / "acks.jsonl").read_bytes().splitlines()]
        corpus = max(self.state.corpora.iterdir()) / "corpus.parquet"
        return audit(acks, self.state.database, corpus=corpus, shards=self.state.shards)

    def starts_of_the_packer(self) -> int:
        """Return how often a packer was started, by the log that all of them share."""
        log = (self.state.logs / f"{_PACKER}.log").read_text(errors="replace")
        return log.count("back end ready")

    def passes(self) -> set[str]:
        """Return the prefill-only passes that the server was asked for, by request id."""
        return set(re.findall(r"pass-[0-9a-f]{32}", self.server.log.read_text(errors="replace")))


_CONFIG = """
[target]
model = "{model}"
[lanes.short]
context = 1000
limit = 8
concurrency = 8
[sampling]
max_new_tokens = 48
temperature = 0.8
[[servers]]
url = "{url}"
[[datasets]]
name = "a"
source = "a.jsonl"
[generation]
min_reply = 16
probe_interval_s = 0.5
[extract]
backend = "sglang"
capture = "{capture}"
spool = "{spool}"
last = "all"
threads = 1
[shards]
target_bytes = 1048576
max_wait_s = 0.5
[disk]
reserve_bytes = 67108864
resume_bytes = 1048576
[daemon]
stop_timeout_s = 20
"""


@contextmanager
def witness(line: Line) -> Iterator[None]:
    """Write down acknowledgements, across the daemon's deaths."""
    out = ["--socket", str(line.state.socket), "--out", str(line.root / "acks.jsonl")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.crash.witness", *out], env=clean_env(), cwd=line.root
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def until(running: DaemonProcess, ready: Callable[[dict[str, int]], bool]) -> dict[str, Any]:
    """Wait until the dataset's counts satisfy `ready`; return the status."""
    return running.until(
        lambda status: "a" in status["datasets"] and ready(status["datasets"]["a"]),
        timeout_s=_WORK_S,
    )


def kill_packer(running: DaemonProcess) -> None:
    """SIGKILL the extraction worker that the daemon started last."""
    started = [
        event["detail"] for event in call.events(running.socket)
        if (event["kind"], event["subject"]) == ("worker_started", _PACKER)
    ]  # fmt: skip
    os.kill(int(started[-1].removeprefix("pid ")), signal.SIGKILL)


def over(counts: dict[str, int]) -> bool:
    """Return whether every sample has its states or was given up with a reason."""
    given_up = counts["rejected"] + counts["failed"] + counts["cancelled"]
    return bool(counts["total"]) and counts["extracted"] + given_up == counts["total"]


def run_with_kills(line: Line, config: Path) -> dict[str, Any]:
    """Run to the end, with a SIGKILL of the packer and one of the daemon; return the status."""
    assert eagled("prep", "--json", cwd=line.root).returncode == 0
    with witness(line):
        with daemon(config) as first:
            at = until(first, lambda n: n["extracted"] >= 1)["datasets"]["a"]["extracted"]
            kill_packer(first)
            until(first, lambda n: n["extracted"] >= at + 10 or over(n))  # by the next packer
            first.kill()
        with daemon(config) as second:
            status = until(second, over)
            for command in ("merge", "verify"):
                done = eagled(command, "--json", cwd=line.root)
                assert done.returncode == 0, done.stdout + done.stderr
            assert json.loads(done.stdout)["ok"]
            code, _ = second.stop()
            assert code == 0, second.log
    return status


def worst_state(line: Line, target: Path) -> float:
    """Return the largest relative error of one stored row against transformers."""
    found = ShardDataset(sorted(line.state.shards.glob("*.safetensors")))
    reference = Reference(target, torch.float32)
    worst = 0.0
    for index in range(len(found)):
        sample = found[index]
        ids = sample["input_ids"].tolist()
        states = torch.cat([sample["aux"], sample["last"]], dim=1)  # [T-1, (L+1)*D]
        assert states.shape[0] == len(ids) - 1
        worst = max(worst, reference.worst_row(ids, states, LAYERS))
    return worst


def stale_files(line: Line) -> list[str]:
    """Return what is in the spool for samples of any run."""
    return [p.name for p in line.server.spool.iterdir() if sample_of(p.name) is not None]


@pytest.mark.parametrize("capture", ["with_generation", "after"])
def test_prompts_become_verified_shards_over_kills(
    capturing: Server, target: Path, tmp_path: Path, capture: str
) -> None:
    """A SIGKILL of the packer and one of the daemon: lost=0, doubled=0, every row right.

    Captured while generating, no sample is passed over a second time unless a kill took its
    states; with `after` each is, once at least.
    """
    line = Line(tmp_path, capturing)
    config, before = line.write(target, capture), line.passes()
    earlier = set(stale_files(line))
    status = run_with_kills(line, config)
    found, counts = line.audit(), status["datasets"]["a"]
    probes = line.starts_of_the_packer() * 2 * len(probe_inputs(1000))
    passed = len(line.passes() - before) - probes

    assert ((), ()) == (found.lost, found.doubled)
    assert ROWS + ROWS // 4 == counts["total"]
    assert found.stored == counts["extracted"] > ROWS // 2
    assert worst_state(line, target) < ROW_ERROR
    assert [] == [alarm for alarm in status["alarms"] if alarm["level"] == "error"]
    if capture == "after":
        assert passed >= counts["extracted"]
        assert set() == set(stale_files(line)) - earlier
    else:
        assert passed < counts["extracted"] // 4
