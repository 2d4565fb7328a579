"""A whole benchmark: the plain server first, then the draft with each of its settings.

1. The plain server answers every prompt once. That warms it up, and prompts whose answer loops are
   left out: a loop is guessed right for ever, and would flatter any draft.
2. Then it is measured: every concurrency, several passes each.
3. With each setting of the draft the same. Its first pass shows whether its answers are the plain
   server's (greedy) and whether its guesses are ever right; one whose guesses never are is a fault,
   not a result.

Guarantee: a side that was measured is written at once, and the same command with the same folder
goes on behind it, if it was asked the same of the same server. Numbers of another workload are
never taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from eagled.artifacts import read_json, write_json
from eagled.benchmark.figures import Gain, Side, gains, verdict
from eagled.benchmark.measure import Outcome, run_pass
from eagled.benchmark.prompts import Ids, Workload
from eagled.benchmark.servers import (
    Seen,
    Speculate,
    check_accepted,
    check_served,
    look_at,
    offline_estimate,
    plan_side,
    refuse_drafting,
    started,
)
from eagled.benchmark.stream import StreamClient
from eagled.config import Config, ServerConfig
from eagled.errors import ArtifactError
from eagled.server.fingerprint import from_json, refuse_other
from eagled.text.loops import LoopRule, find_loop

FORMAT = "eagled-benchmark/1"
PLAIN = "plain"
_LOOP_PERIOD, _LOOP_TOKENS, _LOOP_SHARE = 64, 24, 4  # a quarter of the answer, at least 24 tokens
_NO_FLUSH = "its prefix cache could not be emptied between passes: times to the first token are low"

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a benchmark is made.

    Attributes:
        server: where servers are started; its key and limits hold for given ones too.
        draft: folder of the draft; None takes what the server at `draft_url` serves.
        plain_url: a plain server that runs; empty starts one.
        draft_url: a server with the draft that runs; empty starts one.
        speculate: settings of speculation, one side each; None is whatever the server has.
        concurrencies: ascending.
        runs: measured passes at each.
        out: folder of the results.
    """

    server: ServerConfig
    draft: Path | None
    plain_url: str
    draft_url: str
    speculate: Sequence[Speculate | None]
    concurrencies: Sequence[int]
    runs: int
    out: Path


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What came of it."""

    settings: Settings
    workload: Workload
    plain: Side
    tests: Sequence[Side]

    def gains(self, side: Side) -> list[Gain]:
        """Return the speed-up of one side at each concurrency."""
        return gains(self.plain, side)

    @property
    def best(self) -> Side:
        """The side with the largest speed-up at any concurrency."""
        return max(self.tests, key=lambda s: max(g.ratio.median for g in self.gains(s)))

    @property
    def offline(self) -> Mapping[str, Any] | None:
        """The held-out estimate of the training run, where it is beside the draft."""
        return offline_estimate(self.settings.draft)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        drafts = [
            {**side.to_dict(), "gains": [g.to_dict() for g in self.gains(side)],
             "verdict": verdict(self.gains(side))}
            for side in self.tests
        ]  # fmt: skip
        return {
            "format": FORMAT, "draft": str(self.settings.draft or self.tests[0].server["draft"]),
            "runs": self.settings.runs, "workload": self.workload.to_dict(),
            "plain": self.plain.to_dict(), "drafts": drafts, "offline_estimate": self.offline,
            "verdict": f"{self.best.name}: {verdict(self.gains(self.best))}",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Measured:
    """A side with what the next ones need: the workload without loops, and its answers' digests."""

    side: Side
    workload: Workload
    answers: Mapping[str, Sequence[str]]


