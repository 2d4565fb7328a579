"""The daemon's own admission (controller, shares, expected lengths) as a policy for the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.sim.engine import Ended, Engine
from bench.sim.hosts import Job
from eagled.workers.generation.budget import LaneUse, allotments, room
from eagled.workers.generation.controller import Observation, Rules, State, begin, step
from eagled.workers.generation.expected import Expected

SHARES = {"short": 0.65, "long": 0.35}
START_PLACES = 32


@dataclass(slots=True)
class _Lane:
    name: str
    left: deque[Job]
    in_flight: int = 0
    tokens: float = 0.0
    weight: float = 2000.0


@dataclass(slots=True)
class Auto:
    """Lanes, expected lengths and the controller, put together as the daemon does."""

    lanes: list[_Lane]
    caps: Mapping[str, int]
    rules: Rules = field(default_factory=Rules)
    expected: Expected = field(default_factory=Expected)
    state: State | None = None
    now: float = 0.0
    sent: int = 0
    over: int = 0
    retracted: int = 0
    _weights: dict[int, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Sequence[Job], caps: Mapping[str, int] | None = None) -> Auto:
        """Return the policy for these jobs; `caps` is the lanes' limit, 0 or missing is none."""
        lanes = [_Lane(n, deque(j for j in jobs if j.lane == n)) for n in ("long", "short")]
        return cls([lane for lane in lanes if lane.left], caps or {})

    @property
    def in_flight(self) -> int:
        """Return the requests at the server."""
        return sum(lane.in_flight for lane in self.lanes)

    @property
    def tokens(self) -> float:
        """Return their expected tokens."""
        return sum(lane.tokens for lane in self.lanes)

    def tick(self, engine: Engine) -> None:
        """Look at the server, as the daemon does once a second."""
        self.now = engine.now
        running = len(engine.running)
        if running:
            self.expected.pace(engine.tok_per_s / running)
        seen = Observation(
            at_s=engine.now,
            in_flight=self.in_flight,
            tokens=self.tokens,
            sent=self.sent,
            ended=self.over,
            retracted=self.retracted,
            more=any(lane.left for lane in self.lanes),
            running=running,
            waiting=engine.n_waiting,
            used_tokens=engine.used,
            total_tokens=engine.host.kv_tokens,
            tok_per_s=engine.tok_per_s,
            max_running=engine.host.max_running,
            graphs=engine.host.graph_batch,
        )
        if self.state is None:
            self.state = begin(START_PLACES * 2000.0, self.rules)
        self.state = step(self.state, seen, self.rules)

    def ended(self, ended: Ended) -> None:
        """Free the place and learn the length."""
        job = ended.job
        lane = next(x for x in self.lanes if x.name == job.lane)
        weight, started = self._weights.pop(job.number)
        lane.in_flight -= 1
        lane.tokens -= weight
        self.over += 1
        self.retracted += ended.retractions
        self.expected.ended(job.dataset, job.n_prompt, started, ended.n_out)

    def take(self) -> list[Job]:
        """Return what may be sent now, the longest lane first."""
        budget = self.state.budget if self.state is not None else 0.0
        out: list[Job] = []
        for lane in self.lanes:
            uses = [self._use(each) for each in self.lanes]
            allotment = allotments(uses, budget)[lane.name]
            mine = next(u for u in uses if u.name == lane.name)
            n = min(room(mine, allotment, budget - self.tokens), len(lane.left))
            if self.state is not None and self.state.places:
                n = min(n, max(0, self.state.places - self.in_flight))
            out += [self._send(lane) for _ in range(n)]
        return out

    def _use(self, lane: _Lane) -> LaneUse:
        cap = self.caps.get(lane.name, 0)
        hungry, share = bool(lane.left), SHARES[lane.name]
        return LaneUse(lane.name, share, cap, lane.in_flight, lane.tokens, lane.weight, hungry)

    def _send(self, lane: _Lane) -> Job:
        job = lane.left.popleft()
        answer = self.expected.of(job.dataset, job.n_prompt, job.max_new, self.now)
        weight = job.n_prompt + answer
        lane.weight += 0.05 * (weight - lane.weight)
        lane.in_flight += 1
        lane.tokens += weight
        self.sent += 1
        self._weights[job.number] = (weight, self.now)
        self.expected.sent(job.dataset, job.n_prompt, self.now)
        return job
