"""All prompts asked at one concurrency, and what that came to.

Guarantee: so many requests are in flight until the last prompts run out; a pass in which a request
failed is no measurement: it is made once more, and then the error is raised. Every pass begins with
an empty prefix cache, where the server can be told. Price: the end of a pass, in which fewer run,
counts too; it does so for every server alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from eagled.benchmark.acceptance import Speculation, total
from eagled.benchmark.prompts import Workload
from eagled.benchmark.stream import Answer, StreamClient
from eagled.errors import EagledError, RetryableError
from eagled.server.protocol import EndCause, GenerateRequest

ROUNDS = 2  # requests of a pass are at least so many times the concurrency
Asked = tuple[str, GenerateRequest]
Told = Callable[[int, int], None]  # answers that are there, of how many


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass.

    Attributes:
        concurrency: requests in flight.
        requests: asked.
        wall_s: from the first request to the last answer.
        tokens: of all answers, by the server's count.
        first_s: to the first token, median and 95th percentile over the answers.
        gap_s: mean time of a token after the first one, the same two.
        cut: answers that are as long as was asked for.
        speculation: verify steps by data set.
    """

    concurrency: int
    requests: int
    wall_s: float
    tokens: int
    first_s: tuple[float, float]
    gap_s: tuple[float, float]
    cut: int
    speculation: Mapping[str, Speculation]

    @property
    def tok_per_s(self) -> float:
        """Tokens of answers a second, over all requests."""
        return self.tokens / self.wall_s

    @property
    def whole(self) -> Speculation:
        """Verify steps of all data sets."""
        return total(self.speculation.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "concurrency": self.concurrency, "requests": self.requests,
            "wall_s": self.wall_s, "tokens": self.tokens,
            "tok_per_s": round(self.tok_per_s, 3),
            "first_s": list(self.first_s),
            "gap_s": list(self.gap_s), "cut": self.cut,
            "speculation": {name: s.to_dict() for name, s in self.speculation.items()},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Pass:
        """Return what `to_dict` gave."""
        return cls(
            value["concurrency"], value["requests"], value["wall_s"], value["tokens"],
            tuple(value["first_s"]), tuple(value["gap_s"]), value["cut"],
            {name: Speculation.from_dict(s) for name, s in value["speculation"].items()},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pass and its answers: request, set's name and answer, in the order of asking."""

    measured: Pass
    answers: Sequence[tuple[str, GenerateRequest, Answer]]


async def run_pass(
    client: StreamClient, workload: Workload, concurrency: int, told: Told
) -> Outcome:
    """Ask everything at one concurrency; a pass that failed is made once more.

    Raises:
        EagledError: the second pass failed too.
    """
    try:
        return await _pass(client, workload, concurrency, told)
    except RetryableError:
        return await _pass(client, workload, concurrency, told)


async def _pass(client: StreamClient, workload: Workload, concurrency: int, told: Told) -> Outcome:
    asked = rounds(workload, concurrency)
    found: list[Answer | None] = [None] * len(asked)
    left = iter(enumerate(asked))
    await client.flush()
    began_at, failed = time.perf_counter(), None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(asked))):
                group.create_task(_work(client, left, found, told))
    except* EagledError as several:
        failed = several.exceptions[0]
    if failed is not None:
        raise failed
    wall_s = time.perf_counter() - began_at
    answers = [(name, r, a) for (name, r), a in zip(asked, found, strict=True) if a is not None]
    return Outcome(_measured(answers, concurrency, wall_s), answers)


async def _work(
    client: StreamClient,
    left: Iterator[tuple[int, Asked]],
    found: list[Answer | None],
    told: Told,
) -> None:
    for i, (_, request) in left:
        found[i] = await client.ask(request)
        told(sum(a is not None for a in found), len(found))


def rounds(workload: Workload, concurrency: int) -> list[Asked]:
    """Return what a pass asks: everything once, or as often as the concurrency needs."""
    times = max(1, -(-ROUNDS * concurrency // workload.n_prompts))
    return list(chain.from_iterable(w.requests() for w in repeat(workload, times)))


def _measured(
    answers: Sequence[tuple[str, GenerateRequest, Answer]], concurrency: int, wall_s: float
) -> Pass:
    by_set: defaultdict[str, list[Speculation]] = defaultdict(list)
    for name, _, answer in answers:
        by_set[name].append(answer.speculation)
    every = [answer for *_, answer in answers]
    return Pass(
        concurrency, len(answers), wall_s, sum(len(a.output) for a in every),
        _middle_and_high([a.first_s for a in every]),
        _middle_and_high([a.gap_s for a in every if a.gap_s is not None]),
        sum(a.cause is not EndCause.STOP for a in every),
        {name: total(parts) for name, parts in sorted(by_set.items())},
    )  # fmt: skip


def _middle_and_high(values: Sequence[float]) -> tuple[float, float]:
    """Return median and 95th percentile; zeros of nothing."""
    if not values:
        return 0.0, 0.0
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
