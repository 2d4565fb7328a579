"""What may make the training worse or stop it, found in the facts of a plan.

Each rule is a past attempt that failed: too few samples, cut answers, a full disk, a vocabulary
that does not cover what the target says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagled.plan_render import human_bytes

FEW_SAMPLES = 100_000  # drafts that paid off were trained on 100,000 to 500,000 answers
_CUT_SHARE = 0.05
_REJECTED_SHARE = 0.2
_FAILED_SHARE = 0.02
_COVERAGE = 0.99


@dataclass(frozen=True, slots=True)
class RiskFacts:
    """Counts and shares that the rules look at; None and empty where nothing is known yet."""

    samples: int
    done: int
    failed: int
    rows: int
    rejected_rows: int
    unprepared: tuple[str, ...]
    greedy: bool
    cut_answers: int
    answers: int
    holdout_rows: int | None
    disk_short: int
    coverage: Mapping[str, float]
    speculative: tuple[str, ...]


def find_risks(facts: RiskFacts) -> tuple[str, ...]:
    """Return one sentence a risk, the gravest first."""
    return (*_disk(facts), *_servers(facts), *_data(facts), *_answers(facts), *_vocab(facts))


def _disk(facts: RiskFacts) -> Iterator[str]:
    if facts.disk_short > 0:
        yield (
            f"The disk is {human_bytes(facts.disk_short)} short of the hidden states still to come "
            "and the reserve: extraction will pause. Keep fewer positions (extract.last), or make "
            "room."
        )


def _servers(facts: RiskFacts) -> Iterator[str]:
    for url in facts.speculative:
        yield f"The server {url} is refused: it is not the one this run was made with."


def _data(facts: RiskFacts) -> Iterator[str]:
    if facts.samples < FEW_SAMPLES:
        yield (
            f"{facts.samples:,} samples are few: below {FEW_SAMPLES:,} a draft usually accepts too "
            "little to pay off."
        )
    for name in facts.unprepared:
        yield f"Dataset {name} is configured but not prepared: run `eagled prep {name}`."
    if facts.rows and facts.rejected_rows / facts.rows > _REJECTED_SHARE:
        yield (
            f"{facts.rejected_rows / facts.rows:.0%} of the dataset rows were left out; "
            "rejects.jsonl in each dataset's folder says why."
        )
    if facts.greedy:
        yield "Greedy sampling teaches the draft a narrower model than the one that is served."


def _answers(facts: RiskFacts) -> Iterator[str]:
    if facts.answers and facts.cut_answers / facts.answers > _CUT_SHARE:
        yield (
            f"{facts.cut_answers / facts.answers:.0%} of the answers were cut at their limit: they "
            "never show the draft how the target ends. Raise sampling.max_new_tokens."
        )
    ended = facts.done + facts.failed
    if ended and facts.failed / ended > _FAILED_SHARE:
        yield f"{facts.failed / ended:.0%} of the samples were given up; see `eagled failures`."
    if facts.holdout_rows == 0:
        yield "Nothing is held out: raise merge.holdout, or the draft cannot be judged."


def _vocab(facts: RiskFacts) -> Iterator[str]:
    for name, share in sorted(facts.coverage.items()):
        if share < _COVERAGE:
            yield f"The draft vocabulary covers {share:.1%} of {name}: raise vocab.size."
