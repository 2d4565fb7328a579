"""The text worker as a process: it works, waits for a daemon that restarts, and stops cleanly."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagled.config import ChecksConfig, TargetConfig
from eagled.control.wire import to_wire
from eagled.errors import UnreachableError
from eagled.text.check import TextChecker
from eagled.text.messages import Message, Role, ToolCall
from eagled.text.native import NativeRenderer
from eagled.text.render import Renderer
from eagled.tokens import pack_ids
from eagled.types import Finish, OutputReason, TextJob, TextVerdict
from eagled.workers.text import work
from tests.prep_kit import text_job, toy_renderer
from tests.slow_tokenizer import make_slow_tokenizer

DEADLINE_S = 180.0  # two cores are shared with others; the worker itself needs five seconds
_DAEMON = """
import asyncio, json, sys
from aiohttp import web
jobs = json.load(open(sys.argv[2]))

async def hello(request):
    print((await request.json())["kind"], flush=True)
    return web.json_response({})

async def claim(request):
    if not jobs:
        await asyncio.sleep(1)
    out, jobs[:] = jobs[:], []
    return web.json_response({"jobs": out})

async def settle(request):
    for verdict in (await request.json())["verdicts"]:
        print(verdict["reason"], flush=True)
    return web.json_response({"settled": 1})

app = web.Application(client_max_size=1 << 30)
app.add_routes([
    web.post("/v1/work/hello", hello),
    web.post("/v1/work/text/claim", claim),
    web.post("/v1/work/text/settle", settle),
])
web.run_app(app, path=sys.argv[1], print=None)
"""
_RUN = """
import sys
from pathlib import Path
from eagled.workers.text import run_text_worker
code = run_text_worker(Path(sys.argv[1]), Path(sys.argv[2]))
print("heavy:", [m for m in ("torch", "datasets", "pyarrow") if sys.modules.get(m)])
sys.exit(code)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's name has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="eg", dir="/tmp") as path:
        yield Path(path)


