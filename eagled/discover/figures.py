"""What a mix will take: samples, tokens, hours at the measured rate, bytes under each codec.

Guarantee: sums over the facts of its datasets; what one of them lacks makes the sum None, and the
missing ones are named. Lengths are those of the sampled rows: prompts as the target's tokenizer
counts them, answers as long as the recorded ones. Bytes are those of `disk_plan.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eagled.discover.facts import Facts
from eagled.discover.propose import Entry, Proposal
from eagled.disk_plan import Model, Room, make_plan, uniform
from eagled.shards.policy import StorePolicy
from eagled.types import Mode

_HOUR_S = 3600
_NO_ROOM_KNOWN = 1 << 62


@dataclass(frozen=True, slots=True)
class Means:
    """Of the samples of one dataset: how many a conversation makes, and their mean tokens."""

    turns: float
    prompt: float
    answer: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a mix takes; None is not known.

    Attributes:
        samples: turns that are generated or kept.
        prompt_tokens: of all samples.
        answer_tokens: of all samples, native ones included.
        to_generate: answer tokens that the target has to write.
        hours: of generation at the measured rate.
        bytes_by_codec: hidden states under each storage policy that keeps final states.
        native: conversations whose answers are the target's.
        lanes: share of first prompts by lane.
        risks: of licences, one sentence a dataset.
        unknown: datasets that were not looked at, or have no answers to measure.
    """

    conversations: int
    samples: int | None
    prompt_tokens: int | None
    answer_tokens: int | None
    to_generate: int | None
    hours: float | None
    bytes_by_codec: Mapping[str, int] = field(default_factory=dict)
    native: int = 0
    lanes: Mapping[str, float] = field(default_factory=dict)
    risks: Sequence[str] = ()
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """What figures are made with.

    Attributes:
        rate_tok_per_s: answer tokens a second of all lanes; None while nobody measured it.
        model: width and layers of the target; None if not known.
        policy: the storage policy that holds.
    """

    rate_tok_per_s: float | None
    model: Model | None
    policy: StorePolicy


def figures_of(proposal: Proposal, facts: Mapping[str, Facts], setting: Setting) -> Figures:
    """Return what a mix takes.

    Args:
        proposal: the mix.
        facts: of datasets by source.
        setting: rate, model and policy.
    """
    means = {entry.name: _means(facts.get(entry.source), entry) for entry in proposal.entries}
    samples = _sum(proposal, means, lambda _entry, m: m.turns)
    prompt = _sum(proposal, means, lambda _entry, m: m.turns * m.prompt)
    answer = _sum(proposal, means, lambda _e, m: None if m.answer is None else m.turns * m.answer)
    todo = _sum(proposal, means, _generated)
    rate = setting.rate_tok_per_s
    return Figures(
        conversations=proposal.count,
        samples=samples,
        prompt_tokens=prompt,
        answer_tokens=answer,
        to_generate=todo,
        hours=todo / rate / _HOUR_S if todo is not None and rate else None,
        bytes_by_codec=_bytes(samples, prompt, answer, setting),
        native=sum(e.count for e in proposal.entries if e.mode == Mode.NATIVE.value),
        lanes=_lanes(proposal, facts),
        risks=tuple(_risk(e, facts[e.source]) for e in proposal.entries
                    if e.source in facts and facts[e.source].licence_flags),
        unknown=tuple(e.source for e in proposal.entries if _is_unknown(means[e.name])),
    )  # fmt: skip


def _means(facts: Facts | None, entry: Entry) -> Means | None:
    if facts is None or facts.prompt_mean is None:
        return None
    turns = 1.0 if entry.settings.get("turns") == 1 else facts.turns_mean
    return Means(turns, facts.prompt_mean, facts.answer_mean)


def _is_unknown(means: Means | None) -> bool:
    return means is None or means.answer is None


def _generated(entry: Entry, means: Means) -> float | None:
    if entry.mode == Mode.NATIVE.value:
        return 0.0
    return None if means.answer is None else means.turns * means.answer


def _sum(
    proposal: Proposal,
    means: Mapping[str, Means | None],
    of: Callable[[Entry, Means], float | None],
) -> int | None:
    total = 0.0
    for entry in proposal.entries:
        own = means[entry.name]
        each = None if own is None else of(entry, own)
        if each is None:
            return None
        total += entry.count * each
    return round(total)


def _bytes(
    samples: int | None, prompt: int | None, answer: int | None, setting: Setting
) -> dict[str, int]:
    """Return the bytes of states under each policy, at the mean length."""
    if not samples or prompt is None or not answer or setting.model is None:
        return {}
    own = max(1, round(answer / samples))
    tokens = max(own + 1, round((prompt + answer) / samples))
    raw = StorePolicy(last=setting.policy.last, max_tokens=setting.policy.max_tokens,
                      keep_prompt=setting.policy.keep_prompt)  # fmt: skip
    plan = make_plan(uniform(samples, tokens, own), setting.model, Room(_NO_ROOM_KNOWN), raw)
    wanted = {"now": "raw", "lossless": "lossless", "fp8": "fp8"}
    return {
        wanted[option.name]: option.bytes_left
        for option in plan.options
        if option.name in wanted and option.bytes_left is not None
    }


def _lanes(proposal: Proposal, facts: Mapping[str, Facts]) -> dict[str, float]:
    """Return the share of first prompts by lane, over the datasets that were measured."""
    sums: Counter[str] = Counter()
    for entry in proposal.entries:
        known = facts.get(entry.source)
        total = sum(known.lanes.values()) if known is not None else 0
        if known is None or not total or entry.mode == Mode.NATIVE.value:
            continue
        for lane, n in known.lanes.items():
            sums[lane] += round(entry.count * n / total)
    whole = sums.total()
    return {lane: n / whole for lane, n in sums.most_common()} if whole else {}


def _risk(entry: Entry, facts: Facts) -> str:
    return (
        f"{entry.source}: {facts.licence or 'no licence given'} ({', '.join(facts.licence_flags)})"
    )