class Runner:
    """Measures the sides of one benchmark.

    Args:
        config: the run's.
        settings: how.
        vocab_size: of the target.
        target: its config.
        tell: called with where it stands.
    """

    def __init__(
        self,
        config: Config,
        settings: Settings,
        vocab_size: int,
        target: Mapping[str, Any],
        tell: Told,
    ) -> None:
        self._config = config
        self._settings = settings
        self._vocab_size = vocab_size
        self._target = target
        self._tell = tell

    async def run(self, wanted: Workload) -> Benchmark:
        """Measure everything; `wanted` may hold prompts that do not fit or that loop.

        Raises:
            StopError: a server is not what it has to be, or a side cannot be measured.
        """
        plain = self._kept(PLAIN, wanted) or await self._plain(wanted)
        tests = []
        for setting in self._settings.speculate:
            kept = self._kept(_name(setting), wanted)
            tests.append((kept or await self._test(wanted, plain, setting)).side)
        return Benchmark(self._settings, plain.workload, plain.side, tests)

    # -- one side

    async def _plain(self, wanted: Workload) -> _Measured:
        async with self._server(self._settings.plain_url, None, PLAIN) as server:
            seen = await look_at(self._config, server, self._vocab_size)
            refuse_drafting(seen, server.url)
            fitting = wanted.fitting(seen.info.context, seen.info.max_input)
            async with self._client(server) as client:
                first = await self._pass(client, fitting, self._settings.concurrencies[-1],
                                         f"{PLAIN}: first answers")  # fmt: skip
                workload = fitting.without(looping(first))
                side = await self._side(client, workload, PLAIN, seen, None)
        measured = _Measured(side, workload, _answers(first, workload))
        self._keep(measured, wanted)
        return measured

    async def _test(
        self, wanted: Workload, plain: _Measured, setting: Speculate | None
    ) -> _Measured:
        name, draft = _name(setting), self._settings.draft
        async with self._server(self._settings.draft_url, setting, name) as server:
            seen = await look_at(self._config, server, self._vocab_size)
            warnings = check_served(seen, server.url, draft, self._target)
            refuse_other(from_json(plain.side.server["fingerprint"]), seen.identity, server.url)
            async with self._client(server) as client:
                first = await self._pass(client, plain.workload, self._settings.concurrencies[-1],
                                         f"{name}: first answers")  # fmt: skip
                check_accepted(first.measured.whole, server.url)
                same = _compared(plain, first) if wanted.sampling.greedy else None
                side = await self._side(client, plain.workload, name, seen, same, warnings)
        measured = _Measured(side, plain.workload, {})
        self._keep(measured, wanted)
        return measured

    async def _side(
        self,
        client: StreamClient,
        workload: Workload,
        name: str,
        seen: Seen,
        same: tuple[int, int] | None,
        warnings: Sequence[str] = (),
    ) -> Side:
        notes = [*warnings, *self._crowded(seen)]
        if not await client.flush():
            notes.append(_NO_FLUSH)
        passes = [
            (await self._pass(client, workload, concurrency, f"{name}: C={concurrency}, "
                              f"pass {run + 1} of {self._settings.runs}")).measured
            for concurrency in self._settings.concurrencies
            for run in range(self._settings.runs)
        ]  # fmt: skip
        server = {**seen.to_dict(), "url": client.url,
                  "fingerprint": seen.identity.to_json().decode()}  # fmt: skip
        return Side(name, workload.digest, server, passes, same, tuple(notes))

    def _crowded(self, seen: Seen) -> list[str]:
        most, wanted = seen.info.max_running, self._settings.concurrencies[-1]
        if most is None or most >= wanted:
            return []
        text = f"the server runs at most {most} requests at once (--max-running-requests)"
        return [f"{text}: more wait, and beyond C={most} the queue is measured too"]

    async def _pass(
        self, client: StreamClient, workload: Workload, concurrency: int, what: str
    ) -> Outcome:
        return await run_pass(
            client, workload, concurrency,
            lambda done, every: self._tell(f"{what}, {done} of {every} answers"),
        )  # fmt: skip

    def _client(self, server: ServerConfig) -> StreamClient:
        connect_s = self._config.generation.connect_timeout_s
        return StreamClient(server, vocab_size=self._vocab_size, connect_s=connect_s)

    @asynccontextmanager
    async def _server(
        self, url: str, setting: Speculate | None, name: str
    ) -> AsyncIterator[ServerConfig]:
        server = self._settings.server
        if url:
            yield server.model_copy(update={"url": url.rstrip("/")})
            return
        draft = None if name == PLAIN else self._settings.draft
        plan = plan_side(self._config, server, draft, setting)
        self._tell(f"{name}: starting the server")
        async with started(self._config, server, plan, _file_name(name)):
            yield server

    # -- sides that were measured before

    def _file(self, name: str) -> Path:
        return self._settings.out / f"{_file_name(name)}.json"

    def _identity(self, name: str, wanted: Workload) -> dict[str, Any]:
        """Return what must be the same for a side's numbers to stand."""
        at = self._settings
        url, draft = (at.plain_url, None) if name == PLAIN else (at.draft_url, at.draft)
        weights = sorted(draft.glob("*.safetensors")) if draft is not None else []
        return {
            "wanted": wanted.digest, "concurrencies": list(at.concurrencies), "runs": at.runs,
            "url": url or at.server.url, "given": bool(url), "draft": str(draft or ""),
            "weights": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in weights],
            "args": [] if url else [*self._config.serve.args, *self._config.serve.draft_args],
            "target": self._config.target.model,
        }  # fmt: skip

    def _keep(self, measured: _Measured, wanted: Workload) -> None:
        value = {
            "format": FORMAT,
            "identity": self._identity(measured.side.name, wanted),
            "side": measured.side.to_dict(),
            "sets": [s.to_dict() for s in measured.workload.sets],
            "answers": dict(measured.answers),
        }  # fmt: skip
        write_json(self._file(measured.side.name), value)

    def _kept(self, name: str, wanted: Workload) -> _Measured | None:
        """Return a side that was measured before with exactly these settings."""
        try:
            value = read_json(self._file(name))
        except ArtifactError:
            return None
        same = value.get("identity") == self._identity(name, wanted)
        if value.get("format") != FORMAT or not same:
            return None
        self._tell(f"{name}: measured before, in {self._file(name)}")
        return _Measured(
            Side.from_dict(value["side"]), wanted.narrowed(value["sets"]), value["answers"]
        )


