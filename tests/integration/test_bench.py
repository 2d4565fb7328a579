"""`eagled bench` against servers that stream: counts, comparisons, faults, and what it leaves."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagled.benchmark.live import examine_draft
from eagled.benchmark.prompts import PromptSet, Workload
from eagled.benchmark.run import Benchmark, Runner, Settings
from eagled.cli import app
from eagled.config import Config, ServerConfig
from eagled.errors import (
    ArtifactError,
    ConfigError,
    EagledError,
    FingerprintError,
    UsageError,
)
from eagled.sampling import ResolvedSampling
from eagled.train.geometry import target_config
from eagled.verdicts import Verdict
from tests.daemon_kit import ROOT, clean_env
from tests.draft_kit import random_draft
from tests.integration.test_launch import free_port
from tests.servers.process import ServerProcess
from tests.servers.streaming import answer_to, steps_of

MODULE = "tests.servers.streaming"
STAND_IN = '#!/bin/sh\nshift 2\nexec {python} -m tests.servers.streaming launch "$@"\n'
RIGHT = [2, 0, 1]
VOCAB = 283
PROMPTS = tuple((7, 8, 9 + i) for i in range(6))
LOOPING = 99
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 64, "vocab_size": VOCAB}
GREEDY = ResolvedSampling(0.0, 1.0, -1, 0.0, 64, None)
WORKLOAD = Workload((PromptSet("d", PROMPTS),), GREEDY, "template")
DRAFTING = {"version": "0.5.23", "context_length": 10_240, "max_req_input_len": 10_234,
            "speculative_algorithm": "EAGLE3", "max_running_requests": 48,
            "speculative_draft_model_path": "/elsewhere"}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A plain server and one with a draft, and a place for results."""

    plain: ServerProcess
    draft: ServerProcess
    out: Path

    def settings(self, **changes: Any) -> Settings:
        """Return the settings of a small benchmark of the two."""
        server = ServerConfig.model_validate({"url": self.plain.url})
        settings = Settings(
            server=server, draft=None, plain_url=self.plain.url, draft_url=self.draft.url,
            speculate=(None,), concurrencies=(1, 4), runs=2, out=self.out,
        )  # fmt: skip
        return replace(settings, **changes)

    async def run(self, workload: Workload = WORKLOAD, **changes: Any) -> Benchmark:
        """Make the benchmark."""
        config = Config.model_validate({"target": {"model": "/models/toy"}})
        runner = Runner(config, self.settings(**changes), VOCAB, TARGET, lambda _text: None)
        return await runner.run(workload)


@pytest.fixture(scope="module", name="servers")
def _servers() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    drafting = json.dumps({"right": RIGHT, "info": DRAFTING})
    with ServerProcess(MODULE, "{}") as plain, ServerProcess(MODULE, drafting) as draft:
        yield plain, draft


@pytest.fixture(name="pair")
def _pair(servers: tuple[ServerProcess, ServerProcess], tmp_path: Path) -> Pair:
    plain, draft = servers
    plain.set(fault="", looping=None, right=None)
    draft.set(fault="", looping=None, right=RIGHT, info=DRAFTING, width=8)
    return Pair(plain, draft, tmp_path / "out")


def counted(prompt: tuple[int, ...]) -> tuple[int, int, int]:
    """Return tokens, verify steps and right guesses of one answer, counted here."""
    n = len(answer_to(list(prompt), None, GREEDY.max_new_tokens))
    steps = list(steps_of(n, RIGHT))
    return n, len(steps), sum(right for _, right in steps)


async def test_tokens_and_acceptance_are_the_servers_counts(pair: Pair) -> None:
    """Every pass has the tokens of all answers; the length is 1 + right guesses / verify steps."""
    found = await pair.run()
    (test,) = found.tests
    tokens, verifies, right = (sum(x) for x in zip(*map(counted, PROMPTS), strict=True))
    rounds = 1 + 2  # at one at once every prompt is asked once, at four twice (eight or more)
    spoken = test.speculation

    assert [1, 1, 4, 4] == [p.concurrency for p in test.passes]
    assert [tokens, tokens, 2 * tokens, 2 * tokens] == [p.tokens for p in test.passes]
    assert (2 * rounds * verifies, 2 * rounds * right) == (spoken.verifies, spoken.right)
    assert pytest.approx(1 + right / verifies) == spoken.length
    assert spoken.verifies == sum(spoken.histogram)
    assert 0 == found.plain.speculation.verifies
    assert () == found.plain.notes
    assert (len(PROMPTS), len(PROMPTS)) == test.same_answers


