"""How much a server is given at once: one step of the admission controller.

Guarantee: `step` is a pure function. It reads no clock and keeps nothing: the same state and
observation give the same decision, so each decision of a run can be repeated and explained.
Price: a few microseconds a look; a look is one small request to the server a second.

Everything is counted in expected tokens: a request weighs its prompt plus the answer it is
expected to get (`expected.py`). Four rules, in order (docs/admission.md has the reasons):

1. Keep a short queue at the server: enough that a place is never empty, no more. What waits there
   can be neither paused nor put behind something else.
2. Never let the cache run over: fewer when it is nearly full, far fewer after a retraction.
3. No more than the cache can come to hold, by what answers are expected to be.
4. Go back when a larger batch turned out to be slower; stop when it is no faster.

If you change a rule, run `python -m bench.admission`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from eagled.workers.generation.ladder import Ladder, Look


class Reason(StrEnum):
    """Why the target is what it is."""

    START = "start"
    GROW = "grow"  # the server takes more at once than it has
    QUEUE = "queue"  # enough waits at the server already
    MEMORY = "memory"  # its cache is as full as it may be
    EXPECTED = "expected"  # what runs is expected to fill its cache
    RETRACTION = "retraction"  # it ran out of cache and threw requests out
    PLATEAU = "plateau"  # more at once was no faster
    SLOWER = "slower"  # more at once was slower
    DEMAND = "demand"  # lanes want no more than this
    BLIND = "blind"  # the server tells no load: the seed stands


@dataclass(frozen=True, slots=True)
class Rules:
    """The constants, each with its unit; `bench/admission.py` is what they were chosen by."""

    fill: float = 0.95  # share of the cache that may be in use before less is sent
    fill_least: float = 0.80  # how far retractions can bring that down
    fill_cut: float = 0.015  # by how much one retraction does
    fill_rise_per_s: float = 0.0001  # and how fast it comes back
    over: float = 1.10  # expected tokens of everything in flight, as a share of the cache
    over_least: float = 0.6
    over_cut: float = 0.95
    over_rise_per_s: float = 0.001
    cut: float = 0.9  # share of the tokens in flight that stays after a retraction
    hold_s: float = 20.0  # no growth for so long after a retraction
    queue_least: int = 4
    queue_most: int = 64
    queue_looks: float = 2.0  # looks that the server's queue is to last
    grow_per_s: float = 0.02  # least growth where there is headroom
    free: float = 0.6  # share of the cache below which a wider batch is a matter of speed only
    slack: float = (
        0.03  # how far below `fill` the cache stays when answers are shorter than expected
    )
    over_most: float = 1.5  # how far that can raise `over`
    turnover: float = 1.0  # answers for each request in flight before speed is judged
    bound: float = 0.97  # the target counts as used up from this share on

    def at(self, interval_s: float) -> Rules:
        """Return them for looks that are so far apart; the constants are for one second."""
        return replace(
            self,
            fill_rise_per_s=self.fill_rise_per_s / interval_s,
            over_rise_per_s=self.over_rise_per_s / interval_s,
            grow_per_s=self.grow_per_s / interval_s,
            hold_s=self.hold_s * interval_s,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen at one look.

    Attributes:
        at_s: time of the look, monotonic seconds.
        in_flight: our requests there.
        tokens: their expected tokens together.
        sent: requests sent there since the start.
        ended: requests that came to an end there since the start.
        retracted: retractions that replies told of, since the start.
        more: whether there is work that the target held back.
        running: requests that decode; None if the server tells no load.
        waiting: requests that wait at the server.
        used_tokens: tokens of its cache in use.
        total_tokens: tokens that its cache holds; 0 is unknown.
        tok_per_s: tokens that it makes a second; 0 is unknown.
        max_running: requests that can decode at once; 0 is unknown.
        graphs: largest batch that has a CUDA graph; 0 is unknown.
    """

    at_s: float
    in_flight: int
    tokens: float
    sent: int
    ended: int
    retracted: int
    more: bool
    running: int | None = None
    waiting: int = 0
    used_tokens: int = 0
    total_tokens: int = 0
    tok_per_s: float = 0.0
    max_running: int = 0
    graphs: int = 0

    @property
    def usage(self) -> float:
        """Return the share of the cache that is in use."""
        return self.used_tokens / self.total_tokens if self.total_tokens else 0.0

    @property
    def weight(self) -> float:
        """Return the mean expected tokens of a request in flight."""
        return self.tokens / self.in_flight if self.in_flight else 0.0


@dataclass(frozen=True, slots=True)
class State:
    """What the controller remembers of a server.

    Attributes:
        budget: expected tokens that may be in flight.
        places: requests that may be in flight; 0 leaves it to the budget.
        reason: what decided it last.
        fill: see `Rules.fill`, as retractions have left it.
        over: see `Rules.over`, as retractions have left it.
        held_until_s: no growth before.
        retractions: those noticed so far.
        ladder: throughput by batch size.
        last: the look before.
    """

    budget: float
    fill: float
    over: float
    places: int = 0
    reason: Reason = Reason.START
    held_until_s: float = float("-inf")
    retractions: int = 0
    ladder: Ladder = field(default_factory=Ladder)
    last: Observation | None = None


def begin(budget: float, rules: Rules) -> State:
    """Return the state before the first look."""
    return State(budget, rules.fill, rules.over)


