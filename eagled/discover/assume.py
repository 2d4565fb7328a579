"""What a mix takes for granted, each with a check that can prove it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eagled.config import Config
from eagled.discover.figures import Figures


@dataclass(frozen=True, slots=True)
class Assumption:
    """A sentence that may be wrong, what shows it, and the command that looks."""

    name: str
    text: str
    wrong_if: str
    check: str


def assumptions(figures: Figures, config: Config, rate: float | None) -> Iterator[Assumption]:
    """Yield what the numbers of a mix stand on."""
    yield Assumption(
        "data scaling",
        f"{figures.conversations:,} conversations are worth their time: more data still helps.",
        "a draft of half the corpus guesses as well on the held-out part as one of all of it",
        "eagled merge at half of the samples and at the end, eagled train --corpus of each",
    )
    yield Assumption(
        "vocabulary coverage",
        f"{config.vocab.size:,} tokens cover the answers of every dataset.",
        "a dataset's coverage is below 99%",
        "eagled vocab",
    )
    yield _disk(figures)
    lanes = ", ".join(f"{share:.0%} {lane}" for lane, share in figures.lanes.items())
    yield Assumption(
        "lane cut",
        f"first prompts fall into the lanes as sampled: {lanes or 'not measured'}.",
        "the histogram of all prompts gives other shares, or proposes another cut",
        "eagled profile",
    )
    yield Assumption(
        "server concurrency",
        f"the servers keep writing {rate:,.0f} tokens a second." if rate else
        "the servers' rate: nobody has measured it yet.",
        "out_tok_per_s of the lanes stays below it once they are full",
        "eagled status",
    )  # fmt: skip
    yield Assumption(
        "answer length",
        "the target answers about as long as the recorded answers are.",
        "mean answer tokens of the first thousand answers are another number",
        "eagled plan",
    )
    yield Assumption(
        "first rows",
        "the rows behind the sample are like its rows.",
        "prep leaves out another share of rows than the report says",
        "eagled prep",
    )


def _disk(figures: Figures) -> Assumption:
    samples, prompt, answer = figures.samples, figures.prompt_tokens, figures.answer_tokens
    check = "eagled plan disk --check"
    if samples and prompt is not None and answer:
        check = f"eagled plan disk --assume {samples}x{round((prompt + answer) / samples)} --check"
    return Assumption(
        "disk", "the hidden states of the whole mix fit the disk.", "the check ends with 74", check
    )