async def _start(code: str, *args: Path) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *map(str, args),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _daemon(folder: Path, *jobs: TextJob) -> Process:
    """Start a daemon of its own process that hands out these jobs and prints what comes back."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(to_wire(jobs)), encoding="utf-8")
    return await _start(_DAEMON, folder / "c.sock", path)


async def _lines(process: Process, n: int) -> list[str]:
    """Return the next `n` lines that a process prints."""
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        return [(await process.stdout.readline()).decode().strip() for _ in range(n)]


def _job(renderer: Renderer, text: str) -> TextJob:
    prompt = renderer.prompt_ids([Message(Role.USER, "hello")], None)
    return text_job(prompt, renderer.tokenizer.encode(text, add_special_tokens=False))


async def test_the_worker_outlives_the_daemon_and_stops_on_sigterm(
    folder: Path, tiny_model: Path
) -> None:
    """Verdicts come before and after a crash of the daemon; SIGTERM ends it with code 0."""
    config = folder / "eagled.toml"
    config.write_text(f'[target]\nmodel = "{tiny_model}"\n', encoding="utf-8")
    renderer = Renderer.load(TargetConfig(model=str(tiny_model)))
    jobs = [_job(renderer, text) for text in ("fine<|im_end|>", "<|im_end|>", "more<|im_end|>")]
    started = [await _daemon(folder, *jobs[:2]), await _start(_RUN, folder / "c.sock", config)]
    first, worker = started
    try:
        before = await _lines(first, 3)
        first.kill()
        await first.wait()
        second = await _daemon(folder, jobs[2])
        started.append(second)
        after = await _lines(second, 2)
        worker.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(worker.communicate(), DEADLINE_S)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    assert ["text", "None", OutputReason.EMPTY_ANSWER.value] == before
    assert ["text", "None"] == after
    assert (0, "heavy: []\n") == (await worker.wait(), out.decode()), err.decode()


async def test_a_wrong_model_ends_the_worker_with_a_message(folder: Path) -> None:
    """A model folder that is not there is a configuration error, not an endless wait."""
    config = folder / "eagled.toml"
    config.write_text('[target]\nmodel = "/nowhere/model"\n', encoding="utf-8")
    worker = await _start(_RUN, folder / "c.sock", config)
    _, err = await asyncio.wait_for(worker.communicate(), DEADLINE_S)

    assert 0 != worker.returncode
    assert "the model folder '/nowhere/model' does not exist" in err.decode()


def _slow_config(folder: Path, *, trusted: bool) -> Path:
    """Write a configuration whose tokenizer is code of its own."""
    model = make_slow_tokenizer(folder / "model")
    config = folder / "eagled.toml"
    trust = "trust_remote_code = true\n" if trusted else ""
    config.write_text(
        f'[target]\nmodel = "{model}"\n{trust}\n[checks]\nloop_tokens = 64\n', encoding="utf-8"
    )
    return config


async def test_a_tokenizer_of_its_own_code_runs_in_the_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting it judges answers, without torch; a loop is refused by [checks]."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(folder / "modules"))
    config = _slow_config(folder, trusted=True)
    texts = ("hm</think>hello<|im_end|>", "hm<|im_end|>", f"</think>{'no ' * 40}<|im_end|>")
    daemon = await _daemon(folder, *(_job(toy_renderer(), text) for text in texts))
    worker = await _start(_RUN, folder / "c.sock", config)
    try:
        lines = await _lines(daemon, 4)
        worker.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(worker.communicate(), DEADLINE_S)
    finally:
        for process in (daemon, worker):
            if process.returncode is None:
                process.kill()
            await process.communicate()

    assert ["text", "None", "unclosed_think", "repetition_loop"] == lines
    assert (0, "heavy: []\n") == (await worker.wait(), out.decode()), err.decode()


async def test_without_the_setting_the_worker_says_so(folder: Path) -> None:
    """The code does not run, and the message names the setting."""
    config = _slow_config(folder, trusted=False)
    worker = await _start(_RUN, folder / "c.sock", config)
    _, err = await asyncio.wait_for(worker.communicate(), DEADLINE_S)

    assert 0 != worker.returncode
    assert "target.trust_remote_code = true" in err.decode()


class _Once:
    """A client that has one batch and then goes away."""

    def __init__(self, jobs: list[TextJob]) -> None:
        self.jobs = jobs
        self.verdicts: list[TextVerdict] = []

    async def hello(self, worker: str, kind: str, pid: int) -> None:
        raise NotImplementedError

    async def claim_text(self, worker: str, maximum: int) -> list[TextJob]:
        assert (worker, maximum > 0) == ("w", True)
        if not self.jobs:
            raise UnreachableError
        jobs, self.jobs = self.jobs, []
        return jobs

    async def settle_text(self, verdicts: list[TextVerdict]) -> int:
        self.verdicts += verdicts
        return len(verdicts)


async def test_a_claimed_batch_is_reported_before_the_next_claim() -> None:
    """Each job of a batch has its verdict; a daemon that goes away shows as unreachable."""
    client = _Once([_job(toy_renderer(), "</think>hi<|im_end|>"), _job(toy_renderer(), "hm")])
    with pytest.raises(UnreachableError):
        await work(client, TextChecker(toy_renderer()), asyncio.Event(), "w")

    assert [None, OutputReason.UNCLOSED_THINK] == [v.reason for v in client.verdicts]


def test_the_tiny_model_renders_checks_and_trains_natively(tiny_model: Path) -> None:
    """A ChatML template with thinking, tagged calls and a line feed behind the stop token."""
    renderer = Renderer.load(TargetConfig(model=str(tiny_model)))
    call = ToolCall("functions.f:0", "f", '{"a": 1}')
    chat = (
        Message(Role.USER, "q"),
        Message(Role.ASSISTANT, "look", "because", (call,)),
        Message(Role.TOOL, "r", tool_call_id="functions.f:0"),
        Message(Role.ASSISTANT, "done"),
    )
    native = NativeRenderer(renderer)
    first, last = native.turn(chat, None, 1), native.turn(chat, None, 3)

    assert renderer.facts.think_close == "\n</think>\n\n"
    assert renderer.decode(first.prompt).endswith("<|im_start|>assistant\n<think>\n")
    assert renderer.decode(first.answer) == (
        "because\n</think>\n\nlook\n<tool_call>\n"
        '{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    )
    assert renderer.decode(last.prompt).endswith("<|im_start|>assistant\n")
    assert renderer.decode(last.answer) == "done<|im_end|>"
    job = TextJob(
        1,
        1,
        "d",
        0,
        Finish.STOP,
        pack_ids(first.prompt),
        pack_ids(first.answer),
        None,
        (),
        False,  # noqa: FBT003 - record fields
    )
    checker = TextChecker(renderer, checks_of=lambda _: ChecksConfig(tools="any"))
    assert checker.check(job) == TextVerdict(1, 1, None)