def step(state: State, seen: Observation, rules: Rules) -> State:
    """Return the state after a look; its `budget` and `reason` are the decision."""
    if seen.running is None:
        return replace(state, reason=Reason.BLIND, last=seen)
    thrown = new_retractions(state, seen)
    state = _after_retractions(state, seen, thrown, rules)
    if seen.ended > rules.turnover * seen.in_flight:
        growing = state.reason is Reason.GROW and seen.usage < rules.free
        reading = Look(
            seen.at_s, seen.in_flight, seen.running, seen.tok_per_s, seen.graphs, growing
        )
        ladder = state.ladder.after(reading)
        state = replace(state, ladder=ladder)
    budget, reason = _decide(state, seen, rules, thrown)
    places, reason = _places(state, seen, rules, reason)
    return replace(state, budget=budget, places=places, reason=reason, last=seen)


def new_retractions(state: State, seen: Observation) -> int:
    """Return how many requests were thrown out that were not noticed before, at the least.

    A server's queue grows only by what was sent and by what was thrown out of the batch, so what
    it grew beyond what can have arrived was thrown out. Replies tell of the rest, but late.
    """
    late = max(0, seen.retracted - state.retractions)
    last = state.last
    if last is None or last.running is None or _shared(last) or _shared(seen):
        return late
    on_the_way = max(0, last.in_flight - last.running - last.waiting)
    grown = seen.waiting - last.waiting - (seen.sent - last.sent) - on_the_way
    return max(late, grown)


def _shared(seen: Observation) -> bool:
    """Return whether others use the server too: then its queue says nothing of ours."""
    return (seen.running or 0) + seen.waiting > seen.in_flight


def _after_retractions(state: State, seen: Observation, thrown: int, rules: Rules) -> State:
    if thrown:
        return replace(
            state,
            retractions=state.retractions + thrown,
            fill=max(rules.fill_least, state.fill - rules.fill_cut),
            over=max(rules.over_least, state.over * rules.over_cut),
            held_until_s=seen.at_s + rules.hold_s,
        )
    if state.last is None or seen.at_s < state.held_until_s:
        return state
    passed_s = seen.at_s - state.last.at_s
    fill = min(rules.fill, state.fill + rules.fill_rise_per_s * passed_s)
    short = state.reason is Reason.EXPECTED and seen.usage < state.fill - rules.slack
    most = rules.over_most if short else max(rules.over, state.over)
    over = min(most, state.over + rules.over_rise_per_s * passed_s)
    return replace(state, fill=fill, over=over)


def _decide(state: State, seen: Observation, rules: Rules, thrown: int) -> tuple[float, Reason]:
    """Return the budget of expected tokens, and what decided it."""
    if thrown:
        return min(state.budget, seen.tokens * rules.cut), Reason.RETRACTION
    budget, reason = _by_queue(state, seen, rules)
    for limit, why in _limits(state, seen):
        if limit < budget:
            budget, reason = limit, why
    return max(budget, seen.weight), reason


def _by_queue(state: State, seen: Observation, rules: Rules) -> tuple[float, Reason]:
    """Rule 1: send what keeps the server's queue at its length."""
    wanted = queue_target(state, seen, rules)
    missing = (wanted - seen.waiting) * seen.weight
    if seen.waiting > 2 * wanted:
        return min(state.budget, seen.tokens + missing), Reason.QUEUE
    if seen.waiting >= wanted // 2:
        return state.budget, Reason.QUEUE
    if seen.tokens < rules.bound * state.budget:
        return state.budget, state.reason if seen.more else Reason.DEMAND
    if seen.at_s < state.held_until_s:
        return state.budget, Reason.RETRACTION
    passed_s = seen.at_s - state.last.at_s if state.last is not None else 1.0
    growth = max(missing, rules.grow_per_s * passed_s * state.budget)
    return max(state.budget, seen.tokens + growth), Reason.GROW


def queue_target(state: State, seen: Observation, rules: Rules) -> int:
    """Return how many requests should wait at the server: what it takes up in a few looks."""
    if state.last is None or state.last.running is None or seen.running is None:
        return rules.queue_least
    taken = seen.running - state.last.running + seen.ended - state.last.ended
    wanted = round(rules.queue_looks * taken)
    return min(rules.queue_most, max(rules.queue_least, wanted))


def _limits(state: State, seen: Observation) -> list[tuple[float, Reason]]:
    """Rules 2 and 3, as most expected tokens in flight."""
    limits = []
    if seen.total_tokens:
        spare = state.fill * seen.total_tokens - seen.used_tokens
        limits.append((seen.tokens + spare, Reason.MEMORY))
        limits.append((state.over * seen.total_tokens, Reason.EXPECTED))
    return limits


def _places(state: State, seen: Observation, rules: Rules, reason: Reason) -> tuple[int, Reason]:
    """Rule 4, as most requests in flight, and what decides now; 0 is no such limit."""
    limits = [
        (n, why)
        for n, why in (
            (state.ladder.narrow, Reason.SLOWER),
            (state.ladder.plateau, Reason.PLATEAU),
            (
                seen.max_running + queue_target(state, seen, rules) if seen.max_running else 0,
                reason,
            ),
        )
        if n
    ]
    if not limits:
        return 0, reason
    places, why = min(limits, key=lambda limit: limit[0])
    return places, why if seen.in_flight >= places else reason
