"""Texts of samples for people: the daemon has ids, a text worker has the tokenizer.

Guarantee: the daemon never loads a tokenizer; a request that no worker takes or answers in time
ends with a reason, and the ids can be shown all the same. Nothing is kept: a request lives as long
as its caller waits. Price: one round trip to a worker; a batch of checks in its hands comes first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from eagled.control.protocol import CLAIM_WAIT_S
from eagled.tokens import PackedIds

ANSWER_WAIT_S = 8.0  # a worker has at most one batch of checks in hand before
_RECENT_S = CLAIM_WAIT_S + 5.0  # a worker that asked within this is taken to be there
MAX_WAITING = 64  # requests; people ask one at a time


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Ids whose text somebody wants to read."""

    number: int
    prompt: PackedIds | None
    output: PackedIds | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring ids as text; a special id stands alone."""

    text: str
    n: int
    special: bool


@dataclass(frozen=True, slots=True)
class ReadText:
    """The answer to a `ReadJob`: pieces in order; their `n` add up to the ids."""

    number: int
    prompt: tuple[Piece, ...]
    output: tuple[Piece, ...]


class ReadDesk:
    """Requests for text, handed to whichever worker asks first."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: deque[ReadJob] = deque()
        self._answers: dict[int, asyncio.Future[ReadText]] = {}
        self._came = asyncio.Event()
        self._asking = 0
        self._asked_at = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether a worker waits for requests, or did so lately."""
        return self._asking > 0 or asyncio.get_running_loop().time() - self._asked_at < _RECENT_S

    async def read(self, prompt: PackedIds | None, output: PackedIds | None) -> ReadText | str:
        """Return the text of a sample, or why there is none."""
        if not self.connected:
            return "no text worker is connected: ids only"
        if len(self._answers) >= MAX_WAITING:
            return "too many texts are being read at once: ids only"
        job = ReadJob(next(self._numbers), prompt, output)
        future: asyncio.Future[ReadText] = asyncio.get_running_loop().create_future()
        self._answers[job.number] = future
        self._waiting.append(job)
        self._came.set()
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                return await future
        except TimeoutError:
            return f"the text worker did not answer in {ANSWER_WAIT_S:g} s: ids only"
        finally:
            del self._answers[job.number]

    async def claim(self) -> list[ReadJob]:
        """Return what is to be read; waits for it, at most `CLAIM_WAIT_S`."""
        self._asking += 1
        try:
            async with asyncio.timeout(CLAIM_WAIT_S):
                while not (jobs := self._take()):
                    self._came.clear()
                    await self._came.wait()
                return jobs
        except TimeoutError:
            return []
        finally:
            self._asking -= 1
            self._asked_at = asyncio.get_running_loop().time()

    def _take(self) -> list[ReadJob]:
        while self._waiting:
            job = self._waiting.popleft()
            if job.number in self._answers:
                return [job]
        return []

    def settle(self, texts: Sequence[ReadText]) -> int:
        """Give texts to those who wait; return how many still did."""
        n = 0
        for text in texts:
            future = self._answers.get(text.number)
            if future is not None and not future.done():
                future.set_result(text)
                n += 1
        return n