async def test_both_servers_are_asked_the_same(pair: Pair) -> None:
    """The same prompts as often, with the same sampling, streamed."""
    before = [len(server.seen()["sent"]) for server in (pair.plain, pair.draft)]
    await pair.run()
    sent = [
        sorted(json.dumps(x, sort_keys=True) for x in server.seen()["sent"][n:])
        for server, n in zip((pair.plain, pair.draft), before, strict=True)
    ]

    assert sent[0] == sent[1]
    assert all('"stream": true' in x for x in sent[0])
    assert all('"temperature": 0.0' in x for x in sent[0])


async def test_answers_that_loop_are_left_out_of_everything(pair: Pair) -> None:
    """The prompt whose answer repeats itself is asked once, counted, and never again."""
    pair.plain.set(looping=LOOPING)
    pair.draft.set(looping=LOOPING)
    loops = (*PROMPTS, (7, LOOPING))
    found = await pair.run(Workload((PromptSet("d", loops),), GREEDY, "t"))

    assert PROMPTS == found.workload.sets[0].prompts
    assert 1 == found.workload.sets[0].looping
    assert [7, LOOPING] not in [x["prompt"] for x in pair.draft.seen()["sent"]]


async def test_a_draft_whose_guesses_are_never_right_is_a_fault(pair: Pair) -> None:
    """1.00 is refused before anything is measured, and nothing of it is kept."""
    pair.draft.set(right=[0])

    with pytest.raises(ArtifactError, match=r"1\.00"):
        await pair.run()
    assert ["plain.json"] == [p.name for p in pair.out.iterdir()]


@pytest.mark.parametrize(
    ("info", "error", "text"),
    [
        ({"speculative_algorithm": None}, ConfigError, "does not speculate"),
        ({"speculative_algorithm": "EAGLE"}, ConfigError, "EAGLE"),
        ({"context_length": 2048}, FingerprintError, "context is '2048'"),
    ],
)
async def test_a_server_that_is_not_what_it_has_to_be_is_refused(
    pair: Pair, info: dict[str, Any], error: type[EagledError], text: str
) -> None:
    """No draft, another algorithm, or another context than the plain server's."""
    pair.draft.set(info={**DRAFTING, **info})

    with pytest.raises(error, match=text):
        await pair.run()


async def test_a_drafting_server_is_no_baseline(pair: Pair) -> None:
    """The plain address must not speculate."""
    with pytest.raises(ConfigError, match="no plain server"):
        await pair.run(plain_url=pair.draft.url)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("error", "error inside a stream: out of memory"),
        ("cut", "without a finish reason|broke off"),
        ("abort", "aborted by the server"),
        ("busy", "queue is full"),
    ],
)
async def test_a_pass_with_a_failed_request_is_no_measurement(
    pair: Pair, fault: str, text: str
) -> None:
    """Whatever the status said; the second failure ends the benchmark and says why."""
    pair.plain.set(fault=fault)

    with pytest.raises(EagledError, match=text):
        await pair.run()
    assert not pair.out.exists()


async def test_one_failed_pass_is_made_again(pair: Pair) -> None:
    """One broken stream costs its pass, not the benchmark."""
    pair.plain.set(fault="once")
    found = await pair.run()

    assert [6, 6, 12, 12] == [p.requests for p in found.plain.passes]


async def test_a_side_that_was_measured_is_not_measured_again(pair: Pair) -> None:
    """The same folder goes on behind the plain server; another workload takes nothing of it."""
    pair.draft.set(right=[0])
    with pytest.raises(ArtifactError):
        await pair.run()
    before = len(pair.plain.seen()["sent"])
    pair.draft.set(right=RIGHT)
    found = await pair.run()
    again = await pair.run()
    after = len(pair.plain.seen()["sent"])
    await pair.run(Workload((PromptSet("d", PROMPTS[:4]),), GREEDY, "template"))

    assert before == after
    assert (len(PROMPTS), len(PROMPTS)) == found.tests[0].same_answers
    assert found.to_dict() == again.to_dict()
    assert after < len(pair.plain.seen()["sent"])