def _name(setting: Speculate | None) -> str:
    return "draft" if setting is None else f"draft {setting}"


def _file_name(name: str) -> str:
    return name.replace("/", "-").replace(" ", "-")


def looping(outcome: Outcome) -> dict[str, set[Ids]]:
    """Return the prompts whose answer loops, by data set."""
    found: defaultdict[str, set[Ids]] = defaultdict(set)
    for name, request, answer in outcome.answers:
        shortest = max(_LOOP_TOKENS, len(answer.output) // _LOOP_SHARE)
        if find_loop(answer.output, LoopRule(_LOOP_PERIOD, shortest)) is not None:
            found[name].add(tuple(request.prompt.tolist()))
    return dict(found)


def _answers(outcome: Outcome, workload: Workload) -> dict[str, list[str]]:
    """Return a digest of the answer to each prompt of the workload, by data set."""
    by_prompt = {
        (name, tuple(r.prompt.tolist())): _digest(a.output) for name, r, a in outcome.answers
    }
    return {s.name: [by_prompt[s.name, p] for p in s.prompts] for s in workload.sets}


def _digest(ids: Sequence[int]) -> str:
    return blake2b(np.asarray(ids, np.uint32).tobytes(), digest_size=8).hexdigest()


def _compared(plain: _Measured, outcome: Outcome) -> tuple[int, int]:
    """Return how many answers are the plain server's, of how many."""
    ours = _answers(outcome, plain.workload)
    pairs = [(a, b) for name in ours for a, b in zip(ours[name], plain.answers[name], strict=True)]
    return sum(a == b for a, b in pairs), len(pairs)
