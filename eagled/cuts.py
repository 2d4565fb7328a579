"""What a cut between a short and a long lane costs, and which one to take.

A cut is the short lane's context in tokens. The measure is *waves*: how many answers have to be
made one after another when every lane keeps as many requests in flight as its limit and the KV
memory allow, each request holding the lane's whole context. A smaller cut lets more short requests
run at once and sends more prompts to the long lane, of which few run at once.

Guarantee: computed from counted prompts; what is not known (KV memory, server context) is left out
of the numbers, never guessed. Price: waves take every answer for equally long, and both lanes for
being alone on the server; it is a measure to compare cuts by, not a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagled.config import Config, LaneConfig
from eagled.errors import ArtifactError
from eagled.lanes import ordered_lanes
from eagled.profile import LengthProfile, round_up

_SHARES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)  # of the prompts in the short lane, as candidates
_MAX_CUT_ANSWERS = 0.05  # of the short prompts that may have less room than the expected answer


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the servers have together; None is unknown.

    Attributes:
        kv_tokens: tokens of KV memory, all endpoints added up.
        context: tokens of one request, the smallest of the endpoints.
    """

    kv_tokens: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """One possible context of the short lane, and what follows from it.

    Attributes:
        context: the cut in tokens.
        short: prompts of the short lane; `long`: of the long lane; `none`: that fit no lane.
        short_tokens: their prompt tokens together; `long_tokens` likewise.
        tight: short prompts that leave less room than the expected answer.
        short_at_once: requests that the short lane can hold; None without the KV memory.
        long_at_once: the same of the long lane.
        waves: answers one after another, both lanes added up; None without the KV memory.
    """

    context: int
    short: int
    long: int
    none: int
    short_tokens: int
    long_tokens: int
    tight: int
    short_at_once: int | None
    long_at_once: int | None
    waves: float | None


def cut_cost(
    profile: LengthProfile, config: Config, context: int, capacity: Capacity, reply_tokens: int
) -> Cut:
    """Return what a cut costs; prompts count with the upper edge of their bucket.

    Args:
        profile: of all datasets together.
        config: lanes and `generation.min_reply`.
        context: the cut.
        capacity: of the servers.
        reply_tokens: expected length of an answer.
    """
    need = config.generation.min_reply
    longest = capacity.context or ordered_lanes(config)[-1][1].context or None
    short = [(edge, n) for edge, n in profile.histogram if edge + need <= context]
    rest = [(edge, n) for edge, n in profile.histogram if edge + need > context]
    long = [(edge, n) for edge, n in rest if longest is None or edge + need <= longest]
    held = longest or (long[-1][0] + reply_tokens if long else context)
    short_lane, long_lane = _limits(config)
    at_once = (_at_once(short_lane, context, capacity), _at_once(long_lane, held, capacity))
    n_short, n_long = _count(short), _count(long)
    return Cut(
        context=context,
        short=n_short,
        long=n_long,
        none=_count(rest) - n_long,
        short_tokens=_tokens(short),
        long_tokens=_tokens(long),
        tight=_count([(edge, n) for edge, n in short if edge + reply_tokens > context]),
        short_at_once=at_once[0],
        long_at_once=at_once[1],
        waves=_waves((n_short, n_long), at_once),
    )


def cuts(
    profile: LengthProfile, config: Config, capacity: Capacity, reply_tokens: int
) -> list[Cut]:
    """Return the cuts worth looking at, the configured one among them, in ascending order."""
    contexts = sorted(set(_candidates(profile, config, capacity, reply_tokens)))
    return [cut_cost(profile, config, c, capacity, reply_tokens) for c in contexts]


def proposed(found: Sequence[Cut]) -> Cut:
    """Return the cut to take: fewest waves among those that leave nearly all answers their room.

    Without the KV memory: the smallest cut that takes 95% of the prompts.

    Raises:
        ArtifactError: if there are no cuts to choose from, because nothing was prepared.
    """
    if not found or not any(cut.short + cut.long + cut.none for cut in found):
        raise ArtifactError("no prompts have been prepared: run `eagled prep` first")
    roomy = [cut for cut in found if cut.tight <= _MAX_CUT_ANSWERS * cut.short] or list(found)
    known = [cut for cut in roomy if cut.waves is not None and cut.short]
    if known:
        return min(known, key=lambda cut: (cut.waves, cut.context))
    total = max(cut.short + cut.long + cut.none for cut in found)
    enough = [cut for cut in roomy if cut.short >= _SHARES[3] * total]
    return enough[0] if enough else roomy[-1]


def _candidates(
    profile: LengthProfile, config: Config, capacity: Capacity, reply_tokens: int
) -> Iterator[int]:
    room = max(reply_tokens, config.generation.min_reply)
    yield from (lane.context for _, lane in ordered_lanes(config) if lane.context)
    for share in _SHARES:
        if profile.n:
            context = round_up(profile.length_at(share) + room)
            yield min(context, capacity.context or context)


def _limits(config: Config) -> tuple[LaneConfig, LaneConfig]:
    lanes = [lane for _, lane in ordered_lanes(config)]
    return lanes[0], lanes[-1]


def _at_once(lane: LaneConfig, held: int, capacity: Capacity) -> int | None:
    if capacity.kv_tokens is None:
        return None
    fits = max(1, capacity.kv_tokens // held)
    return min(fits, lane.limit) if lane.limit else fits


def _waves(counts: tuple[int, int], at_once: tuple[int | None, int | None]) -> float | None:
    waves = [n / k for n, k in zip(counts, at_once, strict=True) if k is not None]
    return sum(waves) if len(waves) == len(counts) else None


def _count(buckets: Sequence[tuple[int, int]]) -> int:
    return sum(n for _, n in buckets)


def _tokens(buckets: Sequence[tuple[int, int]]) -> int:
    return sum(edge * n for edge, n in buckets)
