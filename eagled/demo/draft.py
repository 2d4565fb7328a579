"""The demo's last part: a small draft from the demo's own shards, and what it is worth.

Runs `eagled train`, `eagled draft check` and `eagled draft estimate`, each as its own process on
two threads, when daemon and engine have ended. The estimate is greedy chain verification on
questions that were not trained on; the embedded engine does not speculate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eagled.demo.checks import Check, Summary
from eagled.demo.processes import run_command
from eagled.demo.setting import DRAFT, DemoPaths
from eagled.paths import StatePaths

QUESTIONS, ANSWER_TOKENS = 16, 64
_THREADS = 2
_ENDS = 5  # optimiser steps whose mean is the loss at the beginning, and at the end
_MOST_LOOPING = 0.25  # of the answers; beyond that what is left is no fair choice
WORDS = (
    "Tokens a verify step are an estimate: greedy answers of the target, walked in a process with\n"
    "transformers as chain speculation would, 1.0 for a draft that is never right. The embedded\n"
    "engine does not speculate, and on this CPU the draft is no speed-up; it shows that it learns."
)

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """What training, check and estimate said.

    Attributes:
        trained: of `eagled train --json`.
        losses: of each optimiser step.
        findings: of `eagled draft check --json`.
        estimate: of `eagled draft estimate --json`.
    """

    trained: Mapping[str, Any]
    losses: Sequence[float]
    findings: Sequence[Mapping[str, Any]]
    estimate: Mapping[str, Any]

    @property
    def loss(self) -> tuple[float, float]:
        """The mean loss of the first steps and of the last."""
        first, last = self.losses[:_ENDS], self.losses[-_ENDS:]
        return sum(first) / len(first), sum(last) / len(last)


def make_draft(paths: DemoPaths, tell: Told) -> DraftFacts:
    """Train a draft and measure it.

    Raises:
        DemoError: if a command fails.
    """

    def command(*args: str) -> Any:  # noqa: ANN401 - JSON
        words = [*args, "--json", "--config", str(paths.config)]
        threads = min(_THREADS, os.cpu_count() or 1)
        return orjson.loads(run_command(words, paths.logs / "commands.log", threads=threads))

    folder = StatePaths(paths.state).drafts / DRAFT
    tell("Training a small draft on the shards (about a minute) …")
    trained = command("train", "--name", DRAFT)
    tell("Checking it, and asking the target new questions to see what it guesses …")
    findings = command("draft", "check", str(folder / "draft"))
    estimate = command(
        "draft", "estimate", DRAFT, str(paths.questions), "--count", str(QUESTIONS),
        "--max-new-tokens", str(ANSWER_TOKENS),
    )  # fmt: skip
    return DraftFacts(trained, _losses(folder / "metrics.jsonl"), findings, estimate)


def _losses(metrics: Path) -> list[float]:
    lines = [orjson.loads(line) for line in metrics.read_bytes().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def draft_checks(facts: DraftFacts) -> list[Check]:
    """Hold the draft against what a minute of training must give."""
    before, after = (facts.estimate[when]["length"] for when in ("before", "after"))
    asked, looping = facts.estimate["asked"], facts.estimate["looping"]
    used = facts.estimate["answers"]
    first, last = facts.loss
    errors = [f["text"] for f in facts.findings if f["level"] == "error"]
    return [
        Check(
            bool(facts.trained["finished"]),
            f"training did {facts.trained['step']} of {facts.trained['total']} steps",
        ),
        Check(last < first, f"the loss fell from {first:.3f} to {last:.3f}"),
        Check(
            looping <= _MOST_LOOPING * asked,
            f"{used} of {asked} greedy answers are used, {looping} left out because they loop",
        ),
        Check(
            after > before,
            f"acceptance rose from {before:.3f} to {after:.3f} tokens a verify step (an estimate)",
        ),
        Check(not errors, f"`eagled draft check` on the export: {'; '.join(errors) or 'no error'}"),
    ]


def draft_table(facts: DraftFacts) -> Summary:
    """Return the rows about the draft."""
    first, last = facts.loss
    rows: list[tuple[str, ...]] = [("training loss", f"{first:.3f}", f"{last:.3f}")]
    rows.append(_row("tokens a verify step, new questions, greedy (estimate)", facts.estimate))
    if facts.trained["before"] and facts.trained["after"]:
        rows.append(_row("tokens a verify step, held-out samples (estimate)", facts.trained))
    shares = [facts.estimate[when]["by_position"][0] for when in ("before", "after")]
    rows.append(("first guesses that are right", *(f"{share:.0%}" for share in shares)))
    return Summary(("draft", "before", "after"), tuple(rows))


def _row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    return (name, *(f"{found[when]['length']:.3f}" for when in ("before", "after")))
