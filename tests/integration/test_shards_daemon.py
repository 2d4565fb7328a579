"""Shards beside a running daemon, as people and trainers use them: plan, ring, verification."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagled.cli import main
from eagled.clock import FakeClock
from eagled.config_load import load_config
from eagled.control import call
from eagled.control.client import ControlClient
from eagled.paths import StatePaths
from eagled.shards.format import read_shard_header
from eagled.shards.writer import rewrite_metadata
from eagled.store import Store
from eagled.workers.extraction import Extraction, ExtractSettings
from tests.daemon_kit import ROOT, clean_env, daemon, look, write_config
from tests.integration import test_extract_store as store_kit
from tests.integration.ring_program import CHECKPOINT
from tests.unit.shards.doubles import ToyBackend

DEADLINE_S = 300.0  # a limit of failure only: the machine may be busy
SAMPLES = store_kit.SAMPLES


def with_shards(folder: Path, **sections: dict[str, Any]) -> tuple[Path, StatePaths]:
    """Return the configuration of a run that has extracted everything, and its paths."""
    config = write_config(folder, **sections)
    sizes = folder / "model" / "config.json"
    known = json.loads(sizes.read_text(encoding="utf-8"))
    sizes.write_text(json.dumps({**known, "num_hidden_layers": 8, "hidden_size": 16}))
    paths = StatePaths(load_config(config, environ={}).config.run.state_dir)

    async def extract(store: Store) -> None:
        await store_kit.fill(store)
        await store_kit.extract(store, paths, ToyBackend())

    look(config, extract)
    return config, paths


def names(paths: StatePaths) -> list[str]:
    """Return the shards that lie there."""
    return sorted(path.name for path in paths.shards.glob("*.safetensors"))


def eagled(*words: str) -> tuple[int, str, str]:
    """Run a command in this process; return exit code, output and errors.

    Starting thirty processes would take longer than what they do.
    """
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(sys, "argv", ["eagled", *words])
        out, err = io.StringIO(), io.StringIO()
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def json_of(*words: str) -> Any:
    """Return what a command prints with --json."""
    code, out, err = eagled(*words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.slow
def test_plan_choice_and_ring_over_the_socket(tmp_path: Path) -> None:
    """What-if and choice, shards leased and released by hand, mistakes with their exit codes."""
    config, paths = with_shards(tmp_path, disk={"mode": "stream", "ring_bytes": 1 << 30})
    flag = ("--config", str(config))
    with daemon(config) as running:
        running.ready()
        asked = call.get(running.socket, "/v1/plan/disk", codec="fp8", max_tokens=100)
        policies = {o["name"]: o["policy"] for o in asked["options"]}
        assert (policies["asked"]["codec"], policies["asked"]["max_tokens"]) == ("fp8", 100)
        assert policies["now"]["codec"] == "raw"
        assert asked["model"]["lossless_measured"]
        shown = running.post("/v1/plan/disk", {"choose": "lossless"})
        assert "lossless" in shown["message"]
        plan = json_of("plan", "disk", "--what-if", "codec=fp8", *flag)
        assert plan["options"][0]["policy"]["codec"] == "lossless"
        assert [o["policy"]["codec"] for o in plan["options"] if o["name"] == "asked"] == ["fp8"]
        assert plan["recommended"] == "now"  # all is extracted: nothing is to come
        assert "chosen: lossless" in eagled("plan", *flag)[1]
        assert "configuration holds" in eagled("plan", "disk", "--choose", "config", *flag)[1]
        large = ("--assume", "1000x100", "--free", "1000", "--check")
        code, _, err = eagled("plan", "disk", *large, *flag)
        assert (code, "bytes are missing" in err) == (74, True)
        code, _, err = eagled("plan", "disk", "--what-if", "codec=gzip", *flag)
        assert (code, "raw, lossless, fp8" in err) == (2, True)

        _lease_by_hand(paths, flag)

    assert eagled("shards", "ring", *flag)[0] == 69
    listed = json_of("shards", "list", *flag)
    assert [row["name"] for row in listed] == names(paths)
    assert {row["problem"] for row in listed} == {""}


def _lease_by_hand(paths: StatePaths, flag: tuple[str, str]) -> None:
    """Two consumers on the command line: a shard goes when both have released it."""

    def shards(word: str, consumer: str, *more: str) -> list[str]:
        code, out, err = eagled("shards", word, "--consumer", consumer, *more, *flag)
        assert code == 0, err
        return out.splitlines()

    there = names(paths)
    shards("register", "a")
    shards("register", "b")
    mine = shards("lease", "a", "--max", "2")
    assert [Path(line).is_file() for line in mine] == [True, True]
    code, _, err = eagled("shards", "release", "--consumer", "b", mine[0], *flag)
    assert (code, "does not hold" in err) == (2, True)
    shards("release", "a", mine[0])
    assert names(paths) == there
    theirs = json_of("shards", "lease", "--consumer", "b", "--max", "1", *flag)
    assert [row["path"] for row in theirs] == mine[:1]
    shards("release", "b", "--all")
    assert names(paths) == [name for name in there if name != Path(mine[0]).name]
    ring = json_of("shards", "ring", *flag)
    held = {c["name"]: c["held"] for c in ring["consumers"]}
    assert held == {"a": [Path(mine[1]).name], "b": []}
    assert (ring["mode"], ring["cap_bytes"]) == ("stream", 1 << 30)
    shards("leave", "a")
    shards("leave", "b")
    assert json_of("shards", "ring", *flag)["consumers"] == []


@pytest.mark.slow
def test_what_is_damaged_is_done_again_beside_a_live_daemon(tmp_path: Path) -> None:
    """--repair sets bad files aside and sends their samples back; nothing else is touched."""
    config, paths = with_shards(tmp_path, extract={"backend": "transformers"})
    flag = ("--config", str(config))
    before = names(paths)
    victim, torn, newer = before[:3]
    lost = sum(len(read_shard_header(paths.shards / name).samples) for name in (victim, torn))
    with daemon(config) as running:
        running.ready()
        good = (paths.shards / victim).read_bytes()
        bad = bytearray(good)
        bad[read_shard_header(paths.shards / victim).container.data_start] ^= (
            1  # one bit of a state
        )
        (paths.shards / victim).write_bytes(bad)
        (paths.shards / torn).write_bytes((paths.shards / torn).read_bytes()[:100])
        newest = (paths.shards / newer).read_bytes()
        rewrite_metadata(paths.shards / newer, {"format": "eagled-shard/9"})
        # what a worker has written and not committed yet is no damage
        (paths.shards / "shard-new.safetensors").write_bytes(good)
        code, half, _ = eagled("verify", "--sample", "0.5", "--json", *flag)
        assert (code, {f["file"] for f in json.loads(half)["findings"]}) == (1, {torn, newer})

        code, out, err = eagled("verify", "--repair", *flag)
        assert (code, "SHA-256" in err) == (1, True), err
        assert f"{victim}: set aside" in out
        assert f"{newer}: left where it is" in err
        (paths.shards / newer).write_bytes(newest)
        assert sorted(path.name for path in paths.quarantine.iterdir()) == sorted([victim, torn])
        assert (paths.shards / "shard-new.safetensors").exists()
        (paths.shards / "shard-new.safetensors").unlink()
        waiting = running.until(lambda s: s["datasets"]["alpha"]["generated"] == lost)
        assert waiting["datasets"]["alpha"]["extracted"] == SAMPLES - lost
        asyncio.run(_extract_again(running.socket, paths))
        whole = json_of("verify", *flag)
        assert (whole["ok"], whole["findings"]) == (True, [])
        assert whole["samples"] == SAMPLES


async def _extract_again(socket: Path, paths: StatePaths) -> None:
    """Be the worker until everything has its states."""
    settings = ExtractSettings(
        shards=paths.shards, batch_tokens=64, target_bytes=8192, max_wait_s=0.0,
        stop_timeout_s=5.0, idle_wait_s=0.001,
    )  # fmt: skip
    async with asyncio.timeout(DEADLINE_S), ControlClient(socket) as client:
        extraction = Extraction(client, ToyBackend(), settings, FakeClock())
        work = asyncio.create_task(extraction.run())
        while (await client.status())["datasets"]["alpha"]["extracted"] < SAMPLES:
            assert not work.done()
            await asyncio.sleep(0.02)
        extraction.stop()  # an idle worker's claim would wait for more
        await work


@pytest.mark.slow
def test_a_killed_trainer_loses_and_doubles_no_shard(tmp_path: Path) -> None:
    """SIGKILL while it reads, before a checkpoint and between checkpoint and release."""
    config, paths = with_shards(tmp_path, disk={"mode": "stream", "ring_bytes": 1 << 30})
    with daemon(config) as running:
        running.ready()

        def train(moment: str, number: int) -> int:
            program = [sys.executable, "-m", "tests.integration.ring_program"]
            words = [str(running.socket), str(tmp_path), moment, str(number)]
            return subprocess.run(
                [*program, *words], cwd=ROOT, env=clean_env(), timeout=DEADLINE_S, check=False
            ).returncode

        there = len(names(paths))
        killed = [train("before", 1), train("after", 1), train("read", 3)]
        assert killed == [-signal.SIGKILL] * 3
        assert 0 < len(names(paths)) < there
        assert train("never", 0) == 0

    state = json.loads((tmp_path / CHECKPOINT).read_text())
    assert len(state["learnt"]) == len(set(state["learnt"])) == SAMPLES
    assert names(paths) == []
