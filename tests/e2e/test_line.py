"""The whole line on a tiny real model: prep, engine, daemon and workers, merge, verify, vocab."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon_kit import DEADLINE_S, clean_env, daemon, eagled

_READY = re.compile(r"http://127\.0\.0\.1:\d+")
ROWS = 24


@contextmanager
def engine(model: Path, log: Path) -> Iterator[str]:
    """Run the embedded engine on a free port and give its address."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagled", "engine", "--model", str(model), "--port", "0",
             "--slots", "8"],
            env=clean_env(), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 2 * DEADLINE_S
        while (found := _READY.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _write_inputs(folder: Path, model: Path, url: str) -> Path:
    rows = []
    for i in range(ROWS):
        talk = [{"role": "user", "content": f"What is {i} plus {i}?"}]
        if i % 4 == 0:
            talk += [
                {"role": "assistant", "content": "x"},
                {"role": "user", "content": "And then?"},
                {"role": "assistant", "content": "y"},
            ]
        rows.append(json.dumps({"messages": talk}))
    (folder / "a.jsonl").write_text("\n".join(rows) + "\n")
    path = folder / "eagled.toml"
    path.write_text(
        f"""
        [target]
        model = {json.dumps(str(model))}
        [lanes.short]
        context = 1000
        limit = 8
        [sampling]
        max_new_tokens = 32
        seed = 1
        [[servers]]
        url = "{url}"
        [[datasets]]
        name = "a"
        source = "a.jsonl"
        [generation]
        min_reply = 16
        probe_interval_s = 0.5
        [shards]
        target_bytes = 1048576
        max_wait_s = 2
        [extract]
        threads = 1
        [vocab]
        size = 300
        [merge]
        holdout = 0.2
        [daemon]
        stop_timeout_s = 10
        """
    )
    return path


def _settled(status: dict[str, dict[str, dict[str, int]]]) -> bool:
    """Return whether every sample has its states or was given up."""
    dataset = status["datasets"].get("a")
    if dataset is None:
        return False
    over = dataset["extracted"] + dataset["rejected"] + dataset["failed"] + dataset["cancelled"]
    return bool(dataset["total"]) and over == dataset["total"]


@pytest.mark.slow
def test_prompts_become_verified_shards_a_corpus_and_a_vocabulary(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Every row is accounted for, from the source to the shard, and the daemon ends with 0."""
    with engine(tiny_model, tmp_path / "engine.log") as url:
        config = _write_inputs(tmp_path, tiny_model, url)
        prepared = json.loads(eagled("prep", "--json", cwd=tmp_path).stdout)[0]
        with daemon(config) as process:
            status = process.until(_settled)
            merged = json.loads(eagled("merge", "--json", cwd=tmp_path).stdout)
            verified = json.loads(eagled("verify", "--json", cwd=tmp_path).stdout)
            vocab = json.loads(eagled("vocab", "--json", cwd=tmp_path).stdout)
            plan = Path(eagled("plan", "--write", cwd=tmp_path).stdout.strip())
            code, _ = process.stop()

    dataset = status["datasets"]["a"]
    assert (ROWS, ROWS, ROWS + ROWS // 4) == (
        prepared["rows"], prepared["kept"], prepared["turns"],
    )  # fmt: skip
    assert prepared["turns"] == dataset["total"]
    assert dataset["extracted"] == merged["rows"] == verified["samples"] > ROWS // 2
    assert (True, []) == (verified["ok"], verified["findings"])
    assert all(part["covered"] <= part["tokens"] for part in vocab["coverage"])
    assert plan.is_file()
    assert 0 == code, process.log
    assert [] == [alarm for alarm in status["alarms"] if alarm["level"] == "error"]