class Bench:
    """`eagled bench` with the stand-in for SGLang, in a folder of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN.format(python=sys.executable))
        stand_in.chmod(0o755)
        self.port = free_port()
        (folder / "asked.json").write_text(json.dumps(["One?", "Two?", "Three?"]))
        (folder / "eagled.toml").write_text(
            f'[target]\nmodel = "{model}"\n[serve]\npython = "{stand_in}"\n'
            "[lanes.short]\ncontext = 1024\n[generation]\nmin_reply = 8\n"
            f'[[servers]]\nurl = "http://127.0.0.1:{self.port}"\n'
        )

    def words(self, *args: str) -> list[str]:
        """Return the command's words."""
        return [
            "bench", "--config", "eagled.toml", "--prompts", "asked.json", "--concurrency", "1,2",
            "--runs", "1", "--max-new-tokens", "48", "--out", "out", *args,
        ]  # fmt: skip

    def is_free(self) -> bool:
        """Return whether nothing listens at the address any more, given time."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)):
                    return True
            time.sleep(0.05)
        return False


@pytest.fixture(scope="module", name="draft")
def _draft(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("draft") / ("long" * 25)  # paths are compared, never cut
    run.mkdir()
    (run / "result.json").write_text('{"after": {"length": 1.87}}')
    return random_draft(tiny_model, run / "draft", (2, 4, 5))


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMING", json.dumps({"right": RIGHT}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Bench(tmp_path, tiny_model)


def test_the_command_starts_both_servers_and_reports(
    bench: Bench, tmp_path: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two settings of the draft, one after the other; page, JSON, plots; nothing is left."""
    words = [str(draft), "--speculate", "3/1/4", "--speculate", "2/1/3", "--json"]
    app(bench.words(*words), standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    stored = json.loads((tmp_path / "out/benchmark.json").read_text())
    page = (tmp_path / "out/benchmark.md").read_text()
    log = (tmp_path / "state/logs/bench-draft-2-1-3.log").read_text()

    assert bench.is_free()
    assert ["draft 3/1/4", "draft 2/1/3"] == [d["name"] for d in told["drafts"]]
    assert told["drafts"] == stored["drafts"]
    assert stored["drafts"][0]["accepted"]["accepted_length"] > 1.5
    assert [1, 2] == [g["concurrency"] for g in stored["drafts"][0]["gains"]]
    assert '"--speculative-num-steps", "2"' in log
    for text in (
        "the target's own token counted",
        "3 of 3 greedy answers",
        "| asked | 3 | 0 | 0 |",
        "held-out answers: 1.87 tokens a verify step",
    ):
        assert text in page
    assert {"speed.png", "gain.png"} <= {p.name for p in (tmp_path / "out").iterdir()}


def test_sigterm_ends_the_servers_too(bench: Bench, tmp_path: Path, draft: Path) -> None:
    """While a server starts or answers: exit 130, and nothing listens any more."""
    process = subprocess.Popen(
        [sys.executable, "-m", "eagled", *bench.words(str(draft))],
        env=clean_env(STREAMING=json.dumps({"step_s": 0.2}), PYTHONPATH=str(ROOT)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log, deadline = tmp_path / "state/logs/bench-plain.log", time.monotonic() + 120
    while not (log.exists() and str(bench.port) in log.read_text().splitlines()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)

    assert (130, True) == (process.wait(120), bench.is_free())


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((), UsageError, "give the folder of a draft"),
        (("/absent",), ConfigError, r"config\.json"),
        (("DRAFT", "--speculate", "3/1"), ConfigError, "steps/topk/draft tokens"),
        (("DRAFT", "--concurrency", "0"), UsageError, "at least 1"),
        (("DRAFT", "--prompts", "none.json"), ConfigError, r"none\.json"),
        (("--draft-url", "http://x:1", "--speculate", "3/1/4"), UsageError, "--draft-url"),
    ],
)
def test_wrong_use_starts_nothing(
    bench: Bench, tmp_path: Path, draft: Path, args: tuple[str, ...], error: type[EagledError],
    text: str,
) -> None:  # fmt: skip
    """The message says what is wrong; no server was started."""
    words = bench.words(*(str(draft) if a == "DRAFT" else a for a in args))

    with pytest.raises(error, match=text):
        app(words, standalone_mode=False)
    assert not (tmp_path / "state/logs").exists()


def test_a_draft_whose_mapping_is_wrong_is_refused(
    bench: Bench, tmp_path: Path, draft: Path
) -> None:
    """Absolute ids where offsets belong: explained before anything starts."""
    spoilt = shutil.copytree(draft, tmp_path / "spoilt")
    tensors = load_file(spoilt / "model.safetensors")
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    save_file(tensors, spoilt / "model.safetensors")

    with pytest.raises(ConfigError, match=r"(?s)would mean nothing.*d2t"):
        app(bench.words(str(spoilt)), standalone_mode=False)
    assert not (tmp_path / "state/logs").exists()


def test_an_address_that_is_taken_is_refused(bench: Bench, draft: Path) -> None:
    """What answers there is nobody's to measure or to end."""
    with socket.create_server(("127.0.0.1", bench.port)) as taken:
        taken.listen()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        thread = threading.Thread(target=_answer_one, args=(taken, answer))
        thread.start()
        with pytest.raises(ConfigError, match="something answers at"):
            app(bench.words(str(draft)), standalone_mode=False)
        thread.join(60)


def _answer_one(taken: socket.socket, answer: bytes) -> None:
    connection, _ = taken.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


TINY_WIDTH = 3 * 64


async def live(pair: Pair, draft: Path, model: Path, **settings: Any) -> list[tuple[Verdict, str]]:
    """Return what is found of a draft's server that says and does so."""
    info = {**DRAFTING, "enable_return_hidden_states": True, "context_length": 2048}
    pair.draft.set(info={**info, **settings.pop("info", {})}, width=TINY_WIDTH)
    pair.draft.set(**settings)
    config = Config.model_validate({"target": {"model": str(model)}})
    server = ServerConfig.model_validate({"url": pair.draft.url})
    checks = await examine_draft(config, server, draft, target_config(model), PROMPTS)
    return [(check.verdict, check.found) for check in checks]


async def test_a_server_that_drafts_as_it_should_passes(
    pair: Pair, draft: Path, tiny_model: Path
) -> None:
    """The folder for this version, the width of the states, and guesses that are right."""
    found = await live(pair, draft, tiny_model)

    assert [Verdict.OK] * 3 == [verdict for verdict, _ in found]
    assert ["right for SGLang 0.5.23", "192 wide, as the draft reads them"] == [
        text for _, text in found[:2]
    ]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"right": [0]}, "no guess is right"),
        ({"right": None}, "no verify step in any answer"),
        ({"width": 64}, "64 wide, the draft reads 192"),
        ({"info": {"speculative_algorithm": "EAGLE"}}, "use EAGLE3"),
        ({"info": {"context_length": 9000}}, "covers 2048 positions, the server 9000"),
        ({"fault": "busy"}, "queue is full"),
    ],
)
async def test_what_is_wrong_with_a_draft_shows_when_it_is_asked(
    pair: Pair, draft: Path, tiny_model: Path, settings: dict[str, Any], text: str
) -> None:
    """Each fails, with what was found."""
    found = await live(pair, draft, tiny_model, **settings)

    assert any(verdict is Verdict.FAIL and text in said for verdict, said in found), found


def test_serve_ends_a_server_whose_draft_is_worthless(
    bench: Bench, draft: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`eagled serve --draft` asks the server that came up: never right is exit 78, and it ends."""
    monkeypatch.setenv("STREAMING", json.dumps({"right": [0]}))
    words = ["serve", "--draft", str(draft), "--config", "eagled.toml"]
    code = app(words, standalone_mode=False)

    assert (78, True) == (code, bench.is_free())
    assert "no guess is right" in capsys.readouterr().err
