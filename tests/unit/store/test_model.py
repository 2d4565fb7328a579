"""Random operations against a model in a dictionary, with restarts in between.

Invariants after every step: no acknowledged answer is lost, `attempt` never falls, the counters are
a real count, and a second restart changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eagled.clock import FakeClock
from eagled.paths import StatePaths
from eagled.store import LaneRow, Store
from eagled.store.tools import check_database
from eagled.tokens import pack_ids
from eagled.types import (
    Answer,
    Claim,
    ExtractJob,
    Failure,
    Finish,
    SampleState,
    ShardMember,
    ShardRecord,
    TextVerdict,
)
from tests.unit.store.helpers import conversation, record


@dataclass
class Known:
    """What the model knows of a sample."""

    state: SampleState
    attempt: int = 0
    crc: int | None = None


class StoreMachine(RuleBasedStateMachine):
    """The real store beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="eagled-model-"))
        self.clock = FakeClock()
        self.runner = asyncio.Runner()
        self.model: dict[int, Known] = {}
        self.held: list[Claim] = []
        self.jobs: list[ExtractJob] = []
        self.stale: list[Claim] = []
        self.conversations = 0
        self.answers = 0
        self.shards = 0
        self.store = self.runner.run(self._open())

    async def _open(self) -> Store:
        store = await Store.open(StatePaths(self.root), clock=self.clock, create=True)
        await store.sync_lanes([LaneRow("short", 0, 0, 8)])
        self.dataset = await store.add_dataset(record())
        return store

    @initialize()
    def begin(self) -> None:
        """Start with work at every stage, so that few steps reach each of them."""
        for _ in range(6):
            self.add(2)
        self.claim(4)
        for _ in range(3):
            self.complete(0)
        self.settle(accept=True)
        self.claim_extract(1)

    def teardown(self) -> None:
        """Close everything and check the file once more."""
        self.runner.run(self.store.close())
        report = check_database(StatePaths(self.root))
        self.runner.close()
        shutil.rmtree(self.root)

        assert () == report.problems

    @rule(turns=st.integers(1, 3))
    def add(self, turns: int) -> None:
        """A conversation enters; entering again adds nothing."""
        item = conversation("a", self.conversations, turns=turns)
        first = self.runner.run(self.store.add_conversations(self.dataset, [item]))
        again = self.runner.run(self.store.add_conversations(self.dataset, [item]))
        self.conversations += 1
        start = len(self.model) + 1
        for turn in range(turns):
            state = SampleState.WAITING if turn else SampleState.QUEUED
            self.model[start + turn] = Known(state)

        assert (1, 0, 1) == (first.added, again.added, again.known)

    @rule(n=st.integers(1, 4))
    def claim(self, n: int) -> None:
        """Claims are queued samples, each with a risen attempt."""
        queued = sum(k.state is SampleState.QUEUED for k in self.model.values())
        claims = self.runner.run(self.store.claim("short", n))
        for claim in claims:
            known = self.model[claim.fence.sample_id]
            assert known.state is SampleState.QUEUED
            known.state, known.attempt = SampleState.GENERATING, known.attempt + 1
            assert known.attempt == claim.fence.attempt
        self.held += claims

        assert min(n, queued) == len(claims)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def complete(self, pick: int) -> None:
        """A held claim is completed."""
        claim = self.held.pop(pick % len(self.held))
        self.answers += 1
        output = pack_ids([self.answers, 2, 3])
        done = self.runner.run(
            self.store.complete(claim.fence, Answer(output, Finish.STOP, "s", 0.1))
        )
        known = self.model[claim.fence.sample_id]
        known.state, known.crc = SampleState.GENERATED, output.crc
        self.stale.append(claim)

        assert done

    @precondition(lambda self: self.stale)
    @rule(pick=st.integers(0, 99))
    def complete_stale(self, pick: int) -> None:
        """A claim that is over completes nothing."""
        claim = self.stale[pick % len(self.stale)]
        answer = Answer(pack_ids([999]), Finish.STOP, "s", 0.1)

        assert not self.runner.run(self.store.complete(claim.fence, answer))

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99), wait_s=st.sampled_from([0.0, 5.0, None]))
    def fail(self, pick: int, wait_s: float | None) -> None:
        """A held claim fails: tried again at once, later or never."""
        claim = self.held.pop(pick % len(self.held))
        failure = Failure("X", "d", charge=True, retry_in_s=wait_s)
        state = self.runner.run(self.store.fail(claim.fence, failure))
        assert state is not None
        self.model[claim.fence.sample_id].state = state
        self.stale.append(claim)
        if wait_s is None:
            self._cancel_later(claim.fence.sample_id)

    def _cancel_later(self, sample: int) -> None:
        number = sample + 1
        while number in self.model and self.model[number].state is SampleState.WAITING:
            self.model[number].state = SampleState.CANCELLED
            number += 1

    @precondition(lambda self: self.held)
    @rule()
    def give_back(self) -> None:
        """All that is held goes back."""
        count = self.runner.run(self.store.give_back([c.fence for c in self.held]))
        for claim in self.held:
            self.model[claim.fence.sample_id].state = SampleState.QUEUED
        self.stale += self.held

        assert count == len(self.held)
        self.held = []

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wake(self, seconds: float) -> None:
        """Time passes and due retries are queued."""
        self.clock.advance(seconds)
        self.runner.run(self.store.wake_retries())
        for row in self.runner.run(self.store.samples(None, 500)):
            known = self.model[row.id]
            if known.state is SampleState.RETRY_WAIT:
                assert row.state in {SampleState.RETRY_WAIT, SampleState.QUEUED}
                known.state = row.state

    @rule(accept=st.booleans())
    def settle(self, accept: bool) -> None:  # noqa: FBT001 - hypothesis passes it by name
        """The text worker judges everything that waits."""
        jobs = self.runner.run(self.store.text_jobs(50))
        prompt = pack_ids([5, 6])
        reason = None if accept else "bad_tool_call"
        verdicts = [TextVerdict(j.sample_id, j.attempt, reason, next_prompt=prompt) for j in jobs]
        count = self.runner.run(self.store.settle_text(verdicts, lane_of=lambda _: "short"))
        for job in jobs:
            following = self.model.get(job.sample_id + 1)
            if not accept:
                self.model[job.sample_id].state = SampleState.REJECTED
                self._cancel_later(job.sample_id)
            elif job.has_next and following is not None:
                following.state = SampleState.QUEUED

        assert count == len(jobs)

    @rule(n=st.integers(1, 3))
    def claim_extract(self, n: int) -> None:
        """An extraction worker takes accepted answers."""
        jobs = self.runner.run(self.store.claim_extract(n, 10**6, worker="w"))
        for job in jobs:
            known = self.model[job.fence.sample_id]
            assert known.state is SampleState.GENERATED
            assert known.crc == job.output.crc
            known.state = SampleState.EXTRACTING
        self.jobs += jobs

    @precondition(lambda self: self.jobs)
    @rule()
    def commit_shard(self) -> None:
        """All that is being extracted ends up in a shard."""
        self.shards += 1
        shard = ShardRecord(f"s{self.shards}", "0" * 64, 1, len(self.jobs), 1, "m")
        members = [ShardMember(job.fence, i) for i, job in enumerate(self.jobs)]
        result = self.runner.run(self.store.commit_shard(shard, members))
        for job in self.jobs:
            self.model[job.fence.sample_id].state = SampleState.EXTRACTED

        assert (len(self.jobs), 0) == (result.accepted, result.stale)
        self.jobs = []

    @rule()
    def retry(self) -> None:
        """An operator asks for all failed samples again."""
        failed = [i for i, k in self.model.items() if k.state is SampleState.FAILED]
        count = self.runner.run(self.store.retry(failed, 0))
        for number in failed:
            self.model[number].state = SampleState.QUEUED
            later = number + 1
            while later in self.model and self.model[later].state is SampleState.CANCELLED:
                self.model[later].state = SampleState.WAITING
                later += 1

        assert count == len(failed)

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:  # noqa: FBT001 - hypothesis passes it by name
        """The daemon stops in order or not, and starts: what was in flight is queued again."""
        if crash:
            self.runner.run(self._drop())
        else:
            self.runner.run(self.store.close())
        self.store = self.runner.run(self._open())
        held, jobs = len(self.held), len(self.jobs)
        for claim in self.held:
            self.model[claim.fence.sample_id].state = SampleState.QUEUED
        for job in self.jobs:
            self.model[job.fence.sample_id].state = SampleState.GENERATED
        self.stale += self.held
        self.held, self.jobs = [], []
        recovery = self.store.recovery

        assert (held, jobs) == (recovery.requeued, recovery.released_extracting)
        assert recovery.clean is not crash

    async def _drop(self) -> None:
        """End without the orderly stop's record, as a kill does."""
        await self.store._writer.close()
        await self.store._stack.aclose()

    @invariant()
    def agrees(self) -> None:
        """Rows, counters and stored answers are what the model says."""
        rows = self.runner.run(self.store.samples(None, 500))
        counters = self.runner.run(self.store.counters())
        counted: Counter[SampleState] = Counter()
        for counter in counters:
            counted[counter.state] += counter.n

        assert {i: (k.state, k.attempt) for i, k in self.model.items()} == {
            row.id: (row.state, row.attempt) for row in rows
        }
        assert Counter(k.state for k in self.model.values()) == counted
        for row in rows:
            crc = self.model[row.id].crc
            if crc is not None:
                detail = self.runner.run(self.store.sample(row.uid))
                assert detail is not None
                assert detail.output is not None
                assert crc == detail.output.crc


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
