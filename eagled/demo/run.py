"""`eagled demo`: the main job end to end on a small real model, with a crash in the middle.

Prepares real prompts, answers them on the embedded engine through both lanes, kills the daemon with
SIGKILL while requests are in flight, starts it again, extracts hidden states, freezes a corpus,
verifies every shard, builds the vocabulary, writes the plan, trains a small draft and estimates its
acceptance before and after. Ends with `demo: ok` and 0 only if every check held.

The programs are those a user starts: `eagled engine`, `prep`, `run`, `merge`, `verify`, `vocab`,
`plan`, `train`, `draft`, each as its own process. Engine and extraction worker have one thread
each, training has two when they are gone.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagled.control.client import ControlClient
from eagled.demo.checks import Check, Summary, final_checks, restart_checks, summary_of
from eagled.demo.draft import WORDS, draft_checks, draft_table, make_draft
from eagled.demo.processes import Child, DemoError, eagled_command, run_command
from eagled.demo.setting import (
    SLOTS,
    DemoPaths,
    compute_dtype,
    config_text,
    fresh_folder,
    write_config,
)
from eagled.demo.witness import Witness
from eagled.errors import UnreachableError
from eagled.paths import StatePaths

ENGINE_READY_S = 180.0  # a cold disk takes a minute to bring in torch and the model
DAEMON_READY_S = 60.0
COMMITS_BEFORE_KILL = 8
IN_FLIGHT_AT_KILL = 4
FIRST_ANSWERS_S = 600.0  # seconds on free cores; a machine that does much else needs minutes
ALL_DONE_S = 1800.0  # five minutes on two free cores; room for slower machines
_POLL_S = 0.25
_CPUINFO = Path("/proc/cpuinfo")
_URL = re.compile(r"https?://[\d.]+:\d+")
_OPEN_STATES = ("waiting", "queued", "generating", "retry_wait", "generated", "extracting")


@dataclass(slots=True)
class _Stage:
    """Everything that has to be ended when the demo ends, however it ends."""

    paths: DemoPaths
    children: list[Child] = field(default_factory=list)

    def start(self, name: str, argv: list[str], *, threads: int = 1) -> Child:
        child = Child(name, argv, self.paths.logs / f"{name}.log", threads=threads)
        self.children.append(child)
        return child

    def clear(self) -> None:
        for child in reversed(self.children):
            if child.returncode() is None:
                child.kill()


def run_demo(folder: Path, cache: Path, model: Path | None) -> int:
    """Run the demo in `folder`; return its exit code.

    Raises:
        DemoError: if a step fails.
        UnreachableError: if the model or the prompts cannot be downloaded.
    """
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as ctrl-C does: no child is left behind
        signal.signal(number, signal.default_int_handler)
    paths = fresh_folder(folder)
    stage = _Stage(paths)
    try:
        summary, checks = asyncio.run(_story(stage, cache, model))
    finally:
        stage.clear()
    draft = make_draft(paths, _say)
    for text in ("", summary.table(), "", draft_table(draft).table(), "", WORDS, ""):
        _say(text)
    checks += draft_checks(draft)
    for check in checks:
        _say(f"  [{'ok' if check.ok else 'FAILED'}] {check.text}")
    held = all(check.ok for check in checks)
    _say(f"\n{time.monotonic() - started:.0f} s; everything is in {paths.root}")
    _say("demo: ok" if held else "demo: FAILED")
    return 0 if held else 1


async def _story(stage: _Stage, cache: Path, model: Path | None) -> tuple[Summary, list[Check]]:
    paths = stage.paths
    engine = await asyncio.to_thread(_set_up, stage, cache, model)
    _say("Preparing the prompts …")
    await _command(paths, "prep")
    daemon = _start_daemon(stage)
    _say(f"The daemon runs. Watch it from a second terminal:\n  {_top_hint(paths)}")
    async with ControlClient(StatePaths(paths.state).socket) as client:
        witness = Witness(client)
        await _until(client, daemon, _daemon_answers, DAEMON_READY_S, "answer on the socket")
        witness.follow()
        _say(f"Generating, until {COMMITS_BEFORE_KILL} answers are committed …")
        await _until(client, daemon, _ready_to_kill(witness), FIRST_ANSWERS_S, "answers in flight")
        in_flight = _in_flight(await client.status())
        daemon.kill()
        acks = await witness.stop()
        _say(f"Killed the daemon (SIGKILL): {len(acks)} answers committed, {in_flight} in flight.")
        daemon = _start_daemon(stage)
        await _until(client, daemon, _daemon_answers, DAEMON_READY_S, "answer after the kill")
        checks = restart_checks(StatePaths(paths.state), acks, in_flight)
        witness.follow()
        _say("Started it again; generating and extracting the rest …")
        await _until(client, daemon, _all_done, ALL_DONE_S, "the last sample", show=True)
        acks += await witness.stop()
        status = await client.status()
        return await _finish(paths, daemon, engine, checks, (acks, status))


async def _finish(
    paths: DemoPaths,
    daemon: Child,
    engine: Child,
    checks: list[Check],
    seen: tuple[list[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[Summary, list[Check]]:
    acks, status = seen
    _say("Merging, verifying, building the vocabulary, writing the plan …")
    await _command(paths, "merge")
    verified = await _command(paths, "verify", "--json")
    await _command(paths, "vocab")
    await _command(paths, "plan", "--write")
    codes = {
        "the daemon": await asyncio.to_thread(daemon.stop),
        "the engine": await asyncio.to_thread(engine.stop),
    }
    state = StatePaths(paths.state)
    checks += final_checks(state, acks, status, verified)
    checks += [
        Check(code == 0, f"{who} ended with {code} on SIGTERM") for who, code in codes.items()
    ]
    return summary_of(state, status), checks


def _set_up(stage: _Stage, cache: Path, model: Path | None) -> Child:
    """Fetch model and prompts, start the engine, write the configuration."""
    from eagled.demo.convert import TEMPLATE, demo_model
    from eagled.demo.data import benchmark_prompts, demo_datasets

    paths = stage.paths
    _say("Getting the model and the prompts (cached after the first time) …")
    folder = model or demo_model(cache)
    datasets = demo_datasets(cache, paths.data)
    held_out = benchmark_prompts(cache, paths.data)
    cpuinfo = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    dtype = "bfloat16" if model else compute_dtype(cpuinfo)  # a larger one may need the room
    _say(f"Starting the embedded engine on {folder.name} …")
    argv = eagled_command(
        "engine", "--model", str(folder), "--port", "0", "--slots", str(SLOTS), "--threads", "1",
        "--dtype", "auto" if model else dtype,
    )  # fmt: skip
    engine = stage.start("engine", argv)
    engine.wait_for(lambda: bool(_URL.search(engine.output())), ENGINE_READY_S, "a ready line")
    found = _URL.search(engine.output())
    assert found is not None  # noqa: S101 - it was there a moment ago, and output only grows
    template = None if model else TEMPLATE
    write_config(paths, config_text(folder, template, found[0], dtype, datasets, held_out))
    return engine


def _start_daemon(stage: _Stage) -> Child:
    argv = eagled_command("run", "--config", str(stage.paths.config))
    return stage.start("daemon", argv)


async def _command(paths: DemoPaths, command: str, *args: str) -> str:
    argv = [command, "--config", str(paths.config), *args]
    return await asyncio.to_thread(run_command, argv, paths.logs / "commands.log")


_Ready = Callable[[Mapping[str, Any]], bool]


async def _until(
    client: ControlClient,
    daemon: Child,
    ready: _Ready,
    timeout_s: float,
    what: str,
    *,
    show: bool = False,
) -> None:
    """Wait until the status says so.

    Raises:
        DemoError: if the daemon ends, or does not get there in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            status = await client.status()
        except UnreachableError:
            status = {}
        if status and ready(status):
            return
        if show and status:
            _progress(status)
        if daemon.returncode() is not None:
            raise DemoError(f"the daemon ended with {daemon.returncode()}:\n{daemon.tail()}")
        if time.monotonic() > deadline:
            raise DemoError(
                f"no {what} within {timeout_s:.0f} s; see {daemon.log}:\n{daemon.tail()}"
            )
        await asyncio.sleep(_POLL_S)


def _daemon_answers(status: Mapping[str, Any]) -> bool:
    return bool(status["lanes"])


def _ready_to_kill(witness: Witness) -> _Ready:
    def ready(status: Mapping[str, Any]) -> bool:
        return len(witness.acks) >= COMMITS_BEFORE_KILL and _in_flight(status) >= IN_FLIGHT_AT_KILL

    return ready


def _in_flight(status: Mapping[str, Any]) -> int:
    return sum(int(lane["in_flight"]) for lane in status["lanes"].values())


def _open(status: Mapping[str, Any]) -> int:
    return sum(int(d[s]) for d in status["datasets"].values() for s in _OPEN_STATES)


def _all_done(status: Mapping[str, Any]) -> bool:
    return bool(status["datasets"]) and _open(status) == 0


def _progress(status: Mapping[str, Any]) -> None:
    if sys.stdout.isatty():
        done = sum(int(d["extracted"]) for d in status["datasets"].values())
        line = f"  {done} extracted, {_open(status)} to go, {_in_flight(status)} in flight   \r"
        sys.stdout.write(line)
        sys.stdout.flush()


def _top_hint(paths: DemoPaths) -> str:
    return f"{Path(sys.executable).with_name('eagled')} top --config {paths.config}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
