"""Workers that are killed, crash, starve, cannot start or stand still, under a whole daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from eagled.store import Store
from eagled.types import SampleState
from tests import mortal_worker as mortal
from tests.daemon_kit import clean_env, daemon, fill, look, write_config
from tests.servers.kit import states
from tests.servers.process import ServerProcess

SHORT = (
    "eagled.supervise:BACKOFF_FIRST_S=0.05",
    "eagled.supervise:BACKOFF_MAX_S=0.2",
)
ACCUSE_SOON = "eagled.control.suspects:MOST_DEATHS=2"
MISS_SOON = "eagled.control.roll:SILENT_S=2.0"  # a busy machine may so accuse a worker that lives


def _config(folder: Path, url: str, *, workers: str) -> Path:
    return write_config(
        folder, url, daemon={"workers": workers}, extract={"backend": "transformers"},
        disk={"reserve_bytes": 0, "resume_bytes": 0},
    )  # fmt: skip


def _argv(config: Path, *patches: str, workers: str = "tests.mortal_worker") -> list[str]:
    all_patches = (*SHORT, *patches, f"workers={workers}")
    run = ("run", "--config", str(config))
    return [sys.executable, "-m", "tests.patched", *all_patches, "--", *run]


def _prompts(n: int, *fates: int) -> list[list[int]]:
    """Return prompts, of which some in the middle bring a fate."""
    harmless = [[1, 2, i] for i in range(n - len(fates))]
    return harmless[:5] + [[fate, 1, 2] for fate in fates] + harmless[5:]


async def _given_up(store: Store) -> list[tuple[str, str]]:
    ended = (SampleState.FAILED, SampleState.REJECTED)
    rows = [row for row in await store.samples(limit=100) if row.state in ended]
    return sorted((row.reason or "", row.detail or "") for row in rows)


def _alarm(status: dict[str, Any], kind: str) -> str:
    """Return the text of an alarm whose kind begins so; empty if there is none."""
    return next((a["text"] for a in status["alarms"] if a["kind"].startswith(kind)), "")


def test_a_sample_that_kills_its_workers_is_given_up_and_nothing_else_is(tmp_path: Path) -> None:
    """SIGKILL (as for memory), SIGSEGV, no memory: each costs one sample; the run goes on."""
    with ServerProcess() as server:
        config = _config(tmp_path, server.url, workers="spawn")
        fill(config, _prompts(24, mortal.KILLED, mortal.CRASHED, mortal.STARVED))
        with daemon(config, _argv(config, ACCUSE_SOON)) as process:
            end = process.until(lambda s: s["datasets"]["d"]["extracted"] == 21)
            code, _ = process.stop()
    why = "2 workers in a row ended while they had it in hand"

    assert 0 == code
    assert "ended with -9" in _alarm(end, "worker:text-0")
    assert [
        ("bad_states", f"quarantined: {why}"),
        ("quarantined", why),
        ("quarantined", "MemoryError: "),
    ] == look(config, _given_up)


def test_a_worker_that_stands_still_is_killed_and_its_work_is_done(tmp_path: Path) -> None:
    """A stopped process gives no sign of life: it is replaced, by name and with the reason."""
    with ServerProcess() as server:
        config = _config(tmp_path, server.url, workers="spawn")
        fill(config, _prompts(20, mortal.STOPPED))
        with daemon(config, _argv(config, MISS_SOON)) as process:
            end = process.until(lambda s: s["datasets"]["d"]["extracted"] == 20)
            code, _ = process.stop()

    assert 0 == code
    assert "no sign of life for" in _alarm(end, "worker:text-0")
    assert {SampleState.EXTRACTED: 20} == look(config, states)


@contextmanager
def _worker(config: Path, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker that is not the daemon's child, as a unit of its own does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.mortal_worker", "worker", kind, "--config", str(config)],
        cwd=config.parent, env=clean_env(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_workers_of_their_own_are_taken_over_and_one_that_stands_still_is_named(
    tmp_path: Path,
) -> None:
    """Its work goes to another, its alarm ends when it goes on; a new daemon gets both workers."""
    with ServerProcess() as server:
        config = _config(tmp_path, server.url, workers="external")
        fill(config, _prompts(20, mortal.STOPPED))
        with ExitStack() as workers:
            with daemon(config, _argv(config, MISS_SOON)) as process:
                process.ready()
                first = workers.enter_context(_worker(config, "text"))
                workers.enter_context(_worker(config, "extract"))
                silent = process.until(lambda s: _alarm(s, f"silent:{first.pid}") != "")
                with _worker(config, "text"):
                    process.until(lambda s: s["datasets"]["d"]["extracted"] == 20)
                first.send_signal(signal.SIGCONT)
                process.until(lambda s: _alarm(s, "silent:") == "")
                process.kill()
            fill(config, [[9, i] for i in range(5)], "more")
            with daemon(config, _argv(config, MISS_SOON)) as again:
                again.until(lambda s: s["datasets"]["more"]["extracted"] == 5)
                code, _ = again.stop()

    assert "its work is handed out again, restart it" in _alarm(silent, f"silent:{first.pid}")
    assert 0 == code
    assert {SampleState.EXTRACTED: 25} == look(config, states)


def test_workers_that_cannot_start_are_an_alarm_and_generation_goes_on(tmp_path: Path) -> None:
    """Their last words are shown; answers wait for them, checked by nobody."""
    with ServerProcess() as server:
        config = _config(tmp_path, server.url, workers="spawn")
        fill(config, _prompts(20))
        with daemon(config, _argv(config, workers="tests.there_is_no_such_worker")) as process:
            process.until(lambda s: s["datasets"]["d"]["generated"] == 20)
            end = process.until(lambda s: _alarm(s, "worker:text-0") != "")
            code, _ = process.stop()

    assert "No module named tests.there_is_no_such_worker" in _alarm(end, "worker:text-0")
    assert 0 == code
    assert {SampleState.GENERATED: 20} == look(config, states)
